"""Access control for HTTP: the Host and Origin checks, bearer tokens, CORS.

A web page can make a browser send requests to this machine (DNS rebinding).  So the Host must be one of this server's
names, and an Origin header, if there is one, must be allowed.  The kernel's own token allows everything.  A token made
by the operator or by an issuer (`oauth`) has a grant, which limits all calls made for the request.  Requests are
refused before any of the body is read, and refusals are reported to the audit log.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import math
import re
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
import trio
from msgspec import structs
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proto import keys
from proto.errors import LinckiaError
from proto.grants import Token, TokenTable, parse_rate
from proto.keys import HEADER
from proto.operation import CLIENT, operation_of
from proto.ops.kernel import KernelTokens
from proto.origin import Origin
from proto.wire.front import OFF, OWN, Http, is_loopback
from services.front import rate, refusals
from services.front.rate import Limits
from services.front.transport import oauth
from services.front.transport.http_server import ADMIT
from services.front.transport.oauth import Bearer, ResourceServer, Unauthorized
from services.runtime.dispatch import Dispatcher

METHODS = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
_HEADERS = (
    "Origin, Content-Type, Accept, Authorization, Mcp-Session-Id, X-Requested-With, "
    "MCP-Protocol-Version, Mcp-Method, Mcp-Name, Last-Event-ID"
)
_EXPOSED = "Content-Length, Content-Type, Mcp-Session-Id"
_PREFLIGHT_FRESH_S = 86400

_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\[\]:/?#@\s]+))(?::\d{0,5})?")

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/"})
"""Paths that need no token: health checks, which only say up or down, and the page that asks for the token, which
contains no data."""

OPEN_FOLDER = "/page/"
"""The files of the page, which need no token either."""

ORIGIN: Final = "linckia.origin"
"""Member of a request's scope: its `Origin`, without a session."""

TOKEN_KEY: Final = "linckia.token_key"
"""Member of a request's scope: identifies the client's token; not a secret.  Empty for the kernel's own token."""

RETRY_S = 1.0
"""Delay before the kernel is asked again for its tokens after a failure."""


