"""A registry of servers on this machine, with the answers of the official one (its OpenAPI of 2025-12-01)."""

from __future__ import annotations

import contextlib
import copy
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

OFFICIAL = "io.modelcontextprotocol.registry/official"


def public(*labels: str) -> str:
    """The address of a public registry."""
    return f"https://{'.'.join(labels)}"


NPM = {
    "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
    "name": "io.github.user/weather",
    "title": "Weather",
    "description": "Weather data and forecasts",
    "version": "1.2.3",
    "repository": {"url": "https://github.com/user/weather", "source": "github"},
    "packages": [
        {
            "registryType": "npm",
            "registryBaseUrl": public("registry", "npmjs", "org"),
            "identifier": "@user/weather-mcp",
            "version": "1.2.3",
            "runtimeHint": "npx",
            "transport": {"type": "stdio"},
            "packageArguments": [
                {"type": "positional", "value": "serve"},
                {"type": "named", "name": "--units", "default": "metric", "choices": ["metric", "imperial"]},
                {"type": "named", "name": "--key={key}", "isRequired": False},
                {"type": "positional", "valueHint": "place", "isRepeated": True, "description": "A place"},
            ],
            "environmentVariables": [
                {"name": "WEATHER_API_KEY", "description": "The key", "isRequired": True, "isSecret": True},
                {"name": "WEATHER_LEVEL", "default": "info"},
            ],
        }
    ],
}
PYPI = {
    "name": "io.github.user/time",
    "description": "The time",
    "version": "0.6.2",
    "packages": [
        {
            "registryType": "pypi",
            "registryBaseUrl": public("pypi", "org"),
            "identifier": "mcp-server-time",
            "version": "2026.10.19",
            "runtimeHint": "uvx",
            "transport": {"type": "stdio"},
            "packageArguments": [{"type": "named", "name": "--local-timezone", "value": "UTC"}],
        }
    ],
}
OCI = {
    "name": "io.github.user/contained",
    "description": "In a container",
    "version": "2.0.0",
    "packages": [
        {
            "registryType": "oci",
            "identifier": "docker.io/user/contained:2.0.0",
            "runtimeHint": "docker",
            "transport": {"type": "stdio"},
            "runtimeArguments": [
                {"type": "named", "name": "--rm"},
                {
                    "type": "named",
                    "name": "--mount",
                    "value": "type=bind,src={source},dst=/data",
                    "isRequired": True,
                    "variables": {"source": {"description": "A folder", "format": "filepath", "isRequired": True}},
                },
            ],
            "environmentVariables": [{"name": "TOKEN", "isSecret": True, "isRequired": True}],
        }
    ],
}
REMOTE = {
    "name": "com.example/analytics",
    "description": "Reports",
    "version": "3.0.0",
    "remotes": [
        {
            "type": "streamable-http",
            "url": "https://{tenant}.example.com/mcp",
            "variables": {"tenant": {"description": "Your tenant", "isRequired": True, "default": "us"}},
            "headers": [
                {
                    "name": "Authorization",
                    "value": "Bearer {api_key}",
                    "isSecret": True,
                    "variables": {"api_key": {"isRequired": True, "isSecret": True}},
                },
                {"name": "X-Region", "choices": ["eu", "us"]},
            ],
        },
        {"type": "sse", "url": "https://us.example.com/sse"},
    ],
}

Change = Callable[[dict[str, Any]], object]


def changed(server: dict[str, Any], change: Change) -> dict[str, Any]:
    """A copy of a server with a change."""
    made = copy.deepcopy(server)
    change(made)
    return made


def entry(server: dict[str, Any], **status: object) -> dict[str, Any]:
    """A server as the registry returns it."""
    own = {"status": "active", "publishedAt": "2025-12-12T08:00:00Z", "updatedAt": "2025-12-12T08:00:00Z"}
    return {"server": server, "_meta": {OFFICIAL: {**own, "isLatest": True, **status}}}


class Registry(ThreadingHTTPServer):
    """Serves entries; `answer`, if set, replaces every answer: it gets the handler."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.entries: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.answer: Callable[[BaseHTTPRequestHandler], None] | None = None
        self.released = threading.Event()
        self.page = 100

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.server.answer is not None:
            self.server.answer(self)
            return
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        place = [unquote(each) for each in parts.path.split("/")]
        if place[1:] == ["v0.1", "servers"]:
            self._list(query)
        elif len(place) == 6 and (place[1:3], place[4]) == (["v0.1", "servers"], "versions"):
            self._one(place[3], place[5])
        else:
            self.reply(404, {"error": "Not found"})

    def _list(self, query: dict[str, str]) -> None:
        found = [each for each in self.server.entries if query.get("search", "") in each["server"].get("name", "")]
        begin = int(query.get("cursor", "0"))
        page = found[begin : begin + self.server.page]
        metadata: dict[str, object] = {"count": len(page)}
        if begin + self.server.page < len(found):
            metadata["nextCursor"] = str(begin + self.server.page)
        self.reply(200, {"servers": page, "metadata": metadata})

    def _one(self, name: str, version: str) -> None:
        for each in self.server.entries:
            if each["server"]["name"] == name and version in ("latest", each["server"]["version"]):
                self.reply(200, each)
                return
        self.reply(404, {"title": "Not Found", "status": 404, "detail": "Server not found"})

    def reply(self, status: int, content: object) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def registry() -> Iterator[Registry]:
    """A registry that runs."""
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()
