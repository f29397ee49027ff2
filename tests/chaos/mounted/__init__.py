"""A storm over mounted MCP servers: their processes are killed while clients call them."""
