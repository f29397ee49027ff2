"""What a front does for its first client, done once in the process that fronts are forked from.

The protocol's SDK, pydantic and the schemas of all tools are made ready when they are first used, which takes a third
of a second.  A session is played here, so that a front that takes a dead one's place need not do it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable

import msgspec
import trio

from proto import ops
from proto.errors import Unavailable
from proto.json_types import JsonObject
from proto.operation import ALL, SURFACES
from proto.ops import Table

_PLAYED_S = 10.0

_OPENING = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "rehearsal", "version": "1"}}
_MESSAGES: tuple[JsonObject, ...] = (
    {"id": 1, "method": "initialize", "params": _OPENING},
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

    def on_event(self, receive: Callable[..., object]) -> None:
        return

    def publish(self, topic: str, body: object) -> None:
        return


async def play_session() -> None:
    """Play the session.  Raises what goes wrong in it, trio.TooSlowError among that."""
    from services.front.gateway import open_gateway

    nothing = _Nothing()
    said = b"".join(msgspec.json.encode({"jsonrpc": "2.0", **each}) + b"\n" for each in _MESSAGES)
    with trio.fail_after(_PLAYED_S), contextlib.ExitStack() as closing:
        server_in, client_out = os.pipe()
        server_out = os.open(os.devnull, os.O_WRONLY)
        for fd in (server_in, server_out):
            closing.callback(os.close, fd)
        os.write(client_out, said)
        os.close(client_out)
        async with open_gateway(declared(), nothing, nothing, version="0") as gateway:
            for name in SURFACES:
                surface = (await gateway.server(name)).surface
                _ = surface.listed_tools, surface.listed_resources
            await gateway.attach(server_in, server_out, ALL)
