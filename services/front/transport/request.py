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
    """A body that is not taken; `status` is HTTP's."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Body:
    """The body of a request, counted for its client while it is in hand, and its turn once it is whole."""

    def __init__(self, shared: Shared, client: Hashable, limit: int) -> None:
        self._shared = shared
        self._client = client
        self._limit = limit
        self._counted = 0
        self._taken: list[tuple[Turns, int]] = []

    async def read(self, receive: Receive, headers: Mapping[bytes, bytes]) -> bytes:
        """The whole of it, in its client's turn.

        Raises Refused: it is longer than the limit, which a declared length shows before any of it is read, or one too
        many of its client.  Raises ClientDisconnect: it did not come whole, which the server has answered.
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
        """Whether it may be so long.  What is declared counts at once: of many that come together some are whole."""
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
        """The request is answered."""
        self._shared.bodies.take(self._client, -self._counted)
        for turns, number in self._taken:
            turns.give_back(number)


def client_of(scope: Scope) -> Hashable:
    """Whose a request without a session is, as far as can be told: the grant's, or whose is of that address."""
    grant = grants.current.get()
    return (scope.get("client") or ("",))[0] if grant is None else ("grant", grant.name)


def name_of(scope: Scope) -> str:
    """What services know the client of a request without a session by: as far as it can be told from others."""
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
        """Whose it is."""
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
        """Whether it is of a revision without a handshake, or says so of one that is unknown."""
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
        """Have a response, or another application, answer it."""
        await app(self.scope, self.receive, self.send)
