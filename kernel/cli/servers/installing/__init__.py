"""`linckia mcp search` and `linckia mcp install`: servers from a registry, and bundles."""