class Tokens:
    """A copy of the operator's tokens, by their hashes; the kernel reports each change, so requests need not ask it.

    `on_revoked` is called with the hashes of tokens that no longer exist.
    """

    def __init__(self) -> None:
        self._by_hash: dict[str, Token] = {}
        self.on_revoked: Callable[[Collection[str]], None] = lambda hashes: None

    def find(self, token: str) -> Token | None:
        """Return the token that a client sent; None if it is unknown or has expired."""
        # A look-up by hash has no timing side channel: its time does not depend on how close a guess is.
        found = self._by_hash.get(hashlib.sha256(token.encode()).hexdigest())
        if found is None or (found.expires is not None and found.expires <= time.time()):
            return None
        return found

    def replace(self, tokens: Collection[Token]) -> None:
        """Replace all tokens."""
        before, self._by_hash = self._by_hash, {token.sha256: token for token in tokens}
        self.on_revoked(before.keys() - self._by_hash.keys())

    async def follow(
        self, dispatcher: Dispatcher, front: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Follow the kernel's tokens until cancelled; started when they are known.  `front` is this process's name."""
        version = 0
        while True:
            try:
                params = KernelTokens(front=front, version=version)
                answer = await dispatcher.call(operation_of(KernelTokens), params, origin=OWN)
            except LinckiaError:
                await trio.sleep(RETRY_S)
                continue
            table = msgspec.convert(answer, TokenTable)
            if table.version != version:
                version = table.version
                self.replace(table.tokens)
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED


class Guard:
    """ASGI middleware that passes allowed requests on and answers all others with an error.

    Args:
        app: answers requests for all paths but those of `endpoints`.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Http,
        tokens: Tokens | None = None,
        issuer: ResourceServer | None = None,
        endpoints: Mapping[str, ASGIApp] = MappingProxyType({}),
    ) -> None:
        self._app = app
        self._endpoints = endpoints
        self._issuer = issuer
        self._limits = Limits()
        self._rate = None if settings.rate is None else parse_rate(settings.rate)
        self._token = settings.token.encode() if settings.token else None
        self._is_open = settings.token == OFF
        self._tokens = tokens or Tokens()
        self._tokens.on_revoked = self._end_revoked
        # Scopes of the requests in flight, by the key of their client's token.
        self._serving: dict[str, set[trio.CancelScope]] = {}
        self._hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._origins = frozenset(origin.rstrip("/") for origin in settings.allowed_origins)
        self._own_host = settings.host.lower()
        # A server bound to all addresses does not know its names; then only the token is checked.
        self._any_host = _is_unspecified(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        peer = scope["client"][0] if scope.get("client") else ""
        # The draft standard writes it as a quoted string; most clients send it bare.
        key = headers.get(HEADER)
        key = "" if key is None else keys.given(key.removeprefix('"').removesuffix('"'))
        scope[ORIGIN] = Origin(CLIENT, "", peer, None, key)
        app: ASGIApp | None = self._refusal(scope, headers, origin)
        if app is None:
            # A page of an allowed origin may read every answer, including errors.
            if origin is not None:
                # Only origins in the settings, and this server's own pages, may use the signed-in user's credentials:
                # a page on another port of this machine belongs to another program.
                trusted = origin in self._origins or origin.partition("://")[2] == headers.get("host")
                send = _with_cors(send, origin if self._is_named_origin(origin) else "*", credentials=trusted)
            app = self._answer_without_token(scope, headers, origin)
        client = Bearer()
        if app is None and scope["path"] not in OPEN_PATHS and not scope["path"].startswith(OPEN_FOLDER):
            try:
                client = Bearer() if self._is_open else await self._authenticate(headers)
                app = self._connection_refusal(client, scope)
            except Unauthorized as error:
                app = self._unauthorized(error, scope, headers)
        scope[TOKEN_KEY] = client.key
        if client.grant is not None:
            scope[ORIGIN] = structs.replace(scope[ORIGIN], grant=client.grant)
        app = app or self._rate_refusal(client, scope)
        if client.grant is not None:
            send = self._with_challenge(send, scope, headers)
        with self._while_valid(client):
            await (app or self._endpoints.get(scope["path"]) or self._app)(scope, receive, send)

    async def _authenticate(self, headers: Headers) -> Bearer:
        """Return the bearer of the request's token.  Raises Unauthorized."""
        scheme, _, token_text = headers.get("authorization", "").partition(" ")
        token_text = token_text.strip()
        if scheme.lower() != "bearer" or not token_text:
            message = "a bearer token is required: Authorization: Bearer TOKEN; `linckia status` shows it"
            raise Unauthorized(message, "invalid_token" if "authorization" in headers else "", description="")
        if self._token is not None and hmac.compare_digest(token_text.encode(), self._token):
            return Bearer()
        if (token := self._tokens.find(token_text)) is not None:
            own_rate = self._rate if token.rate is None else parse_rate(token.rate)
            return Bearer(token.grant, token.sha256, token.expires, own_rate)
        # A token in the form of a JSON Web Token may be the issuer's.
        if self._issuer is not None and token_text.count(".") == 2:
            return (await self._issuer.bearer(token_text))._replace(rate=self._rate)
        message = "this bearer token is unknown to this kernel, has expired or was revoked"
        raise Unauthorized(message, description="the token is not known")

    def _answer_without_token(self, scope: Scope, headers: Headers, origin: str | None) -> Response | None:
        if scope["method"] == "OPTIONS":
            return _preflight(headers, origin)
        if scope["path"].startswith(oauth.WELL_KNOWN):
            if self._issuer is None:
                return _error(404, "this server has no OAuth issuer; it takes bearer tokens of its own")
            path = scope["path"].removeprefix(oauth.WELL_KNOWN).rstrip("/")
            if path != oauth.resource_path(path):
                return _error(404, "unknown resource")
            metadata = self._issuer.metadata(f"{scope['scheme']}://{headers['host']}", path)
            return Response(msgspec.json.encode(metadata), media_type="application/json")
        return None

    def _unauthorized(self, error: Unauthorized, scope: Scope, headers: Headers) -> Response:
        response = _error(error.status, str(error))
        if error.status == 503:
            response.headers["Retry-After"] = "1"
        else:
            response.headers["WWW-Authenticate"] = self._challenge(scope, headers, error.error, error.description)
        _note(scope, error.error or "unauthorized", str(error))
        return response

    def _challenge(self, scope: Scope, headers: Headers, error: str, description: str) -> str:
        """Return the value of `WWW-Authenticate` (RFC 6750, 3)."""
        if self._issuer is None:
            return 'Bearer realm="linckia"' + (f', error="{error}"' if error else "")
        base = f"{scope['scheme']}://{headers['host']}"
        return self._issuer.challenge(base, oauth.resource_path(scope["path"]), error, description)

    def _with_challenge(self, send: Send, scope: Scope, headers: Headers) -> Send:
        """Wrap `send`: a 403 response tells the client which scopes it needs."""

        async def send_with_challenge(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 403:
                challenge = self._challenge(scope, headers, oauth.INSUFFICIENT_SCOPE, "the token does not allow this")
                MutableHeaders(scope=message)["WWW-Authenticate"] = challenge
            await send(message)

        return send_with_challenge

    def _connection_refusal(self, client: Bearer, scope: Scope) -> Response | None:
        """Count the connection as the client's; return an error if the client has too many."""
        if ADMIT not in scope or scope[ADMIT](client.key):
            return None
        return _error(503, "this client has too many connections; see http.max_connections_per_peer")

    def _rate_refusal(self, client: Bearer, scope: Scope) -> Response | None:
        """Count the request; return an error if the client sends far too many."""
        name = "" if client.grant is None else client.grant.name
        limit = None if client.rate is None else self._limits.of(client.key, name, client.rate)
        rate.current.set(limit)
        if limit is None or (wait_s := limit.request()) == 0:
            return None
        response = _error(429, f"{name} exceeds its rate of requests; try again in {wait_s:.1f} s")
        response.headers["Retry-After"] = str(math.ceil(wait_s))
        _note(scope, "rate_limited", "too many requests")
        return response

    @contextlib.contextmanager
    def _while_valid(self, client: Bearer) -> Iterator[None]:
        """Cancel the client's request when its token expires or is revoked."""
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
        for key in keys:
            for scope in self._serving.get(key, ()):
                scope.cancel()

    def _refusal(self, scope: Scope, headers: Headers, origin: str | None) -> Response | None:
        if not self._is_own_host(headers.get("host", "")):
            status, why = 421, "the Host header names another server; see http.allowed_hosts"
        elif origin is not None and "*" not in self._origins and not self._is_named_origin(origin):
            status, why = 403, "this Origin is not allowed; see http.allowed_origins"
        else:
            return None
        _note(scope, "forbidden", why)
        return _error(status, why)

    def _is_own_host(self, host: str) -> bool:
        name = _host_name(host)
        return bool(name) and (
            self._any_host or name == self._own_host or name in self._hosts or "*" in self._hosts or is_loopback(name)
        )

    def _is_named_origin(self, origin: str) -> bool:
        """Whether the origin is this machine's or listed in the settings; `*` does not count as listed."""
        if origin in self._origins:
            return True
        try:
            parts = urllib.parse.urlsplit(origin)
            name = parts.hostname or ""
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and (name == self._own_host or is_loopback(name))


def _note(scope: Scope, outcome: str, why: str) -> None:
    """Report to the audit log that a request was refused."""
    refusals.note(scope[ORIGIN], "http", outcome, why, target=f"{scope['method']} {scope['path']}")


def _preflight(headers: Headers, origin: str | None) -> Response:
    response = Response(status_code=204)
    response.headers["Allow"] = METHODS
    if origin is not None:
        # Allow the requested headers too: the names of `Mcp-Param-…` headers depend on the tool.
        asked = [name.strip() for name in headers.get("access-control-request-headers", "").split(",")]
        common = _HEADERS.lower().split(", ")
        allowed = ", ".join([_HEADERS, *(name for name in asked if name and name.lower() not in common)])
        response.headers["Access-Control-Allow-Methods"] = METHODS
        response.headers["Access-Control-Allow-Headers"] = allowed
        response.headers["Access-Control-Max-Age"] = str(_PREFLIGHT_FRESH_S)
    return response


def _with_cors(send: Send, origin: str, *, credentials: bool) -> Send:
    async def send_with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            if credentials:
                headers["Access-Control-Allow-Credentials"] = "true"
            headers["Access-Control-Expose-Headers"] = _EXPOSED
            headers.add_vary_header("Origin")
        await send(message)

    return send_with_cors


def _error(status: int, message: str) -> Response:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": message[0].upper() + message[1:]}}
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")


def _host_name(host: str) -> str:
    """Return the name in a Host header, without port and brackets; empty if the header is invalid."""
    match = _HOST.fullmatch(host.lower())
    return (match["address"] or match["name"]) if match is not None else ""


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
