"""`linckia mcp search` and `linckia mcp install`."""
