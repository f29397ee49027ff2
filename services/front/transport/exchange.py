"""The response to one HTTP request, which is plain JSON or a stream.

It is JSON if the answer is quick and no other message precedes it, otherwise an SSE stream.  If the client disconnects,
its request is withdrawn.
"""

from __future__ import annotations

import collections
from collections.abc import Awaitable, Callable

import trio
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from starlette.types import Receive, Send

from services.front.protocol.messages import PARSE_ERROR, Answer

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
