"""The adapter of one mounted MCP server: a service that runs the server, or connects to it, and speaks MCP with it.

Settings: those of `[mcp.NAME]` (`proto.mounts.MountSettings`), and `mount`, its name.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import trio

from proto.mounts import CHANGE, MountRequest, operations_of, service_of
from proto.wire.frames import Written
from services.mounts.instance import Limits, StartFailed
from services.mounts.link.connections import Connect, to_command
from services.mounts.node.place import folder_of, stand_in
from services.mounts.process.environment import (
    AdapterSettings,
    Secrets,
    SettingProblem,
    command_of,
    environment_of,
    own_caches,
    settings_from,
    size_bytes,
)
from services.mounts.process.processes import kill_leftovers
from services.mounts.remembered import Remembered
from services.mounts.servers import Servers
from services.runtime.ending import ProgramEnded
from services.runtime.handlers import Context, Environment, Handlers

_log = logging.getLogger("linckia.mount")


def warm_up() -> None:
    """Fill the cache of operations' decoders, for all adapters."""
    operations_of("x")


def _connects(settings: AdapterSettings, mark: str, env: Environment) -> list[Connect]:
    """Return the ways to connect, in the order in which they are tried. Raises SettingProblem."""
    secrets = Secrets()
    if settings.command:
        command, cwd = command_of(settings, os.environ, secrets), folder_of(settings.cwd)
        variables = environment_of(settings, os.environ, mark, secrets)
        environment = own_caches(settings, os.environ, env.data_dir) | variables
        if settings.cluster is not None and settings.driver:
            command, environment = stand_in(
                command, environment, settings.env, secret=settings.driver, service=service_of(settings.mount),
                resources=settings.cluster, cwd=settings.cwd, memory_bytes=size_bytes(settings.memory_limit),
                moves=not settings.stateful,
            )  # fmt: skip
            # Its own may be on the node only.
            cwd = folder_of("")
        return [to_command(command, cwd=cwd, environment=environment, redact=secrets.redact, confined=settings.confine)]
    # The SDK takes a third of a second and much memory, which servers here do not need.
    from services.mounts.link.http_links import to_url

    def login(address: str) -> None:
        env.info(login=address)
        env.report()

    return to_url(settings, os.environ, secrets, env.data_dir, login)


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Start the server. Raises ProgramEnded if that fails, whose message is the cause."""
    try:
        servers = await _opened(env)
    except (SettingProblem, StartFailed) as error:
        raise ProgramEnded(str(error)) from None
    handlers = Handlers()
    for kind, operation in operations_of(servers.mount).items():
        handlers.handle_operation(operation, _handler(env, servers, kind))
    try:
        yield handlers
    finally:
        with trio.CancelScope(shield=True):
            await servers.close()


async def _opened(env: Environment) -> Servers:
    """Start the server. Raises SettingProblem or StartFailed."""
    settings = settings_from(env.settings)
    remembered = await trio.to_thread.run_sync(Remembered, env.data_dir)
    if killed := await trio.to_thread.run_sync(kill_leftovers, remembered.state.mark):
        _log.warning("killed %d processes that an earlier server had left", killed)
    limits = Limits(
        memory_bytes=size_bytes(settings.memory_limit),
        timeout_s=settings.timeout,
        start_s=settings.start_timeout,
        roots=tuple(settings.roots),
        # Calls go to another process instead.
        patient=not settings.extra_instances,
    )
    connects = _connects(settings, remembered.state.mark, env)
    servers = Servers(env, settings, connects, limits, remembered, is_local=bool(settings.command))
    await servers.open()
    return servers


def _handler(env: Environment, servers: Servers, kind: str) -> Callable[[MountRequest, Context], Awaitable[Written]]:
    async def answer(request: MountRequest, ctx: Context) -> Written:
        if kind == CHANGE and env.keys is not None:
            # The server does not know the key, so it never gets such a call twice.
            await env.keys.begin()
        return await servers.call(kind, request, ctx)

    return answer
