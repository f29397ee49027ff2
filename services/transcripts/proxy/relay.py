"""One client's connection and its own connection to the upstream API: bytes are forwarded as they come, both ways.

Requests reach the upstream unchanged except for the host and, if the upstream's address has a path, a path prefix.
Replies go to the client before they are read. Each client has its own upstream connection, so that framing, keep-alive,
trailers, upgrades and the end of either side work as without a proxy. h11 reads copies to find where messages end;
unreadable messages are forwarded too, but not recorded.
"""

from __future__ import annotations

import json
import logging
import re
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11
import trio

log = logging.getLogger("linckia.proxy")

RECEIVE_BYTES = 64 * 1024
MAX_HEAD_BYTES = 256 * 1024
MAX_RECORDED_BYTES = 32 * 1024 * 1024
"""Limit for a request and its reply together; longer ones are forwarded but not recorded."""

CONNECT_TIMEOUT_S = 60.0

_STREAMS = ("text/event-stream", "application/x-ndjson", "application/jsonl")

_HOST = re.compile(rb"(?im)^host:[^\r\n]*")


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where requests go; `prefix` is prepended to their paths."""

    url: str
    host: str
    port: int
    tls: ssl.SSLContext | None
    authority: bytes
    prefix: bytes

    @classmethod
    def parse(cls, url: str) -> Upstream:
        """Parse an address. Raises ValueError if it is not the address of an HTTP server."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the address of an HTTP server; use https://HOST or http://HOST:PORT")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"{url!r}: an upstream address consists of a host and an optional path only")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        if tls is not None:
            tls.set_alpn_protocols(["http/1.1"])
        return cls(
            url=url,
            host=parts.hostname,
            port=parts.port or (443 if tls else 80),
            tls=tls,
            authority=parts.netloc.encode(),
            prefix=parts.path.rstrip("/").encode(),
        )

    async def connect(self) -> trio.abc.Stream:
        """Open a connection. Raises OSError."""
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                if self.tls is None:
                    return await trio.open_tcp_stream(self.host, self.port)
                stream = await trio.open_ssl_over_tcp_stream(
                    self.host, self.port, ssl_context=self.tls, https_compatible=True
                )
                try:
                    await stream.do_handshake()
                except BaseException:
                    await trio.aclose_forcefully(stream)
                    raise
                return stream
        except trio.TooSlowError:
            raise TimeoutError(f"no answer within {CONNECT_TIMEOUT_S:.0f} s") from None
        except trio.BrokenResourceError as error:
            raise OSError(str(error.__cause__ or error)) from error


@dataclass(slots=True)
class Exchange:
    """A request and its reply so far; bodies are without framing but still compressed.

    No other headers are kept, because they contain the client's credentials.
    """

    method: bytes
    path: str
    upgrade: bool
    max_bytes: int
    request: bytearray = field(default_factory=bytearray)
    request_encoding: str = ""
    response: bytearray = field(default_factory=bytearray)
    response_encoding: str = ""
    status: int = 0
    is_stream: bool = False
    partial: bool = False
    """True if the connection broke during the reply."""
    too_long: bool = False
    decided: trio.Event = field(default_factory=trio.Event)
    """Set once the state of the connection after this reply's head is known."""

    def grow(self, body: bytearray, data: bytes | bytearray) -> None:
        """Append a piece to a body, unless both bodies together are too long."""
        if self.too_long:
            return
        if len(self.request) + len(self.response) + len(data) > self.max_bytes:
            self.too_long = True
            self.request.clear()
            self.response.clear()
            return
        body += data


