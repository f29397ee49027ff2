"""`linckia torture`: a storm over an MCP server, and a report of what it lost, doubled, left hanging or left behind."""
