"""A client and a server with scripted bytes, over real sockets, with the proxy between them."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import trio

from services.transcripts.proxy.relay import MAX_RECORDED_BYTES, Exchange, Relay, Upstream

Answer = Callable[["trio.abc.Stream", "Between"], Awaitable[None]]


@dataclass
class Between:
    """The proxy's address, the bytes that reached the server on each connection, and the recorded turns."""

    port: int = 0
    upstream: str = ""
    seen: list[bytearray] = field(default_factory=list)
    recorded: list[Exchange] = field(default_factory=list)
    left: trio.Event = field(default_factory=trio.Event)
    """Set when a connection of the server's has ended."""

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def say(self, data: bytes, *, piece: int = 0) -> bytes:
        """Send, and all that comes back until the connection is closed."""
        async with await self.connect() as stream, trio.open_nursery() as nursery:
            nursery.start_soon(send_in_pieces, stream, data, piece)
            return await read_all(stream)


async def send_in_pieces(stream: trio.abc.SendStream, data: bytes, piece: int) -> None:
    for start in range(0, len(data), piece or len(data) or 1):
        await stream.send_all(data[start : start + (piece or len(data))])
        await trio.lowlevel.checkpoint()


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    got = bytearray()
    while data := await stream.receive_some():
        got += data
    return bytes(got)


async def read_until(stream: trio.abc.ReceiveStream, seen: bytearray, end: bytes) -> None:
    while not seen.endswith(end):
        data = await stream.receive_some()
        if not data:
            raise AssertionError(f"ended after {bytes(seen)!r}")
        seen += data


def reply_with(response: bytes, *, after: bytes = b"\r\n\r\n", piece: int = 0) -> Answer:
    """A server that answers `response` once it has seen `after`, and closes."""

    async def answer(stream: trio.abc.Stream, between: Between) -> None:
        await read_until(stream, between.seen[-1], after)
        await send_in_pieces(stream, response, piece)

    return answer


@contextlib.asynccontextmanager
async def proxied(
    answer: Answer,
    *,
    path: str = "",
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    max_bytes: int = MAX_RECORDED_BYTES,
) -> AsyncIterator[Between]:
    """The proxy before a server that does as `answer` does; `tls` are the contexts of server and client."""
    between = Between()

    async def serve(stream: trio.abc.Stream) -> None:
        between.seen.append(bytearray())
        try:
            async with stream:
                await answer(stream, between)
        except trio.BrokenResourceError:
            # The proxy left first; tests look at the received bytes.
            await stream.aclose()
        finally:
            between.left.set()

    async def serve_tls(stream: trio.SocketStream) -> None:
        assert tls is not None
        await serve(trio.SSLStream(stream, tls[0], server_side=True, https_compatible=True))

    async with trio.open_nursery() as nursery:
        behind = await nursery.start(trio.serve_tcp, serve if tls is None else serve_tls, 0)
        port = behind[0].socket.getsockname()[1]
        between.upstream = f"localhost:{port}" if tls else f"127.0.0.1:{port}"
        if tls is None:
            upstream = Upstream.parse(f"http://{between.upstream}{path}")
        else:
            upstream = Upstream(
                f"https://{between.upstream}", "localhost", port, tls[1], between.upstream.encode(), b""
            )

        async def relay(stream: trio.SocketStream) -> None:
            await Relay(upstream, between.recorded.append, max_bytes=max_bytes).run(stream)

        front = await nursery.start(trio.serve_tcp, relay, 0)
        between.port = front[0].socket.getsockname()[1]
        with trio.fail_after(20):
            yield between
        nursery.cancel_scope.cancel()