class Relay:
    """A client's connection; `recorded` is called with every complete exchange, and with a stream that broke off."""

    def __init__(
        self, upstream: Upstream, recorded: Callable[[Exchange], None], *, max_bytes: int = MAX_RECORDED_BYTES
    ) -> None:
        self._upstream = upstream
        self._max_bytes = max_bytes
        self._recorded = recorded
        self._waiting: deque[Exchange] = deque()
        self._readable = True
        self._tunnel = False

    async def run(self, client: trio.SocketStream) -> None:
        """Forward until either side has ended."""
        async with client:
            try:
                first = await client.receive_some(RECEIVE_BYTES)
                if not first:
                    return
                try:
                    server = await self._upstream.connect()
                except OSError as error:
                    log.warning("%s cannot be reached: %s", self._upstream.url, error)
                    await _answer_unreachable(client, self._upstream.url, error)
                    return
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._replies, server, client, nursery.cancel_scope)
                        await self._requests(bytes(first), client, server, nursery.cancel_scope)
                finally:
                    self._record_rest()
                    # An orderly shutdown of TLS may wait for the other side.
                    await trio.aclose_forcefully(server)
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                # One side is gone, so the other is closed too.
                log.debug("a connection broke", exc_info=True)

    async def _requests(
        self, first: bytes, client: trio.SocketStream, server: trio.abc.Stream, scope: trio.CancelScope
    ) -> None:
        rest: bytes | None = first
        while rest is not None:
            rest = await self._request(rest, client, server)
        if isinstance(server, trio.SocketStream) and (self._waiting or self._tunnel):
            # The client may have sent everything and wait for the reply.
            await server.send_eof()
        else:
            scope.cancel()

    async def _request(self, data: bytes, client: trio.SocketStream, server: trio.abc.Stream) -> bytes | None:
        """Forward one request that starts with `data`. Returns the bytes after it; None at the end."""
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        held = bytearray(data)
        try:
            parser.receive_data(data)
            while (event := parser.next_event()) is h11.NEED_DATA:
                more = await client.receive_some(RECEIVE_BYTES)
                if not more:
                    if held:
                        await server.send_all(held)
                    return None
                held += more
                parser.receive_data(more)
            if not isinstance(event, h11.Request):
                return await self._raw(held, client, server)
        except h11.RemoteProtocolError:
            return await self._raw(held, client, server)
        left = len(parser.trailing_data[0])
        head, piece = bytes(held[: len(held) - left]), bytes(held[len(held) - left :])
        exchange = _exchange(event, self._max_bytes)
        self._waiting.append(exchange)
        out = self._rewritten(head)
        while True:
            try:
                while isinstance(body := parser.next_event(), h11.Data):
                    exchange.grow(exchange.request, body.data)
            except h11.RemoteProtocolError:
                return await self._raw(out + piece, client, server)
            ended = body is not h11.NEED_DATA
            after = bytes(parser.trailing_data[0]) if ended else b""
            await server.send_all(out + piece[: len(piece) - len(after)])
            if ended:
                break
            out = b""
            piece = bytes(await client.receive_some(RECEIVE_BYTES))
            if not piece:
                return None
            parser.receive_data(piece)
        if exchange.upgrade:
            await exchange.decided.wait()
            if self._tunnel:
                return await self._raw(after, client, server)
        return after or (bytes(await client.receive_some(RECEIVE_BYTES)) or None)

    async def _raw(self, data: bytes | bytearray, client: trio.SocketStream, server: trio.abc.Stream) -> bytes | None:
        """Forward everything without reading it."""
        self._readable, self._tunnel = False, True
        if data:
            await server.send_all(data)
        while more := await client.receive_some(RECEIVE_BYTES):
            await server.send_all(more)
        return None

    def _rewritten(self, head: bytes) -> bytes:
        """Rewrite a request's head for the upstream."""
        line, end, fields = head.partition(b"\n")
        if self._upstream.prefix:
            method, _, rest = line.partition(b" ")
            line = method + b" " + self._upstream.prefix + rest
        authority = self._upstream.authority
        return line + end + _HOST.sub(lambda _: b"Host: " + authority, fields, count=1)

    async def _replies(self, server: trio.abc.Stream, client: trio.SocketStream, scope: trio.CancelScope) -> None:
        parser: h11.Connection | None = None
        while data := bytes(await server.receive_some(RECEIVE_BYTES)):
            # Send to the client first; reading a copy delays at most the next piece.
            try:
                await client.send_all(data)
            finally:
                # A client that left has still been answered so far.
                parser = self._follow(parser, data)
        if parser is not None:
            self._follow(parser, b"", at_end=True)
        scope.cancel()

    def _follow(self, parser: h11.Connection | None, data: bytes, *, at_end: bool = False) -> h11.Connection | None:
        """Read a copy of the reply data. Returns the parser while a reply is incomplete."""
        if not self._readable:
            return None
        try:
            while data or parser is not None:
                if parser is None:
                    if not self._waiting:
                        raise h11.RemoteProtocolError("a reply without a request")
                    parser = _parser_of(self._waiting[0])
                parser.receive_data(data)
                if not self._read(parser, self._waiting[0]):
                    return parser
                data = bytes(parser.trailing_data[0])
                parser = None
                exchange = self._waiting.popleft()
                if not exchange.too_long:
                    self._recorded(exchange)
        except h11.RemoteProtocolError as error:
            if not (at_end and self._waiting and self._waiting[0].is_stream):
                log.warning("a reply cannot be read and is not recorded: %s", error)
                self._readable = False
            for exchange in self._waiting:
                exchange.decided.set()
        return None

    def _record_rest(self) -> None:
        """Record the reply during which the connection broke, if it can be read as far as it came: a stream."""
        exchange = self._waiting[0] if self._waiting else None
        if self._readable and exchange is not None and exchange.is_stream and not exchange.too_long:
            exchange.partial = True
            self._recorded(exchange)

    def _read(self, parser: h11.Connection, exchange: Exchange) -> bool:
        """Return True if the reply is complete."""
        while True:
            match event := parser.next_event():
                case h11.Response():
                    exchange.status = event.status_code
                    exchange.is_stream = _field(event, b"content-type").partition(";")[0].strip().lower() in _STREAMS
                    exchange.response_encoding = _field(event, b"content-encoding")
                    if exchange.method == b"CONNECT" and event.status_code < 300:
                        self._readable, self._tunnel = False, True
                    exchange.decided.set()
                case h11.InformationalResponse() if event.status_code == 101:
                    self._readable, self._tunnel = False, True
                    exchange.decided.set()
                    return False
                case h11.Data():
                    exchange.grow(exchange.response, event.data)
                case h11.EndOfMessage():
                    return True
                case h11.InformationalResponse():
                    continue
                case _:
                    return False


