"""One HTTP request to an MCP endpoint, and its response.

The body is bounded and counted against its client.  The response is JSON if the answer is quick and no other message
precedes it, otherwise an SSE stream.  If the client disconnects, its request is withdrawn.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field

import trio
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Receive, Scope, Send

from proto.mcp import PARSE_ERROR
from services.front.protocol.messages import Answer, turn
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


STREAM_AFTER_S = 10.0
"""A request that takes longer is answered with a stream, which proxies keep open."""

QUICK_S = 0.02
"""Most requests take less; only slower ones are worth a task that watches for a disconnect."""

PING_S = 15.0
"""Interval of pings in an idle stream."""

PING = b": ping\r\n\r\n"

BACKLOG = 64
"""Messages that the client has not read, above which handlers wait."""

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


def event(message: bytes) -> bytes:
    """Return a message as one event of a stream."""
    return b"event: message\r\ndata: %b\r\n\r\n" % message


async def send_whole(send: Send, status: int, body: bytes, more: list[tuple[bytes, bytes]]) -> None:
    """Send a whole response, JSON or empty."""
    form = [(b"content-type", b"application/json")] if body else []
    headers = [*form, (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Exchange:
    """The response to one request or batch; the `Channel` of messages from its handlers."""

    def __init__(
        self, receive: Receive, send: Send, headers: list[tuple[bytes, bytes]], *, modern: bool = False
    ) -> None:
        self._modern = modern
        self._receive = receive
        self._send = send
        self._headers = headers
        self._events: collections.deque[bytes] = collections.deque()
        self._wake = trio.Event()
        self._taken = trio.Event()
        self._ended = False
        self._streaming = False
        self._streamed = trio.Event()
        self.gone = trio.Event()
        """Set if the client disconnects before it has its answer."""

    def send(self, message: bytes) -> None:
        """Send a message; the response becomes a stream."""
        self._events.append(event(message))
        self._wake.set()

    def offer(self, message: bytes) -> None:
        """Send a message unless the client has too many unread ones."""
        if len(self._events) < BACKLOG:
            self.send(message)

    async def room(self) -> None:
        while len(self._events) >= BACKLOG and not self.gone.is_set():
            await self._taken.wait()

    @property
    def is_stream(self) -> bool:
        """Whether the response is a stream, or will be."""
        return self._streaming or bool(self._events)

    async def run(self, call: Callable[[trio.Nursery], Awaitable[Answer | None]]) -> None:
        """Send the answer that `call` returns; a disconnect cancels `call`."""
        answer = None
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(self._attend, nursery, scope)
                answer = await call(nursery)
            if self.is_stream:
                if answer is not None:
                    self.send(answer.message)
                self.end()
                await self._streamed.wait()
            nursery.cancel_scope.cancel()
        if not self._streaming and not self.gone.is_set() and answer is not None:
            # In 2026-07-28 the error code determines the status; earlier revisions use 200 for all parsed messages.
            is_coded = self._modern or answer.code == PARSE_ERROR
            status = ERROR_CODE_HTTP_STATUS.get(answer.code or 0, 200) if is_coded else 200
            await send_whole(self._send, status, answer.message, self._headers)

    async def listen(self) -> None:
        """Stream messages until `end` is called or the client disconnects."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope)
            await self._stream()
            nursery.cancel_scope.cancel()

    def end(self) -> None:
        """End the stream."""
        self._ended = True
        self._wake.set()

    async def _attend(self, nursery: trio.Nursery, scope: trio.CancelScope) -> None:
        with trio.move_on_after(QUICK_S):
            await self._wake.wait()
        nursery.start_soon(self._watch, scope)
        with trio.move_on_after(STREAM_AFTER_S):
            await self._wake.wait()
        await self._stream()

    async def _watch(self, scope: trio.CancelScope) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone.set()
        scope.cancel()
        self._wake.set()
        self._taken.set()

    async def _stream(self) -> None:
        """Send the response as a stream, whatever happens to the request."""
        self._streaming = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *self._headers]})
        while not self.gone.is_set():
            body = b"".join(self._events)
            self._events.clear()
            self._taken.set()
            self._taken = trio.Event()
            last = self._ended
            self._wake = trio.Event()
            if body or last:
                await self._send({"type": "http.response.body", "body": body, "more_body": not last})
            if last:
                break
            with trio.move_on_after(PING_S) as waited:
                await self._wake.wait()
            if waited.cancelled_caught:
                self._events.append(PING)
        self._streamed.set()
