"""A batch over HTTP: each of its messages served as if it had come alone, their answers sent as one response.

That is one JSON array where there is nothing else to say; where a call reports progress or asks the client, or takes
long, it is a stream, in which each answer is an event of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import trio
from starlette.types import Message, Receive, Send

from linckia.services.front.protocol import batch
from linckia.services.front.protocol.batch import Part
from linckia.services.front.protocol.messages import INVALID_REQUEST, error_message
from linckia.services.front.transport.exchange import Exchange, send_whole

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
    exchange = _BatchExchange(receive, send, headers)

    async def serve_parts(_: trio.Nursery) -> None:
        async with trio.open_nursery() as nursery:
            for part in parts:
                if part.fault is not None:
                    exchange.take(part.fault)
                else:
                    own = _PartExchange(part, exchange)
                    nursery.start_soon(serve, part, own.receive, own.send)
        exchange.flush()

    # Nothing is around the call: each part notices by itself that the client has gone.
    await exchange.run(serve_parts, None, trio.CancelScope())
    if not exchange.is_stream and not exchange.gone.is_set():
        answers = exchange.answers
        await send_whole(send, 200 if answers else 202, batch.joined(answers) if answers else b"", headers)


class _BatchExchange(Exchange):
    """Keeps answers for one array, unless the response has become a stream."""

    def __init__(self, receive: Receive, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(receive, send, headers)
        self.answers: list[bytes] = []

    def take(self, message: bytes) -> None:
        """An answer, or what the server has to say before."""
        self.answers.append(message)
        if isinstance(msgspec.json.decode(message, type=_Said).method, str):
            self.say(*self.answers)
            self.answers.clear()
        self.flush()

    def flush(self) -> None:
        if self.is_stream and self.answers:
            self.say(*self.answers)
            self.answers.clear()


class _Said(msgspec.Struct):
    method: object = None


class _PartExchange:
    """The two ends of one message's own exchange, whose body is read already."""

    def __init__(self, part: Part, whole: _BatchExchange) -> None:
        self._request_id = part.request_id
        self._whole = whole
        self._status = 200
        self._is_stream = False
        self._body = b""

    async def receive(self) -> Message:
        await self._whole.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._whole.gone.is_set():
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
                self._whole.take(one)
        elif not message.get("more_body", False) and self._body:
            self._whole.take(self._identified())

    def _identified(self) -> bytes:
        """The answer, with the request's id also where the request was refused before it was looked into."""
        if self._status < 400 or self._request_id is None:
            return self._body
        try:
            answer = msgspec.json.decode(self._body, type=dict[str, object])
        except msgspec.DecodeError:
            return error_message(self._request_id, INVALID_REQUEST, self._body.decode(errors="replace"))
        return msgspec.json.encode({**answer, "id": self._request_id})
