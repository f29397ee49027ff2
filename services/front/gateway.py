"""The gateway: the MCP server of every surface, and the state that their clients share.

`services.front.transport.stdio` serves local clients, `services.front.web.serving` serves HTTP clients.  A front that
was not forked from a warm process imports the SDK in a thread, which takes a second: when a request needs it, or once
the first clients have been served.
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

from proto.approvals import ApprovalSettings, Rules
from proto.errors import InvalidParams
from proto.mcp import ListChanged
from proto.operation import SURFACES, operation_of
from proto.ops import Table
from proto.ops.kernel import KernelMounts
from proto.wire.front import PATIENCE_S
from services.front.composite.run import Composites
from services.front.mounted.mounted import Mounted
from services.front.prompts import FilePrompts, Folder
from services.front.protocol.calls import Events
from services.front.protocol.dispatch import SDK
from services.front.protocol.notifier import Notifier
from services.front.protocol.served import Served
from services.front.scratchpad import Scratchpads
from services.front.surfaces.surface import Surface
from services.front.tasks import LongCalls
from services.front.tool_search import ToolSearches, ToolVectors, embed_through
from services.runtime.dispatch import Dispatcher

if TYPE_CHECKING:
    from services.front.protocol.server import SurfaceServer

SDK_AFTER_S = 5.0
"""How long after the arrival of the first client the SDK is loaded if nothing has needed it: until then, the import
would slow the start of the system and the first answers, which need the same processors and interpreter lock."""


class Gateway:
    """The servers of all surfaces; created by `open_gateway`.

    `wanted` is set when the first client arrives, `needed` when a request needs the SDK, and `loaded` when the SDK is
    loaded.
    """

    def __init__(
        self,
        table: Table,
        dispatcher: Dispatcher,
        events: Events,
        nursery: trio.Nursery,
        version: str,
        prompts: FilePrompts,
        rules: Rules | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        self.table = table
        self.dispatcher = dispatcher
        self.events = events
        self.version = version
        self.rules = rules or Rules(ApprovalSettings())
        self.prompts = prompts
        self.scratchpads = Scratchpads()
        self.notifier = Notifier()
        self._nursery = nursery
        self._surfaces = {name: Surface(name, table) for name in SURFACES}
        for surface in self._surfaces.values():
            surface.rules = self.rules
        self.mounted = Mounted(table, self._surfaces, dispatcher, self.notifier.publish)
        self.searches = ToolSearches(ToolVectors(embed_through(dispatcher)))
        self._served: dict[str, Served] = {}
        self._servers: dict[str, SurfaceServer] = {}
        self.wanted = trio.Event()
        self.needed = trio.Event()
        self.loaded = trio.Event()

    async def load(self) -> None:
        """Wait for the first client, then load the SDK and create the servers."""
        await self.wanted.wait()
        self.events.on_event(self.notifier.receive)
        self.events.on_event(self.mounted.catalogue.receive)
        if operation_of(KernelMounts).name in self.table:
            self._nursery.start_soon(self.mounted.catalogue.run)
        else:
            self.mounted.catalogue.loaded.set()
        self._nursery.start_soon(self.searches.vectors.run)
        self._nursery.start_soon(self.prompts.watch, partial(self.notifier.publish, ListChanged(list="prompts")))
        if SDK not in sys.modules:
            with trio.move_on_after(SDK_AFTER_S):
                await self.needed.wait()
            # In a thread, so that the event loop keeps running, if more slowly.
            await trio.to_thread.run_sync(importlib.import_module, SDK)
        # The modules stay loaded; each garbage collection of their objects took 80 to 170 ms.
        gc.freeze()
        self.loaded.set()

    def surface(self, name: str) -> Surface:
        """Return the surface with this name.

        Raises:
            InvalidParams: no surface has this name.
        """
        surface = self._surfaces.get(name) or self.mounted.find(name)
        if surface is None:
            known = ", ".join((*SURFACES, *self.mounted.catalogue.mounts))
            raise InvalidParams(f"unknown surface {name!r}; known surfaces: {known}", field="surface")
        return surface

    async def find(self, name: str) -> Surface:
        """Like `surface`, but wait until the mounts are known if it may be the name of one."""
        if name not in self._surfaces:
            await self.mounted.complete()
        return self.surface(name)

    def served(self, name: str) -> Served:
        """Return what serves the clients of a surface without the SDK.  Raises InvalidParams, like `surface`."""
        surface = self.surface(name)
        if name not in self._served:
            long_calls = LongCalls(
                self.dispatcher, surface.mounted_call, self.rules, waits=surface.has_tasks, after_s=self._patience_s
            )
            composites = Composites(long_calls, surface.steps, self.searches, rules=self.rules)
            self._served[name] = Served(
                surface, composites, self.dispatcher, self.mounted, self.prompts, self.version, self.rules
            )
        return self._served[name]

    async def server(self, surface: str) -> SurfaceServer:
        """Wait until the SDK is loaded and return the server of a surface.

        Raises:
            InvalidParams: no surface has this name.
        """
        self.wanted.set()
        self.needed.set()
        found = await self.find(surface)
        await self.loaded.wait()
        if found.name not in self._servers:
            from services.front.protocol.server import SurfaceServer

            served = self.served(found.name)
            self._servers[found.name] = SurfaceServer(served, self.table, self.notifier, self.scratchpads)
        return self._servers[found.name]


@contextlib.asynccontextmanager
async def open_gateway(
    table: Table,
    dispatcher: Dispatcher,
    events: Events,
    *,
    version: str,
    prompt_folders: Sequence[Folder] = (),
    rules: Rules | None = None,
    patience_s: float = PATIENCE_S,
) -> AsyncIterator[Gateway]:
    """Open a gateway to the operations of `table`; its tasks end with the context."""
    async with trio.open_nursery() as nursery:
        gateway = Gateway(table, dispatcher, events, nursery, version, FilePrompts(prompt_folders), rules, patience_s)
        nursery.start_soon(gateway.load)
        yield gateway
        nursery.cancel_scope.cancel()
