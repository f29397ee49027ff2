"""A batch over HTTP: each of its messages served as if it had come alone, their answers sent as one response.

That is one JSON array where there is nothing else to say; where a call reports progress or asks the client, or takes
long, it is a stream, in which each answer is an event of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import trio
from starlette.types import Message, Receive, Send

from services.front.protocol import batch
from services.front.protocol.batch import Part
from services.front.protocol.messages import INVALID_REQUEST, error_message
from services.front.transport.exchange import PING, PING_S, STREAM_AFTER_S, STREAM_HEADERS, event, send_whole

Serve = Callable[[Part, Receive, Send], Awaitable[None]]
"""Serves one message that stands for the body of a request."""


async def serve_batch(
    body: bytes, serve: Serve, receive: Receive, send: Send, headers: list[tuple[bytes, bytes]]
) -> None:
    """Answer the batch in `body`.

    Args:
        receive: of the request, whose body is read already.
        headers: for the response, besides those of its form.
    """
    try:
        parts = batch.parts(body)
    except batch.Refused as error:
        await send_whole(send, 400, error.answer, headers)
        return
    response = _Response(send, headers)
    gone = trio.Event()
    async with trio.open_nursery() as beside:
        beside.start_soon(_watch, receive, gone)
        beside.start_soon(response.keep_open)
        async with trio.open_nursery() as nursery:
            for part in parts:
                if part.fault is not None:
                    await response.take(part.fault)
                else:
                    exchange = _PartExchange(part, response, gone)
                    nursery.start_soon(serve, part, exchange.receive, exchange.send)
        beside.cancel_scope.cancel()
    if not gone.is_set():
        await response.finish()


async def _watch(receive: Receive, gone: trio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


class _PartExchange:
    """The two ends of one message's own exchange, whose body is read already."""

    def __init__(self, part: Part, response: _Response, gone: trio.Event) -> None:
        self._request_id = part.request_id
        self._response = response
        self._gone = gone
        self._status = 200
        self._is_stream = False
        self._body = b""

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            content_type = dict(message.get("headers", ())).get(b"content-type", b"")
            self._is_stream = content_type.startswith(b"text/event-stream")
            return
        self._body += message.get("body", b"")
        if self._is_stream:
            said, self._body = batch.events(self._body)
            for one in said:
                await self._response.take(one)
        elif not message.get("more_body", False) and self._body:
            await self._response.take(self._identified())

    def _identified(self) -> bytes:
        """The answer, with the request's id also where the request was refused before it was looked into."""
        if self._status < 400 or self._request_id is None:
            return self._body
        try:
            answer = msgspec.json.decode(self._body, type=dict[str, object])
        except msgspec.DecodeError:
            return error_message(self._request_id, INVALID_REQUEST, self._body.decode(errors="replace"))
        return msgspec.json.encode({**answer, "id": self._request_id})


class _Said(msgspec.Struct):
    method: object = None


class _Response:
    """The one response to them all."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers
        self._answers: list[bytes] = []
        self._streaming = False
        self._turn = trio.Lock()

    async def take(self, message: bytes) -> None:
        """An answer, or what the server has to say before."""
        is_answer = not isinstance(msgspec.json.decode(message, type=_Said).method, str)
        async with self._turn:
            if is_answer and not self._streaming:
                self._answers.append(message)
            else:
                await self._stream(event(message))

    async def _stream(self, body: bytes = b"") -> None:
        if not self._streaming:
            self._streaming = True
            headers = [*STREAM_HEADERS, *self._headers]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            body = b"".join(map(event, self._answers)) + body
        if body:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def keep_open(self) -> None:
        """Until cancelled: a response that takes long is a stream, in which something is said from time to time."""
        await trio.sleep(STREAM_AFTER_S)
        said = b""
        while True:
            async with self._turn:
                await self._stream(said)
            await trio.sleep(PING_S)
            said = PING

    async def finish(self) -> None:
        if self._streaming:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        elif self._answers:
            await send_whole(self._send, 200, batch.joined(self._answers), self._headers)
        else:
            await send_whole(self._send, 202, b"", self._headers)
