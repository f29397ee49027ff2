"""FastMCP's proxy, as its documentation shows it; run by the interpreter of FastMCP's own environment.

python _fastmcp.py TIMEOUT stdio|PORT COMMAND…
"""

from __future__ import annotations

import logging
import sys

from fastmcp.server import create_proxy  # type: ignore[import-not-found]  # only in its own environment
from fastmcp.server.providers.proxy import ProxyClient  # type: ignore[import-not-found]  # as above


def main() -> None:
    logging.disable(logging.CRITICAL)
    timeout, transport, command, *args = sys.argv[1:]
    config = {"mcpServers": {"bench": {"command": command, "args": args}}}
    proxy = create_proxy(ProxyClient(config, timeout=float(timeout)), name="proxy")
    if transport == "stdio":
        proxy.run(show_banner=False)
    else:
        proxy.run(transport="http", host="127.0.0.1", port=int(transport), show_banner=False, log_level="critical")


if __name__ == "__main__":
    main()
