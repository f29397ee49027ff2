"""The HTTP server on the wire: what HTTP/1.1 wants, and the limits of heads, bodies, connections and time."""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections.abc import AsyncIterator

import pytest
import trio
from starlette.types import Receive, Scope, Send

from proto.wire.front import Http
from services.front.transport import http_server


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Returns the body, for `/stream` in pieces; `/unread` reads nothing; `/gone` waits for the client to leave.

    `/of/KEY` stands for a request with the token of that key.
    """
    key = scope["path"].removeprefix("/of/")
    if key != scope["path"] and not scope[http_server.ADMIT](key):
        await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
        return
    if scope["path"] == "/defect":
        raise RuntimeError("a defect")
    body = b""
    while scope["path"] != "/unread":
        message = await receive()
        if message["type"] == "http.disconnect":
            LEFT.append(scope["path"])
            return
        body += message["body"]
        if not message["more_body"] and scope["path"] != "/gone":
            break
    headers = [] if scope["path"] == "/stream" else [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in (body[:3], body[3:]) if scope["path"] == "/stream" else (body,):
        await send({"type": "http.response.body", "body": piece, "more_body": scope["path"] == "/stream"})
    if scope["path"] == "/stream":
        await send({"type": "http.response.body", "body": b""})


LEFT: list[str] = []


@contextlib.asynccontextmanager
async def served(relay: http_server.Relay | None = None, **limits: float) -> AsyncIterator[tuple[int, trio.Event]]:
    listening = socket.create_server(("127.0.0.1", 0))
    shutdown = trio.Event()

    async def serve(task_status: trio.TaskStatus[None]) -> None:
        settings = Http(**limits)  # type: ignore[arg-type]
        await http_server.serve(echo, settings, listening, shutdown=shutdown.wait, relay=relay, task_status=task_status)

    port = listening.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        yield port, shutdown
        shutdown.set()


async def said(port: int, *pieces: bytes, until: bytes = b"") -> bytes:
    """Return the response to `pieces`, up to the end or up to `until`."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        for piece in pieces:
            await stream.send_all(piece)
            await trio.testing.wait_all_tasks_blocked(0.01)
        answer = b""
        with trio.fail_after(20):
            while not until or until not in answer:
                try:
                    data = await stream.receive_some(65536)
                except trio.BrokenResourceError:
                    break
                if not data:
                    break
                answer += data
        return answer


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def test_requests_that_were_sent_ahead_are_answered_in_their_order() -> None:
    async with served() as (port, _):
        answer = await said(port, post("/", b"one") + post("/", b"two") + post("/", b"three", "Connection: close"))
        assert [answer.index(word) for word in (b"one", b"two", b"three")] == sorted(
            answer.index(word) for word in (b"one", b"two", b"three")
        )
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == 3


async def test_a_request_may_come_byte_by_byte() -> None:
    async with served() as (port, _):
        request = post("/", b"slow", "Connection: close")
        answer = await said(port, *(request[at : at + 7] for at in range(0, len(request), 7)))
        assert answer.endswith(b"\r\n\r\nslow")


async def test_bodies_in_chunks_both_ways_and_a_client_that_waits_to_be_asked() -> None:
    chunked = b"POST /stream HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
    async with served() as (port, _):
        answer = await said(port, chunked + b"\r\n", b"2\r\nab\r\n", b"3\r\ncde\r\n0\r\n\r\n")
        assert answer.endswith(b"\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(post("/", b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 4"))
            assert await stream.receive_some(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
            await stream.send_all(b"body")
            assert (await stream.receive_some(1000)).endswith(b"body")


async def test_an_old_client_gets_a_body_that_ends_with_its_connection() -> None:
    async with served() as (port, _):
        answer = await said(port, b"POST /stream HTTP/1.0\r\nContent-Length: 5\r\n\r\nabcde")
        assert b"chunked" not in answer
        assert answer.endswith(b"\r\n\r\nabcde")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * http_server.HEAD_BYTES, 431),
        (b"GET /defect HTTP/1.1\r\nHost: x\r\n\r\n", 500),
    ],
)
async def test_invalid_requests_are_refused_and_the_connection_closed(request_: bytes, status: int) -> None:
    async with served() as (port, _):
        assert (await said(port, request_)).startswith(b"HTTP/1.1 %d " % status)
        assert (await said(port, post("/", b"next", "Connection: close"))).endswith(b"next")


async def test_another_protocol_is_declined_by_an_ordinary_answer() -> None:
    async with served() as (port, _):
        asked = b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x05hello"
        answer = await said(port, asked)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"connection: close" in answer


