"""The front: what speaks to clients.  It parses everything that comes from outside, so that the kernel need not."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from proto.frames import Level
from proto.front import SERVICE, FrontSettings
from proto.json_types import JsonObject
from proto.operation import ALL, Params, operation_of
from proto.ops import Table
from services.front import prompts, refusals, scratchpad
from services.front.composite.run import Composites
from services.front.dispatcher import LinkDispatcher
from services.front.gateway import Gateway, open_gateway
from services.front.handoff import Handoff
from services.front.prompts import Folder
from services.front.refusals import Refusals
from services.front.warm import declared, play_session
from services.runtime.handlers import Context, Environment, Handlers

if TYPE_CHECKING:
    from services.front.transport.http_server import Relay

DRAIN_S = 3.0
"""For what local clients have in flight when this front is to end; then the next one goes on with it."""


def warm_up() -> None:
    """Once, in the process that fronts are forked from."""
    trio.run(play_session)


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Serve clients as they are handed over."""
    settings = env.settings_as(FrontSettings)
    every = declared(settings.ops_modules)
    told = Refusals(env.outgoing)
    refusals.current.set(told)
    table = Table(op for op in every.values() if op.service not in settings.unserved)
    dispatcher = LinkDispatcher(env.outgoing)
    scratchpad.register(dispatcher.serve_local)
    prompts.register(dispatcher.serve_local)
    folders = tuple(Folder.of(folder, env.roots) for folder in settings.prompt_folders)
    async with open_gateway(table, dispatcher, env, version=settings.version, prompt_folders=folders) as gateway:

        async def listen(listening: socket.socket, relay: Relay) -> None:
            await gateway.server(ALL)
            from services.front.web.serving import serve

            assert settings.http is not None
            await serve(gateway, dispatcher, every, settings, listening, env.ending, relay, front=env.service)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(told.run)
            if env.handoff is not None:
                handoff = Handoff(env.handoff, partial(gateway.attach, ending=env.ending), listen)
                nursery.start_soon(handoff.run)
            yield _handlers(gateway, dispatcher, table)
            if env.handoff is not None:
                with trio.move_on_after(DRAIN_S):
                    await handoff.drained()
            nursery.cancel_scope.cancel()


@dataclass(frozen=True)
class _Caller:
    """`proto.dispatch.ClientRequests` of a call that is being served."""

    ctx: Context

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self.ctx.progress(done, total, message)

    def log(self, level: Level, logger: str, message: str) -> None:
        self.ctx.log(level, message)

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        return await self.ctx.ask_client(method, params)


def _handlers(gateway: Gateway, dispatcher: LinkDispatcher, table: Table) -> Handlers:
    """The front's own operations, for the command line and for services: as ordinary data."""
    handlers = Handlers()
    steps = gateway.surface(ALL).steps

    def register(params: type[Params[Any]]) -> None:
        @handlers.handle(params)
        async def answer(request: Params[Any], ctx: Context) -> object:
            composites = Composites(dispatcher.for_call(ctx.id), steps, plain=True)
            return await composites.call(operation_of(params), request, caller=ctx.caller, client_requests=_Caller(ctx))

    for op in table.of_service(SERVICE):
        register(op.params)
    return handlers
