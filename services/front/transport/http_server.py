"""An HTTP/1.1 server for an ASGI application on trio: parses with llhttp, and limits sizes, times and connections.

Each connection is one task.  Pipelined requests wait unread in the socket.  An orderly shutdown answers the requests in
flight.  An idle connection cannot be closed without a race: its client may be sending a request, and clients do not
repeat a POST on their own (RFC 9112, 9.3.1).  So idle connections are passed on to the next server, unread.
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

from proto.wire.front import Http
from services.front.transport.http_message import WRITE_BYTES, Request, Response

HEAD_BYTES = 64 * 1024
AHEAD_BYTES = 64 * 1024
"""Most bytes of further requests read while one is served; beyond it, a disconnect is noticed only with the answer."""

READ_BYTES = 64 * 1024
WRITE_S = 60.0
"""How long a client may take to read `WRITE_BYTES` of an answer."""

SLOWEST_BYTES_PER_S = 16 * 1024
"""A whole body may take `Http.body_timeout_s` plus its size divided by this rate."""

_WITH_BODY = frozenset({b"POST", b"PUT", b"PATCH"})
"""Methods whose body the application reads."""

KEEP_ALIVE_S = 120.0
"""How long an idle connection is kept, so that clients can pause between calls."""

GRACE_S, LAST_S = 2.5, 0.4
"""How long requests in flight may take at shutdown, and then the error responses to the unfinished ones."""

LINGER_S, LINGER_BYTES = 2.0, 4 * 1024 * 1024
"""How long and how far the server reads before it closes a connection, so that the client gets no reset."""

ADMIT = "linckia.admit"
"""Key in the ASGI scope of a function that the application calls with the key of a client whose token it has checked.
The function returns False if that client has too many connections."""

Owner: TypeAlias = tuple[str, str | None]
"""Identifies the owner whose connections are counted together: (address, None) before a token was checked,
("", key) for a token with a key, and (address, "") for the operator's token, which has no key."""

UNANSWERED = (
    "the request was cancelled before it was answered, because this front is stopping or the token has expired: "
    "it may have been executed; check before you repeat it"
)

_log = logging.getLogger("linckia.http")


class Relay(Protocol):
    """Passes idle connections from one server to the next when the next one takes over."""

    async def receive(self) -> socket.socket:
        """Wait for the next connection from the previous server."""

    def pass_on(self, connection: int) -> bool:
        """Pass on a descriptor; return whether the next server will get it.  The caller closes it."""


