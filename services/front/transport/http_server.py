"""HTTP/1.1 under trio for an ASGI application: parsed by llhttp, bounded in every direction.

A connection is one task.  What a client sends ahead waits unread in its socket.  An orderly end answers what is in
flight.  A connection between two requests cannot be closed without a race: its client may be sending, and does not
repeat a POST by itself (RFC 9112, 9.3.1).  So it is passed on to the server that comes next, unread.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import socket
import urllib.parse
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeAlias

import httptools
import trio
from starlette.types import ASGIApp, Message, Scope

from linckia.proto.front import Http
from linckia.services.front.transport.http_message import WRITE_BYTES, Request, Response

HEAD_BYTES = 64 * 1024
AHEAD_BYTES = 64 * 1024
"""Read of further requests while one is served; beyond it a client that leaves is noticed when it is answered."""

READ_BYTES = 64 * 1024
WRITE_S = 60.0
"""For a client to take `WRITE_BYTES` of an answer."""

SLOWEST_BYTES_PER_S = 16 * 1024
"""A body may take `Http.body_timeout_s` and as long as it takes at this rate, all of it together."""

_WITH_BODY = frozenset({b"POST", b"PUT", b"PATCH"})
"""Methods whose body the application reads."""

KEEP_ALIVE_S = 120.0
"""Clients that pause between calls need not connect again."""

GRACE_S, LAST_S = 2.5, 0.4
"""For requests in flight when the server is told to end, and to answer the others that it has ended."""

LINGER_S, LINGER_BYTES = 2.0, 4 * 1024 * 1024
"""For a client to close a connection that is not used again, so that it reads the answer and not a reset."""

ADMIT = "linckia.admit"
"""In the scope, a function: the application calls it with the key of a client whose token it has checked.  It returns
False if that client has too many connections."""

Owner: TypeAlias = tuple[str, str | None]
"""Whose connections are counted together: an address without a token (None), or a token: its key, or an address with
the operator's token, which has none."""

UNANSWERED = (
    "the request was ended before it was answered, since this front or the token has ended: "
    "it may have been executed; look before you repeat it"
)

_log = logging.getLogger("linckia.http")


class Relay(Protocol):
    """Where connections between two requests come from, and go to, when one server takes over from another."""

    async def receive(self) -> socket.socket:
        """The next one that the server before has passed on; waits for it."""

    def pass_on(self, connection: int) -> bool:
        """Whether the next server will get this descriptor, which stays the caller's to close."""


