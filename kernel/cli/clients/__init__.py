"""`linckia install-client`: the settings of MCP clients."""
