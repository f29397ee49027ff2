"""A request to an MCP endpoint: its headers, and its body, which is bounded and counted against its client."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from mcp.server.streamable_http import check_accept_headers
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Receive, Scope, Send

from services.front.long_messages import turn
from services.front.transport.access import ORIGIN
from services.front.transport.fair_limits import LARGE_BYTES, FairLimiter, FairLimits
from services.front.transport.http_sessions import HttpSession

_HANDSHAKE_HEADER_VALUES = frozenset({None, *HANDSHAKE_PROTOCOL_VERSIONS})
"""Values of the protocol version header in revisions with a handshake; the first ones do not have the header."""


class Refused(Exception):
    """The body is refused with the HTTP status `status`."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Body:
    """The body of a request; counts against its client's limits until `done` is called."""

    def __init__(self, limits: FairLimits, client: Hashable, limit: int) -> None:
        self._limits = limits
        self._client = client
        self._limit = limit
        self._counted = 0
        self._acquired: list[tuple[FairLimiter, int]] = []

    async def read(self, receive: Receive, headers: Mapping[bytes, bytes]) -> bytes:
        """Read the whole body, then wait until its client may begin another request.

        Raises:
            Refused: the body is too long (a declared length is checked before reading), or the client has too many
                bodies in flight.
            ClientDisconnect: the body was incomplete; the server has answered that.
        """
        declared = headers.get(b"content-length", b"")
        if declared.isdigit():
            await self._admit(int(declared))
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            if (message := await receive())["type"] != "http.request":
                raise ClientDisconnect
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            await self._admit(size)
            more = message.get("more_body", False)
        await self._acquire(self._limits.small if size <= LARGE_BYTES else self._limits.large)
        await turn(size)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _admit(self, size: int) -> None:
        """Count the body as `size` bytes; a declared length counts at once, so that some bodies complete."""
        if size > self._limit:
            raise Refused(413, f"the body is longer than {self._limit} bytes")
        if size <= LARGE_BYTES or size <= self._counted:
            return
        if not self._counted:
            await self._acquire(self._limits.reading)
        if not self._limits.bodies.reserve(self._client, size - self._counted):
            raise Refused(503, "This client has too many large requests in flight; wait for an answer, then repeat")
        self._counted = size

    async def _acquire(self, limiter: FairLimiter) -> None:
        self._acquired.append((limiter, await limiter.acquire(self._client)))

    def done(self) -> None:
        """Release the limits, because the request is answered."""
        self._limits.bodies.reserve(self._client, -self._counted)
        for limiter, token in self._acquired:
            limiter.release(token)


def client_of(scope: Scope) -> Hashable:
    """Return a key for the client of a request without a session: its grant's owner, or its address."""
    grant = scope[ORIGIN].grant
    return (scope.get("client") or ("",))[0] if grant is None else ("grant", grant.owner)


def name_of(scope: Scope) -> str:
    """Return the name by which services know the client of a request without a session."""
    # As long as the names of HTTP sessions, which local clients cannot use.
    grant = scope[ORIGIN].grant
    # What is kept for a session must not reach the same client with narrower limits.
    client = client_of(scope) if grant is None else ("grant", grant.identity())
    return hashlib.sha256(repr(client).encode()).hexdigest()[:24]


@dataclass
class McpRequest:
    """A request to an MCP endpoint; `version` is the revision in its header, if there is one."""

    scope: Scope
    receive: Receive
    send: Send
    session: HttpSession | None = None
    headers: dict[bytes, bytes] = field(init=False)
    version: str | None = field(init=False)

    def __post_init__(self) -> None:
        self.headers = dict(self.scope["headers"])
        version = self.headers.get(b"mcp-protocol-version")
        self.version = None if version is None else version.decode("latin-1")

    @property
    def client(self) -> Hashable:
        """A key for the client: the session's name, or that of `client_of`."""
        return client_of(self.scope) if self.session is None else self.session.claims.name

    @property
    def own_headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of every response to this request."""
        return [] if self.session is None else [(b"mcp-session-id", self.session.id.encode())]

    @property
    def is_plain(self) -> bool:
        """Whether it has the usual media types, and no repeated header."""
        if self.headers.get(b"content-type", b"").partition(b";")[0].strip() != b"application/json":
            return False
        accepted = {part.partition(b";")[0].strip() for part in self.headers.get(b"accept", b"").split(b",")}
        is_usual = b"*/*" in accepted or {b"application/json", b"text/event-stream"} <= accepted
        return is_usual and len(self.headers) == len(self.scope["headers"])

    @property
    def is_modern(self) -> bool:
        """Whether its header names a revision without a handshake, or an unknown one."""
        return self.version not in _HANDSHAKE_HEADER_VALUES

    @property
    def text_headers(self) -> Headers:
        return Headers(scope=self.scope)

    def form_fault(self) -> tuple[int, str] | None:
        """Return the status and text of the refusal, if the media types of a POST are wrong."""
        if self.is_plain:
            return None
        headers = self.text_headers
        content_type = headers.get("content-type", "")
        if not content_type.lower().startswith("application/json"):
            return 400, "Invalid Content-Type header"
        if not all(check_accept_headers(HttpRequest(self.scope))):
            return 406, "Not Acceptable: Client must accept both application/json and text/event-stream"
        media_types = {part.strip() for part in content_type.partition(";")[0].split(",")}
        if not self.is_modern and "application/json" not in media_types:
            return 415, "Unsupported Media Type: Content-Type must be application/json"
        return None

    async def answer(self, app: ASGIApp) -> None:
        """Let an ASGI application answer the request."""
        await app(self.scope, self.receive, self.send)
