"""The response to one request over HTTP, which is plain JSON or a stream.

It is JSON if the answer is quick and nothing comes before it, and an SSE stream if something does or if it takes long.
A client that goes away withdraws its request.
"""

from __future__ import annotations

import collections
from collections.abc import Awaitable, Callable

import trio
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from starlette.types import Receive, Send

from linckia.services.front.protocol.messages import PARSE_ERROR, Answer

STREAM_AFTER_S = 10.0
"""A request that takes longer is answered by a stream, which can be kept open behind proxies."""

QUICK_S = 0.02
"""Most requests take less; only for the others is a task worth it that watches for the client's leaving."""

PING_S = 15.0

PING = b": ping\r\n\r\n"

BACKLOG = 64
"""Messages that wait for the client to read; beyond it handlers wait."""

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


def event(message: bytes) -> bytes:
    """A message as one event of a stream."""
    return b"event: message\r\ndata: %b\r\n\r\n" % message


async def send_whole(send: Send, status: int, body: bytes, more: list[tuple[bytes, bytes]]) -> None:
    """A response that is JSON, or empty."""
    form = [(b"content-type", b"application/json")] if body else []
    headers = [*form, (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Exchange:
    """The client's end of one request, or of a batch; the `Channel` of what its handlers send."""

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
        """Set if the client goes away before it has its answer."""

    def send(self, message: bytes) -> None:
        """Send a message in the stream that the response then is."""
        self._events.append(event(message))
        self._wake.set()

    def offer(self, message: bytes) -> None:
        """Send a message, unless the client leaves too many unread."""
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
        """Send what `call` answers; the client's leaving cancels it."""
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
            # In 2026-07-28 an error's code decides the status; earlier revisions have 200 once a message is read.
            is_coded = self._modern or answer.code == PARSE_ERROR
            status = ERROR_CODE_HTTP_STATUS.get(answer.code or 0, 200) if is_coded else 200
            await send_whole(self._send, status, answer.message, self._headers)

    async def listen(self) -> None:
        """Stream the messages that are sent, until `end` is called or the client goes away."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope)
            await self._stream()
            nursery.cancel_scope.cancel()

    def end(self) -> None:
        """Nothing more is sent in the stream."""
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
        """From here on the response is a stream, whatever becomes of the request."""
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
