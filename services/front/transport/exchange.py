"""One ordinary call over HTTP, from its POST to its response.

The response is plain JSON where the call is quick and silent, an SSE stream where it has something to say first or
takes long.  A client that goes away withdraws the call.
"""

from __future__ import annotations

import collections
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import trio
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from starlette.types import Receive, Send

from linckia.proto.json_types import JsonObject
from linckia.services.front.protocol.fast_path import Answer

STREAM_AFTER_S = 10.0
"""A call this long is answered by a stream, which can be kept open behind proxies."""

QUICK_S = 0.02
"""Most calls are over by then; only for the others is it worth a task to watch for the client's leaving."""

PING_S = 15.0

PING = b": ping\r\n\r\n"

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
    """The client end of one call (`services.front.protocol.client_requests.Client`), or of the calls of a batch."""

    def __init__(
        self, receive: Receive, send: Send, headers: list[tuple[bytes, bytes]], *, modern: bool = False,
        # As the client sent them, by MCP; the reader checks their form.
        capabilities: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.modern = modern
        self.capabilities = capabilities
        self._receive = receive
        self._send = send
        self._headers = headers
        self._events: collections.deque[bytes] = collections.deque()
        self._wake = trio.Event()
        self._answered = False
        self._streaming = False
        self._streamed = trio.Event()
        self.gone = trio.Event()
        """Set if the client goes away before it is answered."""

    def notify(self, method: str, params: JsonObject) -> None:
        self.say(msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params}))

    def say(self, *messages: bytes) -> None:
        """Send messages in the stream that the response is then."""
        self._events.extend(map(event, messages))
        self._wake.set()

    async def request(self, method: str, params: JsonObject) -> JsonObject:
        raise AssertionError("operations that ask are not on the fast path")

    @property
    def is_stream(self) -> bool:
        """Whether the response is a stream, or will be."""
        return self._streaming or bool(self._events)

    async def run(
        self,
        call: Callable[[trio.Nursery], Awaitable[Answer | None]],
        cancelled: Answer | None,
        scope: trio.CancelScope,
    ) -> None:
        """Make `call` and send what it answers.

        Args:
            scope: around the call; withdrawing the call cancels it.
            cancelled: the answer to a withdrawn call, in the revisions that want one.
        """
        answer = cancelled
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._attend, nursery, scope)
            with scope:
                answer = await call(nursery)
            self._answered = True
            if self.is_stream:
                self.say(*(() if answer is None else (answer.message,)))
                await self._streamed.wait()
            nursery.cancel_scope.cancel()
        if not self._streaming and not self.gone.is_set() and answer is not None:
            # In 2026-07-28 an error's code decides the status; the revisions before answer it in a stream: 200.
            is_coded = self.modern and answer.code is not None
            status = ERROR_CODE_HTTP_STATUS.get(answer.code or 0, 200) if is_coded else 200
            await send_whole(self._send, status, answer.message, self._headers)

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

    async def _stream(self) -> None:
        """From here on the response is a stream, whatever becomes of the call."""
        self._streaming = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *self._headers]})
        while not self.gone.is_set():
            body = b"".join(self._events)
            self._events.clear()
            last = self._answered
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
