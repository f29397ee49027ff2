"""The front: serves MCP and HTTP clients."""
