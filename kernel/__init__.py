"""The supervisor process: restarts services, routes calls to them, and holds client connections.

It never imports `services`.
"""

VERSION = "0.1.0"
"""The only definition of the version, for packaging, `--version`, `status` and the MCP front."""
