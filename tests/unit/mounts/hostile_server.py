"""An MCP server that sends any requested message. Run as a script: `hostile_server.py [http PORT]`.

A request with a member `reply` is answered with that text, as the members of the response after its id. The variable
OFFERS is a JSON object: results by method, and `endless`, `circling` and `huge` for a list whose pages never end.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OFFERS: dict[str, Any] = json.loads(os.environ.get("OFFERS", "{}"))


def response(message: dict[str, Any]) -> str | None:
    """Return the response to a message; None for notifications."""
    number, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if number is None or method is None:
        return None
    if "reply" in params:
        rest = params["reply"]
    elif method == "initialize":
        greeting = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "hostile", "version": "1"},
                    "capabilities": {"tools": {}, "prompts": {}, "resources": {}}}  # fmt: skip
        rest = f'"result": {json.dumps({**greeting, **OFFERS.get(method, {})})}'
    elif (offered := OFFERS.get(method)) is not None:
        if offered in ("endless", "circling", "huge"):
            page = int(params.get("cursor", 0)) + 1
            items = [{"name": f"t{page}", "x": "y" * 1_000_000}] if offered == "huge" else []
            offered = {method.split("/")[0]: items, "nextCursor": str(1 if offered == "circling" else page)}
        rest = f'"result": {json.dumps(offered)}'
    elif method == "ping":
        rest = '"result": {}'
    else:
        rest = '"error": {"code": -32601, "message": "no such method"}'
    return f'{{"jsonrpc": "2.0", "id": {json.dumps(number)}, {rest}}}'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(405, "")

    def do_POST(self) -> None:
        said = response(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer(202 if said is None else 200, said or "")

    def answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())


def main() -> None:
    if len(sys.argv) > 1:
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
    for line in sys.stdin:
        if (said := response(json.loads(line))) is not None:
            print(said, flush=True)


if __name__ == "__main__":
    main()
