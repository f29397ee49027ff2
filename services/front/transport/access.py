"""Who may talk to the HTTP side: the Host and Origin checks, the bearer token, CORS.

A page in a browser can be made to send requests to this machine (DNS rebinding): so the Host must be a name this server
goes by, and an Origin, where a browser names one, must be allowed.  Off the loopback only the token protects.
Everything is refused before any of the request's body is read.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import urllib.parse

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proto.front import Http

METHODS = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
_HEADERS = (
    "Origin, Content-Type, Accept, Authorization, Mcp-Session-Id, X-Requested-With, "
    "MCP-Protocol-Version, Mcp-Method, Mcp-Name, Last-Event-ID"
)
_EXPOSED = "Content-Length, Content-Type, Mcp-Session-Id"
_PREFLIGHT_FRESH_S = 86400

_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\[\]:/?#@\s]+))(?::\d{0,5})?")

OPEN_PATHS = frozenset({"/health", "/"})
"""Answered without the token: a supervisor of this machine must be able to ask, and learns nothing but up or down; and
a browser must get the page that asks for the token, which holds nothing else."""


class Guard:
    """ASGI middleware: lets a request through to `app`, or answers what is wrong with it."""

    def __init__(self, app: ASGIApp, settings: Http) -> None:
        self._app = app
        self._token = settings.token.encode() if settings.token else None
        self._hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._origins = frozenset(origin.rstrip("/") for origin in settings.allowed_origins)
        self._own_host = settings.host.lower()
        # Bound to every address, it goes by names that cannot be known here; then the token alone decides.
        self._any_host = _is_unspecified(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        app: ASGIApp | None = self._refusal(headers, origin)
        if app is None:
            # A page of an allowed origin may read the answer, whatever it is.
            if origin is not None:
                trusted = origin in self._origins or origin.partition("://")[2] == headers.get("host")
                send = _with_cors(send, origin if self._names_origin(origin) else "*", credentials=trusted)
            app = self._answer_without_app(scope, headers, origin) or self._app
        await app(scope, receive, send)

    def _refusal(self, headers: Headers, origin: str | None) -> Response | None:
        if not self._knows_host(headers.get("host", "")):
            return _error(421, "the Host header names another server; see http.allowed_hosts")
        if origin is not None and not self._allows_origin(origin):
            return _error(403, "this Origin is not allowed; see http.allowed_origins")
        return None

    def _answer_without_app(self, scope: Scope, headers: Headers, origin: str | None) -> Response | None:
        if scope["method"] == "OPTIONS":
            return _preflight(headers, origin)
        if self._token is not None and scope["path"] not in OPEN_PATHS:
            return self._unauthorized(headers.get("authorization"))
        return None

    def _knows_host(self, host: str) -> bool:
        name = _host_name(host)
        return bool(name) and (
            self._any_host or name == self._own_host or name in self._hosts or "*" in self._hosts or _is_loopback(name)
        )

    def _allows_origin(self, origin: str) -> bool:
        return "*" in self._origins or self._names_origin(origin)

    def _names_origin(self, origin: str) -> bool:
        """Whether the origin is this machine's, or one that was named, and not only one of all."""
        if origin in self._origins:
            return True
        try:
            parts = urllib.parse.urlsplit(origin)
            name = parts.hostname or ""
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and (name == self._own_host or _is_loopback(name))

    def _unauthorized(self, authorization: str | None) -> Response | None:
        assert self._token is not None
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token):
            return None
        challenge = 'Bearer realm="linckia"'
        if authorization:
            challenge += ', error="invalid_token"'
        response = _error(401, "a bearer token is required: Authorization: Bearer TOKEN")
        response.headers["WWW-Authenticate"] = challenge
        return response


def _preflight(headers: Headers, origin: str | None) -> Response:
    response = Response(status_code=204)
    response.headers["Allow"] = METHODS
    if origin is not None:
        response.headers["Access-Control-Allow-Methods"] = METHODS
        response.headers["Access-Control-Allow-Headers"] = _headers_allowed(headers)
        response.headers["Access-Control-Max-Age"] = str(_PREFLIGHT_FRESH_S)
    return response


def _headers_allowed(headers: Headers) -> str:
    """The usual ones and those asked for: `Mcp-Param-…` headers are named after parameters, and may be any."""
    asked = [name.strip() for name in headers.get("access-control-request-headers", "").split(",")]
    usual = _HEADERS.lower().split(", ")
    return ", ".join([_HEADERS, *(name for name in asked if name and name.lower() not in usual)])


def _with_cors(send: Send, origin: str, *, credentials: bool) -> Send:
    async def send_with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            _add_cors(headers, origin, credentials=credentials)
        await send(message)

    return send_with_cors


def _add_cors(headers: MutableHeaders, origin: str, *, credentials: bool) -> None:
    # Only what was named, and this server's own pages, may ask with the credentials of the signed-in user: a page of
    # another port of this machine is another program's.
    headers["Access-Control-Allow-Origin"] = origin
    if credentials:
        headers["Access-Control-Allow-Credentials"] = "true"
    headers["Access-Control-Expose-Headers"] = _EXPOSED
    headers.add_vary_header("Origin")


def _error(status: int, message: str) -> Response:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": message[0].upper() + message[1:]}}
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")


def _host_name(host: str) -> str:
    """The name in a Host header, without port and brackets; empty where it is none."""
    match = _HOST.fullmatch(host.lower())
    return (match["address"] or match["name"]) if match is not None else ""


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
