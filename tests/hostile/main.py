"""The service `hostile`: it runs attacks by name, on its event loop, with no more than any service has."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.runtime.handlers import Context, Environment, Handlers, handles
from tests.hostile import attacks
from tests.hostile.operations import Attack, Outcome


@asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready at once."""
    yield Handlers(Attacking())


class Attacking:
    """Runs one attack a call."""

    @handles(Attack)
    async def attack(self, params: Attack, ctx: Context) -> Outcome:
        try:
            return Outcome(got=getattr(attacks, params.name)(**params.arguments))
        except OSError as error:
            return Outcome(refused=errno.errorcode.get(error.errno or 0, str(error)))
