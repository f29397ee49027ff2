"""The service `hostile`: runs attacks by name on its event loop with the rights of any service, and writes directly
into its link, bypassing its own loop."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from proto.errors import LinckiaError
from proto.origin import Origin
from proto.wire import frames
from services.runtime.handlers import Context, Environment, Handlers, handles
from tests.fuzz.frames.hostile import VIOLATIONS, Hostile
from tests.hostile import attacks
from tests.hostile.operations import Attack, Break, Invoke, Lie, Outcome, Send


@asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service; it is ready immediately."""
    yield Handlers(Misbehaviour(env))


class Misbehaviour:
    """The handlers of all attacks."""

    def __init__(self, env: Environment) -> None:
        self._outgoing = env.outgoing
        self._link = env.outgoing.channel._link  # a real service must not do this

    async def _send(self, messages: Iterable[bytes]) -> None:
        for message in messages:
            while not self._link.try_send(message):
                await trio.lowlevel.checkpoint()

    @handles(Attack)
    async def attack(self, params: Attack, ctx: Context) -> Outcome:
        try:
            return Outcome(got=getattr(attacks, params.name)(**params.arguments))
        except OSError as error:
            return Outcome(refused=errno.errorcode.get(error.errno or 0, str(error)))

    @handles(Send)
    async def send(self, params: Send, ctx: Context) -> Outcome:
        await self._send(Hostile(params.seed).stream(params.count, violations=0))
        return Outcome()

    @handles(Break)
    async def break_it(self, params: Break, ctx: Context) -> Outcome:
        await self._send(VIOLATIONS[params.how])
        await trio.sleep_forever()

    @handles(Invoke)
    async def invoke(self, params: Invoke, ctx: Context) -> Outcome:
        try:
            await self._outgoing.raw(
                params.op, frames.pack_body(params.params), Origin(self._outgoing.service), limit_s=5
            )
            return Outcome()
        except LinckiaError as error:
            return Outcome(refused=error.failure.kind)

    @handles(Lie)
    async def lie(self, params: Lie, ctx: Context) -> Outcome:
        return [{"got": 1}]  # type: ignore[return-value]  # the wrong type on purpose
