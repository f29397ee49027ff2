"""HTTP clients with tokens of a running kernel."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tests.system.answers import message_of
from tests.system.cli.clients import command
from tests.system.running import RunningKernel
from tests.unit.front.wire import META, MODERN


def token_command(kernel: RunningKernel, *arguments: str) -> str:
    """What `linckia token …` prints."""
    done = command(kernel.data_dir, "token", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def create(kernel: RunningKernel, name: str, *limits: str) -> str:
    """The token."""
    return token_command(kernel, "create", name, *limits).strip()


class Answer:
    """Status, headers and body."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        self.text = answer.read().decode("utf-8", "replace")

    @property
    def json(self) -> Any:
        return message_of(self.text)


class HttpClient:
    """One client; without a `token` it sends none."""

    def __init__(self, kernel: RunningKernel, token: str | None) -> None:
        self.address = urlsplit(kernel.status()["http_url"]).netloc
        self.token = token

    @contextlib.contextmanager
    def open(self, method: str, path: str, body: Any = None, **headers: str) -> Iterator[http.client.HTTPResponse]:
        """The response, its body yet to be read."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        sent = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        if self.token is not None:
            sent["authorization"] = f"Bearer {self.token}"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            with connection.getresponse() as response:
                yield response

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        with self.open(method, path, body, **headers) as response:
            return Answer(response)

    def rpc(self, method: str, params: dict[str, Any], *, surface: str = "all") -> Answer:
        """A request of 2026-07-28, which is of no session."""
        named = str(params.get("name", params.get("uri", "")))
        headers = {"mcp_protocol_version": MODERN, "mcp_method": method, **({"mcp_name": named} if named else {})}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **params}}
        return self.request("POST", f"/mcp/{surface}", body, **headers)

    def tool(self, name: str, arguments: dict[str, Any] | None = None, *, surface: str = "all") -> Answer:
        return self.rpc("tools/call", {"name": name, "arguments": arguments or {}}, surface=surface)

    def initialize(self, surface: str = "all") -> str:
        """The id of a new session."""
        params = {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}
        }  # fmt: skip
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        session = self.request("POST", f"/mcp/{surface}", body).headers["mcp-session-id"]
        started = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert self.in_session(session, started, surface).status == 202
        return session

    def in_session(self, session: str, message: dict[str, Any], surface: str = "all") -> Answer:
        headers = {"mcp_session_id": session, "mcp_protocol_version": "2025-11-25"}
        return self.request("POST", f"/mcp/{surface}", message, **headers)
