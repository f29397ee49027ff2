"""Mounted MCP servers, as the front shows them to clients."""