def _exchange(request: h11.Request, max_bytes: int) -> Exchange:
    return Exchange(
        method=request.method,
        # The query may contain a key.
        path=request.target.partition(b"?")[0].decode("latin-1"),
        upgrade=bool(_field(request, b"upgrade")) or request.method == b"CONNECT",
        max_bytes=max_bytes,
        request_encoding=_field(request, b"content-encoding"),
    )


def _field(event: h11.Request | h11.Response, name: bytes) -> str:
    return ",".join(value.decode("latin-1") for key, value in event.headers if key == name)


def _parser_of(exchange: Exchange) -> h11.Connection:
    """Return a parser that knows which request the reply belongs to."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    headers = [("Host", "upstream")]
    if exchange.upgrade:
        headers += [("Connection", "upgrade"), ("Upgrade", "any")]
    parser.send(h11.Request(method=exchange.method, target="/", headers=headers))
    parser.send(h11.EndOfMessage())
    return parser


async def _answer_unreachable(client: trio.SocketStream, url: str, error: OSError) -> None:
    said = {"error": {"type": "proxy_error", "message": f"{url} cannot be reached: {error}"}}
    body = json.dumps(said).encode()
    head = f"HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    await client.send_all(head.encode() + b"Connection: close\r\n\r\n" + body)
    await client.send_eof()
    # Bytes that still arrive must not make the system drop the reply.
    with trio.move_on_after(2):
        while await client.receive_some(RECEIVE_BYTES):
            continue
