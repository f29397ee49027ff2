"""What is served over HTTP beside MCP: the models, and figures for whoever watches the system."""
