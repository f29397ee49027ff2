"""The supervisor process: restarts services, routes calls to them, serves MCP.  It imports `proto`, never `services`."""
