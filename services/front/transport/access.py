"""Who may talk to the HTTP side: the Host and Origin checks, the bearer token, CORS.

A page in a browser can be made to send requests to this machine (DNS rebinding): so the Host must be a name this server
goes by, and an Origin, where a browser names one, must be allowed.  Off the loopback only the token protects.
Everything is refused before any of the request's body is read.

A token is the kernel's own, for which everything is open, or one that the operator has made, whose grant goes with all
that is called for the request (`proto.grants`).  Once it is revoked or has expired, what is being answered ends too.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import re
import time
import urllib.parse
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from typing import NamedTuple

import msgspec
import trio
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proto import grants
from proto.front import OFF, Http
from proto.grants import Grant
from services.front.transport.tokens import Tokens

METHODS = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
_HEADERS = (
    "Origin, Content-Type, Accept, Authorization, Mcp-Session-Id, X-Requested-With, "
    "MCP-Protocol-Version, Mcp-Method, Mcp-Name, Last-Event-ID"
)
_EXPOSED = "Content-Length, Content-Type, Mcp-Session-Id"
_PREFLIGHT_FRESH_S = 86400

_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\[\]:/?#@\s]+))(?::\d{0,5})?")

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/"})
"""Answered without the token: a supervisor of this machine must be able to ask, and learns nothing but up or down; and
a browser must get the page that asks for the token, which holds nothing else."""


class Client(NamedTuple):
    """Whose request it is."""

    grant: Grant | None = None
    """What it may do; None for all."""
    key: str = ""
    """Of its token, no secret: a session belongs to the key that opened it."""
    expires: float | None = None
    """Seconds since 1970."""


current_key: ContextVar[str] = ContextVar("key", default="")
"""Of the client whose request this task serves."""


class Unauthorized(Exception):
    """The request has no token, or one that is none; the message says what would be right."""


class Guard:
    """ASGI middleware: lets a request through to `app`, or answers what is wrong with it."""

    def __init__(self, app: ASGIApp, settings: Http, tokens: Tokens) -> None:
        self._app = app
        self._token = settings.token.encode() if settings.token else None
        self._is_open = settings.token == OFF
        self._tokens = tokens
        tokens.changed = self._end_revoked
        # What is being answered, by the key of whose it is.
        self._serving: dict[str, set[trio.CancelScope]] = {}
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
            app = _preflight(headers, origin) if scope["method"] == "OPTIONS" else None
        client = Client()
        if app is None and not self._is_open and scope["path"] not in OPEN_PATHS:
            try:
                client = await self.authenticate(headers)
            except Unauthorized as error:
                app = _unauthorized(str(error), invalid="authorization" in headers)
        # Each time, since the requests of a connection share a task.
        current_key.set(client.key)
        grants.current.set(client.grant)
        with self._while_valid(client):
            await (app or self._app)(scope, receive, send)

    async def authenticate(self, headers: Headers) -> Client:
        """Whose request has these headers.  Raises Unauthorized."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip()
        if scheme.lower() != "bearer" or not given:
            raise Unauthorized("a bearer token is required: Authorization: Bearer TOKEN; `linckia status` shows it")
        if self._token is not None and hmac.compare_digest(given.encode(), self._token):
            return Client()
        if (token := self._tokens.find(given)) is not None:
            return Client(token.grant, token.sha256, token.expires)
        raise Unauthorized("this bearer token is none of this kernel's, or it has expired or was revoked")

    @contextlib.contextmanager
    def _while_valid(self, client: Client) -> Iterator[None]:
        """Ends what is served for a client when its token does."""
        if not client.key:
            yield
            return
        with trio.CancelScope() as scope:
            if client.expires is not None:
                scope.deadline = trio.current_time() + client.expires - time.time()
            serving = self._serving.setdefault(client.key, set())
            serving.add(scope)
            try:
                yield
            finally:
                serving.discard(scope)
                if not serving:
                    self._serving.pop(client.key, None)

    def _end_revoked(self, keys: Collection[str]) -> None:
        for key in self._serving.keys() - keys:
            for scope in self._serving[key]:
                scope.cancel()

    def _refusal(self, headers: Headers, origin: str | None) -> Response | None:
        if not self._knows_host(headers.get("host", "")):
            return _error(421, "the Host header names another server; see http.allowed_hosts")
        if origin is not None and not self._allows_origin(origin):
            return _error(403, "this Origin is not allowed; see http.allowed_origins")
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


def _unauthorized(message: str, *, invalid: bool) -> Response:
    response = _error(401, message)
    response.headers["WWW-Authenticate"] = 'Bearer realm="linckia"' + (', error="invalid_token"' if invalid else "")
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
