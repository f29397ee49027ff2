"""The service `echo`: returns the message it receives. `doctor` and the benchmarks measure with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.echo.operations import Echo, EchoParams
from services.runtime.handlers import Context, Environment, Handlers


@asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service, which is ready at once."""
    handlers = Handlers()

    @handlers.handle(EchoParams)
    async def echo(params: EchoParams, ctx: Context) -> Echo:
        return Echo(message=params.message)

    yield handlers
