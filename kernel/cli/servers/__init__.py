"""`linckia mcp` and `linckia wrap`: the MCP servers that Linckia mounts."""