async def serve(
    app: ASGIApp,
    settings: Http,
    listening: socket.socket,
    *,
    shutdown: Callable[[], Awaitable[None]],
    relay: Relay | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on `listening`, which is closed at the end, until `shutdown` returns and what is in flight is answered.
    Without a `relay`, connections between two requests are closed then."""
    server = _Server(app, settings, relay)
    listening.setblocking(False)
    async with trio.open_nursery() as connections:
        with trio.CancelScope() as accepting:
            async with trio.open_nursery() as beside:
                listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
                beside.start_soon(partial(trio.serve_listeners, server.serve, [listener], handler_nursery=connections))
                if relay is not None:
                    beside.start_soon(server.take_over, relay, connections)
                task_status.started()
                await shutdown()
                accepting.cancel()
        server.end()
        connections.cancel_scope.deadline = server.ends_at + LAST_S


class _Server:
    def __init__(self, app: ASGIApp, settings: Http, relay: Relay | None) -> None:
        self.app = app
        self.settings = settings
        self.relay = relay
        self.ends_at = math.inf
        """By when what is in flight is answered, once this is to end."""
        # The oldest first.
        self._connections: dict[_Connection, None] = {}
        self._by_owner: collections.Counter[Owner] = collections.Counter()

    async def take_over(self, relay: Relay, connections: trio.Nursery) -> None:
        while True:
            connection = await relay.receive()
            connection.setblocking(False)
            connections.start_soon(self.serve, trio.SocketStream(trio.socket.from_stdlib_socket(connection)))

    async def serve(self, stream: trio.SocketStream) -> None:
        try:
            peer = stream.socket.getpeername()[:2]
        except OSError:
            await trio.aclose_forcefully(stream)
            return
        connection = _Connection(self, stream, peer)
        has_room = self._make_room(connection.owner)
        self._connections[connection] = None
        self._by_owner[connection.owner] += 1
        try:
            with connection.yielding:
                if has_room:
                    await connection.serve()
                else:
                    await connection.refuse(503, "too many connections; see http.max_connections")
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            _log.debug("a connection broke", exc_info=True)
        except Exception:  # noqa: BLE001  # one connection's defect must not end the others
            _log.exception("a connection failed")
        finally:
            self._forget(connection)
            await trio.aclose_forcefully(stream)

    def _make_room(self, owner: Owner) -> bool:
        """Whether another connection may be added: where there is no room, the oldest one without a token yields."""
        is_full = len(self._connections) >= self.settings.max_connections
        is_many = self._by_owner[owner] >= self.settings.max_connections_per_peer
        if not is_full and not is_many:
            return True
        without_token = (
            each for each in self._connections if each.owner[1] is None and (is_full or each.owner == owner)
        )
        oldest = min(without_token, key=lambda each: each.is_answered, default=None)
        if oldest is None:
            return False
        self._forget(oldest)
        oldest.yielding.cancel()
        return len(self._connections) < self.settings.max_connections

    def admit(self, connection: _Connection, key: str) -> bool:
        """Count the connection as one of the client with that key, whose token is good; False if it has too many."""
        owner = ("", key) if key else (connection.owner[0], key)
        if owner != connection.owner and connection in self._connections:
            if self._by_owner[owner] >= self.settings.max_connections_per_peer:
                return False
            self._by_owner.subtract([connection.owner])
            self._by_owner[owner] += 1
            connection.owner = owner
        return True

    def _forget(self, connection: _Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._by_owner[connection.owner] -= 1
            if not self._by_owner[connection.owner]:
                del self._by_owner[connection.owner]

    @property
    def is_ending(self) -> bool:
        return self.ends_at < math.inf

    def end(self) -> None:
        """Pass on what is idle, and each other connection after its answer."""
        self.ends_at = trio.current_time() + GRACE_S
        for connection in self._connections:
            connection.end()


class _Connection:
    """One client; the parser calls its `on_…` methods."""

    def __init__(self, server: _Server, stream: trio.SocketStream, peer: tuple[str, int]) -> None:
        self._server = server
        self._stream = stream
        self._peer = peer
        self.owner: Owner = (peer[0], None)
        self.yielding = trio.CancelScope()
        """Cancelled to make room for another connection."""
        self._own = stream.socket.getsockname()[:2]
        self._parser = httptools.HttpRequestParser(self)
        self._requests: collections.deque[Request] = collections.deque()
        self._parsed = Request()
        self._is_parsing = False
        self._head_bytes = 0
        self._ahead = 0
        self._wrong: tuple[int, str] | None = None
        self._eof = False
        self._gone = False
        self._idle: trio.CancelScope | None = None
        self._answering: trio.CancelScope | None = None
        self._served: Request | None = None
        self._response = Response(Request(), self._write)

    def on_message_begin(self) -> None:
        self._parsed, self._is_parsing = Request(), True

    def on_url(self, url: bytes) -> None:
        self._parsed.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._parsed.method:
            # Trailers are no headers: they would come after the checks (RFC 9110, 6.5.1).
            return
        # The parser leaves the blanks that follow a value, which are none of it (RFC 9110, 5.5).
        name, value = name.lower(), value.rstrip(b" \t")
        self._parsed.headers.append((name, value))
        self._parsed.expects |= name == b"expect" and value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        self._parsed.method = self._parser.get_method()
        self._parsed.version = self._parser.get_http_version()
        self._parsed.keep_alive = self._parser.should_keep_alive()
        self._parsed.patience_s = self._server.settings.body_timeout_s
        self._head_bytes = 0
        self._wrong = self._parsed.fault()
        if self._wrong is not None:
            raise ValueError("the head is refused")
        self._requests.append(self._parsed)

    def on_body(self, data: bytes) -> None:
        self._parsed.chunks.append(data)

    def on_message_complete(self) -> None:
        self._parsed.complete, self._is_parsing = True, False

    async def _read(self) -> int:
        """Read and parse some; the number of bytes, 0 at the end of the input or of what can be understood."""
        try:
            data = await self._stream.receive_some(READ_BYTES)
        except trio.BrokenResourceError:
            data = b""
        if not data:
            self._eof = True
            return 0
        if not self._is_parsing or not self._parsed.method:
            self._head_bytes += len(data)
        self._parse(data)
        if self._head_bytes > HEAD_BYTES:
            self._wrong = (431, f"the head of a request is longer than {HEAD_BYTES} bytes")
        if self._wrong is not None:
            self._eof = True
        return len(data)

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._wrong = self._wrong or (400, f"this is not an HTTP request: {error}")

    def _decline(self, rest: bytes) -> None:
        """Read a request that asks for another protocol as an ordinary one: the parser would skip its body."""
        asked = self._requests.pop()
        kept = [b"%b: %b\r\n" % header for header in asked.headers if header[0] != b"upgrade"]
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (asked.method, asked.target, asked.version.encode(), b"".join(kept))
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(head)
        self._requests[-1].keep_alive = False
        self._parse(rest)

    async def serve(self) -> None:
        while (request := await self._next()) is not None:
            self._requests.popleft()
            self._ahead = 0
            if not await self._answer(request):
                await self._linger()
                return
        if self._wrong is not None and not self._gone:
            await self.refuse(*self._wrong)

    async def _next(self) -> Request | None:
        """The next request, once its head is there."""
        with trio.move_on_after(KEEP_ALIVE_S) as idle:
            self._idle = idle
            while self._is_between and not self._eof:
                if self._server.is_ending:
                    self.end()
                await self._read()
        self._idle = None
        if self._is_between and idle.cancelled_caught:
            relay = self._server.relay if self._server.is_ending else None
            if relay is None or not relay.pass_on(self._stream.socket.fileno()):
                await self._linger()
            return None
        with trio.move_on_after(self._server.settings.header_timeout_s) as patience:
            while not self._requests and not self._eof:
                await self._read()
        if patience.cancelled_caught:
            self._wrong = (408, "the head of the request did not come in time; see http.header_timeout_s")
        return self._requests[0] if self._requests else None

    @property
    def _is_between(self) -> bool:
        """Whether nothing of a next request was read."""
        return not self._requests and not self._is_parsing and not self._head_bytes

    @property
    def is_answered(self) -> bool:
        """Whether the application has a request of it."""
        return self._answering is not None

    def end(self) -> None:
        """At once where it is between two requests, else after the answer."""
        if self._idle is not None:
            self._idle.cancel()
        if self._answering is not None:
            self._answering.deadline = self._server.ends_at
        if self._served is not None and self._server.relay is None:
            self._served.keep_alive = False

    async def refuse(self, status: int, why: str) -> None:
        """Answer what cannot be served, and close."""
        body = why.encode()
        response = Response(Request(), self._write)
        form = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
        await response.send({"type": "http.response.start", "status": status, "headers": form})
        await response.send({"type": "http.response.body", "body": body})
        await self._linger()

    async def _answer(self, request: Request) -> bool:
        """Have the application answer; whether the connection can be used again."""
        self._served = request
        response = self._response = Response(request, self._write)
        if request.method not in _WITH_BODY and not await self._pass_over_body(request):
            return False
        if (scope := self._scope(request)) is None:
            await self.refuse(400, "the target of the request is no URL")
            return False
        try:
            with trio.CancelScope(deadline=self._server.ends_at) as self._answering:
                await self._server.app(scope, partial(self._receive, request), response.send)
        except Exception:  # noqa: BLE001  # the edge: one request's defect must not end the connection's server
            _log.exception("%s %s failed", request.method.decode(), scope["path"])
            if response.started:
                return False
            await self.refuse(500, "the request failed by a defect; the log of the front has the details")
            return False
        finally:
            self._answering = None
        if not response.started and not self._eof:
            await self.refuse(503, UNANSWERED)
        return response.complete and request.complete and request.keep_alive and not self._gone

    def _scope(self, request: Request) -> Scope | None:
        try:
            url = httptools.parse_url(request.target)
            path = (url.path or b"/").decode("ascii")
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            return None
        return {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": request.version,
            "method": request.method.decode("latin-1"), "scheme": "http", "path": urllib.parse.unquote(path),
            "raw_path": url.path or b"/", "query_string": url.query or b"", "root_path": "",
            "headers": request.headers, "client": self._peer, "server": self._own,
            ADMIT: partial(self._server.admit, self),
        }  # fmt: skip

    async def _receive(self, request: Request) -> Message:
        """ASGI's `receive`: the body as it comes, and then the client's leaving."""
        if not request.chunks and not request.complete:
            await self._read_body(request)
        if request.chunks or (request.complete and not request.end_told):
            body = b"".join(request.chunks)
            request.chunks.clear()
            request.end_told = request.complete
            return {"type": "http.request", "body": body, "more_body": not request.complete}
        while not self._eof and self._ahead < AHEAD_BYTES:
            self._ahead += await self._read()
        if not self._eof:
            await trio.sleep_forever()
        return {"type": "http.disconnect"}

    async def _pass_over_body(self, request: Request) -> bool:
        """Whether the whole request came, with a body that its method gives no meaning to."""
        size = 0
        while not request.complete and not self._gone:
            await self._read_body(request)
            size += sum(map(len, request.chunks))
            request.chunks.clear()
            if size > HEAD_BYTES:
                await self.refuse(413, f"the body of a {request.method.decode()} is longer than {HEAD_BYTES} bytes")
                return False
        return request.complete

    async def _read_body(self, request: Request) -> None:
        """Read some of a body; one that does not come whole, or not in time, is refused, whatever reads it."""
        if request.expects:
            request.expects = False
            await self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        with trio.move_on_after(request.patience_s) as patience:
            while not request.chunks and not request.complete and not self._eof:
                patience.deadline += await self._read() / SLOWEST_BYTES_PER_S
        request.patience_s = patience.deadline - trio.current_time()
        if request.chunks or request.complete:
            return
        self._eof = True
        late = 408, "the body of the request did not come in time; see http.body_timeout_s"
        short = 400, "the request ended before its body was whole"
        self._wrong = self._wrong or (late if patience.cancelled_caught else short)
        if not self._response.started:
            await self.refuse(*self._wrong)

    async def _write(self, data: bytes) -> None:
        """A client that has gone, or does not read, gets no more."""
        if self._gone:
            return
        try:
            view = memoryview(data)
            for start in range(0, len(data), WRITE_BYTES):
                with trio.fail_after(WRITE_S):
                    await self._stream.send_all(view[start : start + WRITE_BYTES])
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            self._gone = self._eof = True

    async def _linger(self) -> None:
        """Read on for a while: closing while a client still sends would reset the connection under the answer."""
        if self._gone:
            return
        self._gone = True
        left = LINGER_BYTES
        with contextlib.suppress(trio.BrokenResourceError), trio.move_on_after(LINGER_S):
            await self._stream.send_eof()
            while left > 0 and (data := await self._stream.receive_some(READ_BYTES)):
                left -= len(data)
