"""The front service: talks to clients.  It parses all untrusted input, so that the kernel does not have to."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from proto import ops
from proto.approvals import Rules
from proto.errors import Unavailable
from proto.json_types import JsonObject
from proto.operation import ALL, SURFACES, Params, operation_of
from proto.ops import Table
from proto.wire.frames import Level
from proto.wire.front import SERVICE, FrontSettings
from services.front import prompts, refusals, scratchpad
from services.front.composite.run import Composites
from services.front.gateway import Gateway, open_gateway
from services.front.handoff import Handoff
from services.front.prompts import Folder
from services.front.protocol.calls import LinkDispatcher
from services.front.refusals import Refusals
from services.front.transport.stdio import attach
from services.runtime.handlers import Context, Environment, Handlers

if TYPE_CHECKING:
    from services.front.transport.http_server import Relay

_PLAYED_S = 10.0

_OPENING = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "rehearsal", "version": "1"}}
_MESSAGES: tuple[JsonObject, ...] = (
    {"id": 1, "method": "initialize", "params": _OPENING},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list", "params": {}},
    {"id": 3, "method": "ping"},
    {"id": 4, "method": "resources/templates/list", "params": {}},
    {"id": 5, "method": "tools/call", "params": {"name": "mcp_echo", "arguments": {"message": ""}}},
    {"id": 6, "method": "no/such", "params": {}},
)

DRAIN_S = 3.0
"""How long local clients' requests in flight may take when this front stops; the next front resumes the rest."""


def warm_up() -> None:
    """Load everything a front needs; runs once, in the process that fronts are forked from."""
    trio.run(_play_session)


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Serve the clients that the kernel hands over."""
    settings = env.settings_as(FrontSettings)
    # The services that the front calls keep the keys.
    env.keys = None
    all_operations = declared(settings.ops_modules)
    reporter = Refusals(env.outgoing)
    refusals.current.set(reporter)
    table = Table(op for op in all_operations.values() if op.service not in settings.unserved)
    rules = Rules(settings.approvals)
    dispatcher = LinkDispatcher(env.outgoing, {**scratchpad.HANDLERS, **prompts.HANDLERS}, rules)
    folders = tuple(Folder.of(folder, env.roots) for folder in settings.prompt_folders)
    async with open_gateway(
        table, dispatcher, env, version=settings.version, prompt_folders=folders, rules=rules,
        patience_s=settings.patience_s,
    ) as gateway:  # fmt: skip

        async def listen(listening: socket.socket, relay: Relay) -> None:
            await gateway.server(ALL)
            from services.front.web.serving import serve

            assert settings.http is not None
            await serve(gateway, dispatcher, all_operations, settings, listening, env.ending, relay, front=env.service)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reporter.run)
            if env.handoff is not None:
                handoff = Handoff(env.handoff, partial(attach, gateway, ending=env.ending), listen)
                nursery.start_soon(handoff.run)
            yield _handlers(gateway, dispatcher, table)
            if env.handoff is not None:
                with trio.move_on_after(DRAIN_S):
                    await handoff.drained()
            nursery.cancel_scope.cancel()


@dataclass(frozen=True)
class _ForwardedRequests:
    """`services.runtime.dispatch.ClientRequests` that passes everything to the caller of the call being served."""

    ctx: Context

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self.ctx.progress(done, total, message)

    def log(self, level: Level, logger: str, message: str) -> None:
        self.ctx.log(level, message)

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        return await self.ctx.ask_client(method, params)


def _handlers(gateway: Gateway, dispatcher: LinkDispatcher, table: Table) -> Handlers:
    """Handlers of the front's own operations for the command line and for services; they return ordinary data."""
    handlers = Handlers()
    steps = gateway.surface(ALL).steps

    def register(params: type[Params[Any]]) -> None:
        @handlers.handle(params)
        async def answer(request: Params[Any], ctx: Context) -> object:
            # Tools of mounted servers are known only once somebody wants them.
            gateway.wanted.set()
            await gateway.mounted.complete()
            composites = Composites(dispatcher.for_call(ctx.id), steps, gateway.searches, plain=True)
            client_requests = _ForwardedRequests(ctx)
            return await composites.call(
                operation_of(params), request, origin=ctx.origin, client_requests=client_requests
            )

    for op in table.of_service(SERVICE):
        register(op.params)
    return handlers


@functools.cache
def declared(ops_modules: tuple[str, ...] = ()) -> Table:
    """All operations, including those declared in `ops_modules`."""
    return ops.load(ops_modules)


class _NoServices:
    """A dispatcher whose calls all fail, and an event source without events."""

    async def call(self, *_: object, **__: object) -> object:
        raise Unavailable("this is a rehearsal")

    def on_event(self, receive: Callable[..., object]) -> None:
        return

    def publish(self, topic: str, body: object) -> None:
        return


async def _play_session() -> None:
    """Run one client session, to initialize what is initialized on first use.

    For the MCP SDK, pydantic and the schemas of all tools this takes a third of a second.  A front forked from this
    process, to replace a dead one, does not have to repeat it.
    """
    no_services = _NoServices()
    client_input = b"".join(msgspec.json.encode({"jsonrpc": "2.0", **each}) + b"\n" for each in _MESSAGES)
    with trio.fail_after(_PLAYED_S), contextlib.ExitStack() as closing:
        server_in, client_out = os.pipe()
        server_out = os.open(os.devnull, os.O_WRONLY)
        for fd in (server_in, server_out):
            closing.callback(os.close, fd)
        os.write(client_out, client_input)
        os.close(client_out)
        async with open_gateway(declared(), no_services, no_services, version="0") as gateway:
            for name in SURFACES:
                surface = (await gateway.server(name)).surface
                _ = surface.listed_tools, surface.listed_resources
            await attach(gateway, server_in, server_out, ALL)
