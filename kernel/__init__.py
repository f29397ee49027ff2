"""The supervisor process: it restarts services, routes calls to them, serves MCP.  It never imports `services`."""
