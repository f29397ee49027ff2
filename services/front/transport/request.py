"""A request as an endpoint looks at it: its body, counted and bounded, and its headers."""

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

from linckia.proto import grants
from linckia.services.front.transport.http_sessions import HttpSession
from linckia.services.front.transport.turns import LARGE_BYTES, Shared, Turns

_OF_SESSIONS = frozenset({None, *HANDSHAKE_PROTOCOL_VERSIONS})
"""Values of the header for the revision in requests of revisions with a handshake; the first do not have it."""


class Refused(Exception):
    """The body is refused with the HTTP status `status`."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Body:
    """The body of a request; it counts against its client until the request is answered."""

    def __init__(self, shared: Shared, client: Hashable, limit: int) -> None:
        self._shared = shared
        self._client = client
        self._limit = limit
        self._counted = 0
        self._taken: list[tuple[Turns, int]] = []

    async def read(self, receive: Receive, headers: Mapping[bytes, bytes]) -> bytes:
        """Read the whole body, and wait for its client's turn.

        Raises:
            Refused: it is longer than the limit (a declared length is checked before reading), or the client has too
                many bodies in flight.
            ClientDisconnect: it was cut short; the server has answered that.
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
        await self._take(self._shared.short if size <= LARGE_BYTES else self._shared.long)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _admit(self, size: int) -> None:
        """Count the body as `size` bytes long; a declared length counts at once, so that some bodies complete."""
        if size > self._limit:
            raise Refused(413, f"the body is longer than {self._limit} bytes")
        if size <= LARGE_BYTES or size <= self._counted:
            return
        if not self._counted:
            await self._take(self._shared.reading)
        if not self._shared.bodies.take(self._client, size - self._counted):
            raise Refused(503, "Too much of this client's is in hand; wait for an answer, then repeat")
        self._counted = size

    async def _take(self, turns: Turns) -> None:
        self._taken.append((turns, await turns.take(self._client)))

    def done(self) -> None:
        """The request was answered."""
        self._shared.bodies.take(self._client, -self._counted)
        for turns, number in self._taken:
            turns.give_back(number)


def client_of(scope: Scope) -> Hashable:
    """Identifies the client of a request without a session: by its grant, else by its address."""
    grant = grants.current.get()
    return (scope.get("client") or ("",))[0] if grant is None else ("grant", grant.name)


def name_of(scope: Scope) -> str:
    """The name by which services know the client of a request without a session."""
    # As long as the name of a session over HTTP, so that no local client can take it.
    return hashlib.sha256(repr(client_of(scope)).encode()).hexdigest()[:24]


@dataclass
class McpRequest:
    """A request to one of MCP's endpoints; `version` is the revision that it names, if it names one."""

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
        """Identifies the client."""
        return client_of(self.scope) if self.session is None else self.session.claims.name

    @property
    def own_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that its response has in any case."""
        return [] if self.session is None else [(b"mcp-session-id", self.session.id.encode())]

    @property
    def is_plain(self) -> bool:
        """Whether it names its media types in the usual words, and no header twice."""
        if self.headers.get(b"content-type", b"").partition(b";")[0].strip() != b"application/json":
            return False
        accepted = {part.partition(b";")[0].strip() for part in self.headers.get(b"accept", b"").split(b",")}
        is_usual = b"*/*" in accepted or {b"application/json", b"text/event-stream"} <= accepted
        return is_usual and len(self.headers) == len(self.scope["headers"])

    @property
    def is_modern(self) -> bool:
        """Whether it names a revision without a handshake, or an unknown one."""
        return self.version not in _OF_SESSIONS

    @property
    def text_headers(self) -> Headers:
        return Headers(scope=self.scope)

    def form_fault(self) -> tuple[int, str] | None:
        """The status and the text that refuse a POST for its media types or for a header that occurs twice."""
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
        """Have an ASGI application answer the request."""
        await app(self.scope, self.receive, self.send)
