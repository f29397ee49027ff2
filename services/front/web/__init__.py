"""HTTP besides MCP: the routes that operations declare, metrics, and the operator's page."""
