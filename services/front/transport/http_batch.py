"""Serves a batch over HTTP: each message is served like a single one, and one response has all answers.

The response is a JSON array.  If a call reports progress, asks the client or takes long, it is a stream instead, with
one event for each answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from starlette.types import Receive, Send

from services.front.protocol import batch
from services.front.protocol.batch import Part
from services.front.protocol.messages import Answer
from services.front.protocol.session import Channel
from services.front.transport.exchange import Exchange, send_whole

Serve = Callable[[Part, Channel, trio.Nursery], Awaitable[Answer | None]]
"""Serves one message; returns its answer, if it has one."""


async def serve_batch(
    body: bytes, serve: Serve, receive: Receive, send: Send, headers: list[tuple[bytes, bytes]]
) -> None:
    """Answer the batch in `body`.

    Args:
        receive: ASGI's `receive` of the request, whose body has been read.
        headers: further headers of the response.
    """
    try:
        parts = batch.parts(body)
    except batch.Refused as error:
        await send_whole(send, 400, error.answer, headers)
        return
    exchange = _BatchExchange(receive, send, headers)

    async def serve_part(part: Part, background: trio.Nursery) -> None:
        answer = part.fault
        if answer is None and (served := await serve(part, exchange, background)) is not None:
            answer = served.message
        if answer is not None:
            exchange.answers.append(answer)
            if exchange.is_stream:
                exchange.flush()

    async def serve_parts(background: trio.Nursery) -> None:
        async with trio.open_nursery() as nursery:
            for part in parts:
                nursery.start_soon(serve_part, part, background)
        if exchange.is_stream:
            exchange.flush()

    await exchange.run(serve_parts)
    if not exchange.is_stream and not exchange.gone.is_set():
        answers = exchange.answers
        await send_whole(send, 200 if answers else 202, batch.joined(answers) if answers else b"", headers)


class _BatchExchange(Exchange):
    """Collects answers for one array, unless the response has become a stream."""

    def __init__(self, receive: Receive, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(receive, send, headers)
        self.answers: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.flush()
        super().send(message)

    def flush(self) -> None:
        answers, self.answers = self.answers, []
        for answer in answers:
            super().send(answer)
