"""The supervisor process: it restarts services, routes calls to them, serves MCP.  It never imports `services`."""

VERSION = "0.1.0"
"""In the one place that packaging, `--version`, `status` and the MCP front read it from."""
