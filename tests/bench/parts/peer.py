"""The peer: the MCP SDK's own high-level server with one echo tool in its own process, as most servers are written.

python -m tests.bench.parts.peer stdio python -m tests.bench.parts.peer http PORT
"""

from __future__ import annotations

import logging
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer


def main() -> None:
    logging.disable(logging.CRITICAL)
    server = MCPServer("peer")

    @server.tool(name="mcp.echo")
    def echo(message: str) -> str:
        """Return the given text."""
        return message

    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[2]), log_level="critical")


if __name__ == "__main__":
    main()
