"""The gateway: every surface's server, and what their clients share.

`services.front.transport.stdio` serves local clients, `services.front.web.serving` the rest.  A front that is started
from nothing loads the SDK beside its event loop, so that a client's first message need not wait for a second of
imports; what needs the SDK waits for it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from linckia.proto.dispatch import Dispatcher
from linckia.proto.errors import InvalidParams
from linckia.proto.mcp import ListChanged
from linckia.proto.operation import SURFACES
from linckia.proto.ops import Table
from linckia.proto.surfaces.surface import Surface
from linckia.services.front.composite.run import Composites
from linckia.services.front.dispatcher import Events
from linckia.services.front.prompts import FilePrompts, Folder
from linckia.services.front.protocol.news import News
from linckia.services.front.scratchpad import Scratchpads

if TYPE_CHECKING:
    from linckia.services.front.protocol.server import SurfaceServer

SDK = "linckia.services.front.protocol.dispatch"
"""The module that loads the SDK; a front that was forked has it already."""

FIRST_MESSAGE_S = 0.25
"""How long loading the SDK waits for a client to be answered first, with which it would share the interpreter."""


class Gateway:
    """Made by `open_gateway`.

    `wanted` is set once there is a client.  `opened` is set when the first local client has been answered, or needs the
    SDK.  `loaded` is set once the SDK is there.
    """

    def __init__(
        self,
        table: Table,
        dispatcher: Dispatcher,
        events: Events,
        nursery: trio.Nursery,
        version: str,
        prompts: FilePrompts,
    ) -> None:
        self.table = table
        self.dispatcher = dispatcher
        self.events = events
        self.version = version
        self.prompts = prompts
        self.scratchpads = Scratchpads()
        self.news = News()
        self._nursery = nursery
        self._surfaces = {name: Surface(name, table) for name in SURFACES}
        self._servers: dict[str, SurfaceServer] = {}
        self.wanted = trio.Event()
        self.opened = trio.Event()
        self.loaded = trio.Event()

    async def load(self) -> None:
        """Load the SDK and make the servers, once a client is there."""
        await self.wanted.wait()
        self.events.on_event(self.news.receive)
        self._nursery.start_soon(self.prompts.watch, partial(self.news.publish, ListChanged(list="prompts")))
        if SDK not in sys.modules:
            with trio.move_on_after(FIRST_MESSAGE_S):
                await self.opened.wait()
            # In a thread: a second in which the event loop goes on, if more slowly.
            await trio.to_thread.run_sync(importlib.import_module, SDK)
        from linckia.services.front.protocol.server import SurfaceServer

        for name, surface in self._surfaces.items():
            composites = Composites(self.dispatcher, surface.steps)
            self._servers[name] = SurfaceServer(
                surface, self.table, composites, self.news, self.version, self.scratchpads, self.prompts
            )
        # What was loaded stays: to look through it for garbage again and again took 80 to 170 ms each time.
        gc.freeze()
        self.loaded.set()

    def surface(self, name: str) -> Surface:
        """
        Raises:
            InvalidParams: there is none of that name.
        """
        surface = self._surfaces.get(name)
        if surface is None:
            raise InvalidParams(f"unknown surface {name!r}; known surfaces: {', '.join(SURFACES)}", field="surface")
        return surface

    async def server(self, surface: str) -> SurfaceServer:
        """The server of a surface, once the SDK is loaded.  Raises InvalidParams: there is none of that name."""
        name = self.surface(surface).name
        self.wanted.set()
        self.opened.set()
        await self.loaded.wait()
        return self._servers[name]


@contextlib.asynccontextmanager
async def open_gateway(
    table: Table, dispatcher: Dispatcher, events: Events, *, version: str, prompt_folders: Sequence[Folder] = ()
) -> AsyncIterator[Gateway]:
    """The gateway to the operations of `table`; its tasks end with the context."""
    async with trio.open_nursery() as nursery:
        gateway = Gateway(table, dispatcher, events, nursery, version, FilePrompts(prompt_folders))
        nursery.start_soon(gateway.load)
        yield gateway
        nursery.cancel_scope.cancel()
