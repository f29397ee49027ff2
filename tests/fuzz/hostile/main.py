"""The service `hostile`: it speaks past its own loop, straight into its link."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from proto import frames
from proto.errors import LinckiaError
from services.runtime.handlers import Context, Environment, Handlers, handles
from tests.fuzz.frames.hostile import VIOLATIONS, Hostile
from tests.fuzz.hostile.operations import Break, Invoke, Lie, Send, Sent


@asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready at once."""
    yield Handlers(Misbehaviour(env))


class Misbehaviour:
    """All that it does."""

    def __init__(self, env: Environment) -> None:
        self._outgoing = env.outgoing
        self._link = env.outgoing.channel._link  # the very thing that a service must not do

    async def _send(self, messages: Iterable[bytes]) -> int:
        n = 0
        for message in messages:
            while not self._link.try_send(message):
                await trio.lowlevel.checkpoint()
            n += 1
        return n

    @handles(Send)
    async def send(self, params: Send, ctx: Context) -> Sent:
        return Sent(n=await self._send(Hostile(params.seed).stream(params.count, violations=0)))

    @handles(Break)
    async def break_it(self, params: Break, ctx: Context) -> Sent:
        await self._send(VIOLATIONS[params.how])
        await trio.sleep_forever()

    @handles(Invoke)
    async def invoke(self, params: Invoke, ctx: Context) -> Sent:
        try:
            await self._outgoing.raw(params.op, frames.pack_body(params.params), limit_s=5)
        except LinckiaError as error:
            return Sent(failure=error.failure.kind)
        return Sent()

    @handles(Lie)
    async def lie(self, params: Lie, ctx: Context) -> Sent:
        return [{"n": "one"}]  # type: ignore[return-value]  # a lie