async def test_a_head_or_a_body_that_does_not_come_in_time_ends_its_connection() -> None:
    async with served(header_timeout_s=0.2, body_timeout_s=0.2) as (port, _):
        assert (await said(port, b"GET / HTTP/1.1\r\nHost:")).startswith(b"HTTP/1.1 408 ")
        LEFT.clear()
        late = await said(port, post("/body", b"").replace(b"Length: 0", b"Length: 9") + b"half")
        assert late.startswith(b"HTTP/1.1 408 ")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert LEFT == ["/body"]


async def exchange(stream: trio.SocketStream, sent: bytes) -> bytes:
    """Return the response to `sent` at once."""
    with trio.fail_after(20):
        await stream.send_all(sent)
        return bytes(await stream.receive_some(65536))


async def opened(stack: contextlib.AsyncExitStack, port: int, sent: bytes = b"") -> trio.SocketStream:
    """Open a connection and wait until the server has accepted it; its requests, if any, are answered."""
    stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
    if sent:
        assert (await exchange(stream, sent)).startswith(b"HTTP/1.1 200 ")
    await trio.testing.wait_all_tasks_blocked(0.01)
    return stream


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_peer"])
async def test_connections_without_a_token_yield_to_newer_ones_and_those_with_one_do_not(limit: str) -> None:
    async with served(None, **{limit: 3}) as (port, _), contextlib.AsyncExitStack() as stack:
        with_token = await opened(stack, port, post("/of/a", b"mine"))
        oldest, *others = [await opened(stack, port) for _ in range(2 if limit == "max_connections" else 3)]
        newest = await opened(stack, port, post("/", b"new"))
        assert await oldest.receive_some(1) == b""
        for stream in (with_token, newest, *others):
            assert (await exchange(stream, post("/", b"still"))).endswith(b"still")


async def test_connection_that_is_answered_yields_after_idle_ones() -> None:
    async with served(max_connections=2) as (port, _), contextlib.AsyncExitStack() as stack:
        answered = await opened(stack, port)
        await answered.send_all(post("/", b"").replace(b"Length: 0", b"Length: 4"))
        await trio.testing.wait_all_tasks_blocked(0.01)
        idle = await opened(stack, port)
        await opened(stack, port)
        assert await idle.receive_some(1) == b""
        assert (await exchange(answered, b"done")).endswith(b"done")


async def test_connections_with_tokens_over_the_limit_are_refused_and_others_continue() -> None:
    async with served(max_connections=2) as (port, _), contextlib.AsyncExitStack() as stack:
        one, two = [await opened(stack, port, post(f"/of/{key}", b"mine")) for key in "ab"]
        for _ in range(3):
            refused = await said(port)
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert b"http.max_connections" in refused
        assert (await exchange(one, post("/", b"here"))).endswith(b"here")
        await two.aclose()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (await said(port, post("/", b"again", "Connection: close"))).endswith(b"again")


