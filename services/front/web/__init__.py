"""What is served over HTTP beside MCP: the routes that operations declare, metrics, and the operator's page."""
