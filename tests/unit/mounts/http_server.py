"""MCP servers over HTTP, for tests. Run as a script: `http_server.py legacy|sse|sdk PORT`.

`legacy` is written by hand: Streamable HTTP of 2025-06-18 with sessions. Its tools: `echo`, `forget` (ends all
sessions), `headers`, `drop` (closes the connection without a reply), `pid`. `sdk` is a server of the SDK, with the
tools `add` and `pid`; `sse` the same over the older transport.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

sessions: set[str] = set()


class Legacy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.reply(405)

    def do_DELETE(self) -> None:
        sessions.discard(self.headers.get("mcp-session-id", ""))
        self.reply(200)

    def reply(self, status: int, content: object = None, **headers: str) -> None:
        body = b"" if content is None else json.dumps(content, indent=1).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number, method = message.get("id"), message.get("method")
        if self.headers.get("Authorization") != os.environ.get("EXPECTED"):
            self.reply(401)
        elif method == "initialize":
            session = uuid.uuid4().hex
            sessions.add(session)
            result = {
                "protocolVersion": "2025-06-18",
                "serverInfo": {"name": "http", "version": "1"},
                "capabilities": {"tools": {}},
            }
            self.reply(200, {"jsonrpc": "2.0", "id": number, "result": result}, Mcp_Session_Id=session)
        elif method == "server/discover":
            self.reply(400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no session"}})
        elif self.headers.get("mcp-session-id") not in sessions:
            self.reply(404, {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "Session not found"}})
        elif number is None:
            self.reply(202)
        elif method == "tools/list":
            self.reply(
                200, {"jsonrpc": "2.0", "id": number, "result": {"tools": [{"name": "echo", "inputSchema": {}}]}}
            )
        else:
            self.tool(number, message["params"])

    def tool(self, number: Any, params: dict[str, Any]) -> None:
        match params["name"]:
            case "forget":
                sessions.clear()
                said = "forgotten"
            case "headers":
                said = json.dumps(dict(self.headers))
            case "pid":
                said = str(os.getpid())
            case "drop":
                self.close_connection = True
                return
            case _:
                said = json.dumps(params["arguments"])
        result = {"content": [{"type": "text", "text": said}], "odd": 1}
        self.reply(200, {"jsonrpc": "2.0", "id": number, "result": result})


def sdk(transport: Any, port: int) -> None:
    from mcp.server import MCPServer

    server = MCPServer("sdk")

    @server.tool()
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    def pid() -> int:
        return os.getpid()

    server.run(transport=transport, host="127.0.0.1", port=port)


if __name__ == "__main__":
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind == "legacy":
        ThreadingHTTPServer(("127.0.0.1", port), Legacy).serve_forever()
    else:
        sdk("sse" if kind == "sse" else "streamable-http", port)
