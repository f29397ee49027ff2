"""The composite tools: `query`, `execute` and `session`, through which a client reaches many operations."""