@pytest.mark.parametrize(("key", "status"), [("a", 503), ("b", 200), ("", 200)])
async def test_one_token_has_only_its_share_of_the_connections(key: str, status: int) -> None:
    async with served(max_connections_per_peer=2) as (port, _), contextlib.AsyncExitStack() as stack:
        first = await opened(stack, port, post("/of/a", b"1"))
        await opened(stack, port, post("/of/a", b"2"))
        third = await opened(stack, port)
        assert (await exchange(third, post(f"/of/{key}", b"3"))).startswith(b"HTTP/1.1 %d " % status)
        # Counted once, however often it asks.
        assert (await exchange(first, post("/of/a", b"4"))).endswith(b"4")
        await first.aclose()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (await said(port, post("/of/a", b"5", "Connection: close"))).endswith(b"5")


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nX: ", b"y"),
        (post("/", b"").replace(b"Length: 0", b"Length: 1000"), b"y"),
        (CHUNKED, b"1\r\ny\r\n"),
        (CHUNKED + b"1;", b"y"),
        (CHUNKED + b"1\r\ny\r\n0\r\nX: ", b"y"),
        (post("/", b"").replace(b"POST", b"GET").replace(b"Length: 0", b"Length: 1000"), b"y"),
    ],
    ids=["head", "body", "chunks", "an extension", "a trailer", "the body of a GET"],
)
async def test_request_that_comes_byte_by_byte_has_a_time_for_all_of_it(
    begun: bytes, piece: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = math.inf
    async with (
        served(header_timeout_s=20, body_timeout_s=30) as (port, _),
        await trio.open_tcp_stream("127.0.0.1", port) as stream,
    ):
        await stream.send_all(begun)
        await trio.testing.wait_all_tasks_blocked(0.01)
        for _ in range(4):
            await stream.send_all(piece)
            await trio.testing.wait_all_tasks_blocked(0.01)
            autojump_clock.jump(9)
        autojump_clock.autojump_threshold = 0.5
        with trio.fail_after(5):
            assert (await stream.receive_some(1000)).startswith(b"HTTP/1.1 408 ")


async def test_long_body_has_the_time_that_it_takes_at_the_slowest_rate(autojump_clock: trio.testing.MockClock) -> None:
    autojump_clock.autojump_threshold = math.inf
    piece = b"x" * 10 * http_server.SLOWEST_BYTES_PER_S
    async with served(body_timeout_s=30) as (port, _), await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(post("/", piece * 10 + b"x")[: -len(piece) * 10 - 1])
        for _ in range(10):
            await stream.send_all(piece)
            await trio.testing.wait_all_tasks_blocked(0.01)
            autojump_clock.jump(9)
        assert (await exchange(stream, b"x")).startswith(b"HTTP/1.1 200 ")


async def test_a_client_that_leaves_is_noticed_while_it_is_served() -> None:
    async with served() as (port, _):
        LEFT.clear()
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(post("/gone", b""))
            await trio.testing.wait_all_tasks_blocked(0.05)
        with trio.fail_after(10):
            while LEFT != ["/gone"]:
                await trio.testing.wait_all_tasks_blocked(0.01)


async def test_a_body_that_nobody_reads_does_not_reset_the_answer() -> None:
    async with served() as (port, _):
        assert (await said(port, post("/unread", b"x" * 1_000_000))).startswith(b"HTTP/1.1 200 ")


async def test_the_end_closes_idle_connections_and_answers_what_is_in_flight() -> None:
    async with (
        served() as (port, shutdown),
        await trio.open_tcp_stream("127.0.0.1", port) as idle,
        await trio.open_tcp_stream("127.0.0.1", port) as busy,
    ):
        await busy.send_all(post("/", b"").replace(b"Length: 0", b"Length: 4"))
        await trio.testing.wait_all_tasks_blocked(0.05)
        shutdown.set()
        assert await idle.receive_some(1) == b""
        await busy.send_all(b"done")
        answer = await busy.receive_some(1000)
        assert b"connection: close" in answer
        assert answer.endswith(b"done")


async def test_an_answer_before_its_bodys_end_says_that_the_connection_closes() -> None:
    """A client that writes head and body each for itself would send its next request into the closing connection."""
    async with served() as (port, _), await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(post("/unread", b"").replace(b"Length: 0", b"Length: 4"))
        assert b"connection: close" in await stream.receive_some(1000)
        await stream.send_all(b"body")
        assert await stream.receive_some(1000) == b""


async def test_an_answer_is_read_though_more_was_sent_after_the_last_request() -> None:
    """Closing with bytes unread would reset the connection, and the answer with it."""
    async with served() as (port, _):
        for _ in range(20):
            answer = await said(port, post("/", b"last", "Connection: close") + b"x" * 300_000)
            assert answer.endswith(b"last")


class Relay:
    """Relays connections between two servers in this process."""

    def __init__(self) -> None:
        self.left, self._taken = trio.open_memory_channel[socket.socket](100)

    async def receive(self) -> socket.socket:
        return await self._taken.receive()

    def pass_on(self, connection: int) -> bool:
        self.left.send_nowait(socket.socket(fileno=os.dup(connection)))
        return True

    def close(self) -> None:
        while self.left.statistics().current_buffer_used:
            self._taken.receive_nowait().close()


async def test_connections_between_two_requests_go_on_at_the_next_server() -> None:
    """The connections are waiting, have sent unread bytes, are being answered, or are new."""
    relay = Relay()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(relay.close)
        port, shutdown = await stack.enter_async_context(served(relay=relay))
        idle, sent, busy, ahead, fresh = [
            await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port)) for _ in range(5)
        ]
        for stream in (idle, sent):
            await stream.send_all(post("/", b"first"))
            await stream.receive_some(1000)
        for stream in (busy, ahead):
            await stream.send_all(post("/", b"").replace(b"Length: 0", b"Length: 4"))
        await trio.testing.wait_all_tasks_blocked(0.05)
        shutdown.set()
        await sent.send_all(post("/", b"at the end"))
        await busy.send_all(b"done")
        await ahead.send_all(b"done" + post("/", b"ahead"))
        for stream in (busy, ahead):
            answer = await stream.receive_some(1000)
            assert b"done" in answer
            assert b"connection: close" not in answer
        await trio.testing.wait_all_tasks_blocked(0.05)
        async with served(relay=relay):
            for stream in (idle, busy, fresh):
                await stream.send_all(post("/", b"next"))
            for stream, text in ((idle, b"next"), (busy, b"next"), (fresh, b"next"), (sent, b"at the end")):
                with trio.fail_after(10):
                    assert (await stream.receive_some(1000)).endswith(text)


async def test_unfinished_requests_are_answered_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "GRACE_S", 0.05)
    async with served() as (port, shutdown), await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(post("/gone", b""))
        await trio.testing.wait_all_tasks_blocked(0.05)
        shutdown.set()
        answer = await stream.receive_some(1000)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"may have been executed" in answer