async def serve(
    app: ASGIApp,
    settings: Http,
    listening: socket.socket,
    *,
    shutdown: Callable[[], Awaitable[None]],
    relay: Relay | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on `listening` until `shutdown` returns and the requests in flight are answered; then close it.

    Without a `relay`, idle connections are closed at the end.
    """
    server = _Server(app, settings, relay)
    listening.setblocking(False)
    async with trio.open_nursery() as connections:
        with trio.CancelScope() as accepting:
            async with trio.open_nursery() as nursery:
                listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
                nursery.start_soon(partial(trio.serve_listeners, server.serve, [listener], handler_nursery=connections))
                if relay is not None:
                    nursery.start_soon(server.take_over, relay, connections)
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
        """Deadline for the requests in flight at shutdown; infinite before."""
        # Oldest first.
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
        except Exception:  # noqa: BLE001  # a defect in one connection must not end the others
            _log.exception("a connection failed")
        finally:
            self._forget(connection)
            await trio.aclose_forcefully(stream)

    def _make_room(self, owner: Owner) -> bool:
        """Return whether a connection may be added; if there are too many, the oldest without a token is closed."""
        is_full = len(self._connections) >= self.settings.max_connections
        is_many = self._by_owner[owner] >= self.settings.max_connections_per_peer
        if not is_full and not is_many:
            return True
        without_token = (
            each for each in self._connections if each.owner[1] is None and (is_full or each.owner == owner)
        )
        oldest = min(without_token, key=lambda each: each.is_answering, default=None)
        if oldest is None:
            return False
        self._forget(oldest)
        oldest.yielding.cancel()
        return len(self._connections) < self.settings.max_connections

    def admit(self, connection: _Connection, key: str) -> bool:
        """Count the connection for the client with that key, whose token is valid; return False if it has too many."""
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
        """Shut down: pass on idle connections at once, and the others after their answer."""
        self.ends_at = trio.current_time() + GRACE_S
        for connection in self._connections:
            connection.end()


class _Connection:
    """One connection; the parser calls its `on_…` methods."""

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
            # Ignore trailers: they arrive after the headers were checked (RFC 9110, 6.5.1).
            return
        # The parser keeps trailing whitespace, which is not part of the value (RFC 9110, 5.5).
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
        """Read and parse some bytes; return their number, 0 at the end of the input."""
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
        """Parse a request with an Upgrade header again as an ordinary one, because the parser would skip its body."""
        upgrade = self._requests.pop()
        headers = [b"%b: %b\r\n" % header for header in upgrade.headers if header[0] != b"upgrade"]
        version = upgrade.version.encode()
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (upgrade.method, upgrade.target, version, b"".join(headers))
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
        """Wait for the head of the next request and return it; None if the connection ends."""
        with trio.move_on_after(KEEP_ALIVE_S) as idle:
            self._idle = idle
            while self._is_idle and not self._eof:
                if self._server.is_ending:
                    self.end()
                await self._read()
        self._idle = None
        if self._is_idle and idle.cancelled_caught:
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
    def _is_idle(self) -> bool:
        """Whether nothing of the next request has been read."""
        return not self._requests and not self._is_parsing and not self._head_bytes

    @property
    def is_answering(self) -> bool:
        """Whether the application is answering a request of this connection."""
        return self._answering is not None

    def end(self) -> None:
        """End the connection: at once if it is idle, otherwise after the answer."""
        if self._idle is not None:
            self._idle.cancel()
        if self._answering is not None:
            self._answering.deadline = self._server.ends_at
        if self._served is not None and self._server.relay is None:
            self._served.keep_alive = False

    async def refuse(self, status: int, why: str) -> None:
        """Answer with an error and close the connection."""
        body = why.encode()
        response = Response(Request(), self._write)
        form = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
        await response.send({"type": "http.response.start", "status": status, "headers": form})
        await response.send({"type": "http.response.body", "body": body})
        await self._linger()

    async def _answer(self, request: Request) -> bool:
        """Let the application answer the request; return whether the connection can be used again."""
        self._served = request
        response = self._response = Response(request, self._write)
        if request.method not in _WITH_BODY and not await self._skip_body(request):
            return False
        if (scope := self._scope(request)) is None:
            await self.refuse(400, "the target of the request is not a URL")
            return False
        try:
            with trio.CancelScope(deadline=self._server.ends_at) as self._answering:
                await self._server.app(scope, partial(self._receive, request), response.send)
        except Exception:  # noqa: BLE001  # a defect in one request must not end the server
            _log.exception("%s %s failed", request.method.decode(), scope["path"])
            if response.started:
                return False
            await self.refuse(500, "the request failed because of a defect; the log of the front has the details")
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
        """ASGI's `receive`: the body as it arrives, then the disconnect."""
        if not request.chunks and not request.complete:
            await self._read_body(request)
        if request.chunks or (request.complete and not request.end_reported):
            body = b"".join(request.chunks)
            request.chunks.clear()
            request.end_reported = request.complete
            return {"type": "http.request", "body": body, "more_body": not request.complete}
        while not self._eof and self._ahead < AHEAD_BYTES:
            self._ahead += await self._read()
        if not self._eof:
            await trio.sleep_forever()
        return {"type": "http.disconnect"}

    async def _skip_body(self, request: Request) -> bool:
        """Discard the body of a method that has none; return whether the whole request was received."""
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
        """Read a part of the body; refuse the request if its body is incomplete or late."""
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
        """Write to the client; drops the data if it has gone or does not read."""
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
        """Keep reading for a while, because closing while the client sends would reset the connection."""
        if self._gone:
            return
        self._gone = True
        left = LINGER_BYTES
        with contextlib.suppress(trio.BrokenResourceError), trio.move_on_after(LINGER_S):
            await self._stream.send_eof()
            while left > 0 and (data := await self._stream.receive_some(READ_BYTES)):
                left -= len(data)
