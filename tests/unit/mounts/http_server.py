"""MCP servers over HTTP, for tests. Run as a script: `http_server.py legacy|sse|sdk PORT`.

`legacy` is written by hand: Streamable HTTP of 2025-06-18 with sessions. Its tools: `echo`, `forget` (ends all
sessions), `headers`, `drop` (closes the connection without a reply), `pid`, `grants`, `reply` (sends the given body as
the given `type`, with `$id` replaced, and `$ff` by that byte), `halt` (closes it within the body), `block` (waits for a
file `until`). Pings are answered as the variable PING says: `drop` (not at all), `refuse`, or once the file of this
name exists. If the variable OAUTH is set, it issues tokens, and requires them; with ISSUER as well, those of that
authorization server. `sdk` is a server of the SDK with the tools `add` and `pid`; `sse` the same over the
older transport.
"""

import json
import os
import sys
import time
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode, urlsplit

ENDPOINTS = (("authorization", "authorize"), ("token", "token"), ("registration", "register"))

sessions: set[str] = set()
issued: set[str] = set()
grants: list[str] = []


def is_granted(given: str) -> bool:
    """Whether a request has a token that is valid: our own, or the issuer's, which is asked."""
    issuer = os.environ.get("ISSUER")
    if not issuer:
        return given in issued
    form = {"token": given.removeprefix("Bearer ") or "none"}
    basic = {"Authorization": "Basic cmVzb3VyY2U6cmVzb3VyY2U="}
    asked = urllib.request.Request(f"{issuer}/token/introspection", urlencode(form).encode(), basic)
    with urllib.request.urlopen(asked) as answer:
        return bool(json.load(answer)["active"])


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.02)


def message_of(body: str) -> dict[str, Any]:
    if body.startswith("{"):
        found: dict[str, Any] = json.loads(body)
        return found
    return {name: values[0] for name, values in parse_qs(body).items()}


class Legacy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        here = f"http://{self.headers['Host']}"
        parts = urlsplit(self.path)
        if not os.environ.get("OAUTH"):
            self.reply(405)
        elif parts.path.startswith("/.well-known/oauth-protected-resource"):
            self.reply(
                200, {"resource": f"{here}/mcp", "authorization_servers": [os.environ.get("ISSUER", f"{here}/")]}
            )
        elif parts.path.startswith("/.well-known/oauth-authorization-server"):
            ends = {f"{name}_endpoint": f"{here}/{path}" for name, path in ENDPOINTS}
            kinds = {"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}
            self.reply(200, {"issuer": f"{here}/", **ends, **kinds})
        elif parts.path == "/authorize":
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            given = urlencode({"code": "the-code", "state": query["state"]})
            self.reply(302, Location=f"{query['redirect_uri']}?{given}")
        else:
            self.reply(405 if parts.path == "/mcp" else 404)

    def issue(self, asked: dict[str, Any]) -> None:
        """Register a client, or issue a token."""
        if self.path == "/register":
            self.reply(201, {**asked, "client_id": "registered"})
            return
        grants.append(asked["grant_type"])
        token = uuid.uuid4().hex
        issued.add(f"Bearer {token}")
        self.reply(200, {"access_token": token, "token_type": "Bearer", "expires_in": 3600, "refresh_token": "again"})

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
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        message = {} if body[:1] != "{" else json.loads(body)
        number, method = message.get("id"), message.get("method")
        if method == "ping" and self.bars_ping():
            return
        if self.path in {"/token", "/register"}:
            self.issue(message_of(body))
        elif os.environ.get("OAUTH") and not is_granted(self.headers.get("Authorization", "")):
            self.reply(401, WWW_Authenticate="Bearer")
        elif not os.environ.get("OAUTH") and self.headers.get("Authorization") != os.environ.get("EXPECTED"):
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
        elif method == "ping":
            self.reply(200, {"jsonrpc": "2.0", "id": number, "result": {}})
        elif method == "tools/list":
            self.reply(
                200, {"jsonrpc": "2.0", "id": number, "result": {"tools": [{"name": "echo", "inputSchema": {}}]}}
            )
        else:
            self.tool(number, message["params"])

    def bars_ping(self) -> bool:
        """Do with a ping what PING says. Returns whether that was all."""
        match os.environ.get("PING", ""):
            case "drop":
                self.close_connection = True
                return True
            case "refuse":
                self.reply(
                    404, {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "Session not found"}}
                )
                return True
            case path if path:
                wait_for(path)
        return False

    def write(self, given: dict[str, str], number: Any, missing: int = 0) -> None:
        body = given["body"].replace("$id", str(number)).encode().replace(b"$ff", b"\xff")
        if given["type"] == "text/event-stream":
            body = b"data: " + body + b"\n\n"
        self.send_response(200)
        self.send_header("Content-Type", given["type"])
        self.send_header("Content-Length", str(len(body) + missing))
        self.end_headers()
        self.wfile.write(body)

    def tool(self, number: Any, params: dict[str, Any]) -> None:
        match params["name"]:
            case "forget":
                sessions.clear()
                said = "forgotten"
            case "headers":
                said = json.dumps(dict(self.headers))
            case "pid":
                said = str(os.getpid())
            case "grants":
                said = json.dumps(grants)
            case "drop":
                self.close_connection = True
                return
            case "block":
                wait_for(params["arguments"]["until"])
                said = "unblocked"
            case "reply":
                self.write(params["arguments"], number)
                return
            case "halt":
                self.write({"type": "application/json", "body": '{"jsonrpc":'}, number, missing=10)
                self.close_connection = True
                return
            case _:
                said = json.dumps(params["arguments"])
        result = {"content": [{"type": "text", "text": said}], "odd": 1}
        self.reply(200, {"jsonrpc": "2.0", "id": number, "result": result})


def sdk(transport: Any, port: int) -> None:
    from mcp.server import MCPServer
    from pydantic import Field

    server = MCPServer("sdk")

    @server.tool()
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    def place(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
        return region

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
