"""What a front does for its first client, done once in the process that fronts are forked from.

The protocol's SDK, pydantic and the schemas of all tools are made ready when they are first used, which takes a third
of a second.  A session is played here through pipes, so that a front that takes a dead one's place need not do it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio

from proto import ops
from proto.errors import Unavailable
from proto.frames import Event
from proto.operation import ALL, SURFACES
from proto.ops import Table

_PLAYED_S = 10.0

_CLIENT = {"name": "rehearsal", "version": "1"}
_MESSAGES: tuple[dict[str, Any], ...] = (
    {
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _CLIENT},
    },
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list", "params": {}},
    {"id": 3, "method": "ping"},
    {"id": 4, "method": "resources/templates/list", "params": {}},
    {"id": 5, "method": "tools/call", "params": {"name": "mcp.echo", "arguments": {"message": ""}}},
    {"id": 6, "method": "no/such", "params": {}},
)


@functools.cache
def declared(ops_modules: tuple[str, ...] = ()) -> Table:
    """All operations, those of these modules among them."""
    return ops.load(ops_modules)


class _Nothing:
    """A dispatcher behind which nobody answers, and that tells of no event."""

    async def call(self, *_: object, **__: object) -> object:
        raise Unavailable("this is a rehearsal")

    def on_event(self, receive: Callable[[Event], Awaitable[None]]) -> None:
        return

    def publish(self, topic: str, body: object) -> None:
        return


async def play_session() -> None:
    """Play the session.  Raises what goes wrong in it, trio.TooSlowError among that."""
    from services.front.gateway import open_gateway

    nothing = _Nothing()
    with trio.fail_after(_PLAYED_S), contextlib.ExitStack() as pipes:
        server_in, client_out = os.pipe()
        client_in, server_out = os.pipe()
        for fd in (server_in, client_in, server_out):
            pipes.callback(os.close, fd)
        os.write(client_out, b"".join(msgspec.json.encode({"jsonrpc": "2.0", **each}) + b"\n" for each in _MESSAGES))
        os.close(client_out)
        async with open_gateway(declared(), nothing, nothing, version="0") as gateway:
            for name in SURFACES:
                surface = (await gateway.server(name)).surface
                _ = surface.listed_tools, surface.listed_resources
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_discard, client_in)
                await gateway.attach(server_in, server_out, ALL)
                nursery.cancel_scope.cancel()


async def _discard(fd: int) -> None:
    os.set_blocking(fd, False)
    while True:
        await trio.lowlevel.wait_readable(fd)
        os.read(fd, 1 << 20)
