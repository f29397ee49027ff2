"""Mounted MCP servers: the registry of what they offer, and the adapters that run them."""
