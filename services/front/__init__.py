"""The MCP front: what clients see and how they reach it."""
