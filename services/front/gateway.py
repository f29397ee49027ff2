"""The gateway: the MCP server of every surface, and the state that their clients share.

`services.front.transport.stdio` serves local clients, `services.front.web.serving` serves HTTP clients.  A front that
was not forked from a warm process imports the SDK in a thread, which takes a second.  A client's first message is
answered meanwhile; only requests that need the SDK wait for it.
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

from linckia.proto.approvals import ApprovalSettings, Rules
from linckia.proto.dispatch import Dispatcher
from linckia.proto.errors import InvalidParams
from linckia.proto.front import PATIENCE_S
from linckia.proto.mcp import ListChanged
from linckia.proto.operation import SURFACES, operation_of
from linckia.proto.ops import Table
from linckia.proto.ops.kernel import KernelMounts
from linckia.proto.surfaces.surface import Surface
from linckia.services.front.composite.run import Composites
from linckia.services.front.dispatcher import Events
from linckia.services.front.mounted.mounted import Mounted
from linckia.services.front.prompts import FilePrompts, Folder
from linckia.services.front.protocol.notifier import Notifier
from linckia.services.front.scratchpad import Scratchpads
from linckia.services.front.tasks import LongCalls
from linckia.services.front.tool_search import ToolSearches, ToolVectors, embed_through

if TYPE_CHECKING:
    from linckia.services.front.protocol.server import SurfaceServer

SDK = "linckia.services.front.protocol.dispatch"
"""Importing this module loads the SDK; a forked front has it already."""

FIRST_MESSAGE_S = 0.25
"""How long the import of the SDK waits for the first local client to be answered; both need the interpreter lock."""


class Gateway:
    """The servers of all surfaces; created by `open_gateway`.

    `wanted` is set when the first client arrives.  `opened` is set when the first local client has been answered, or
    when a client needs the SDK.  `loaded` is set when the SDK is loaded.
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
        self.mounted = Mounted(table, self._surfaces, dispatcher, self.notifier.publish)
        self.searches = ToolSearches(ToolVectors(embed_through(dispatcher)))
        self._servers: dict[str, SurfaceServer] = {}
        self.wanted = trio.Event()
        self.opened = trio.Event()
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
            with trio.move_on_after(FIRST_MESSAGE_S):
                await self.opened.wait()
            # In a thread, so that the event loop keeps running, if more slowly.
            await trio.to_thread.run_sync(importlib.import_module, SDK)
        from linckia.services.front.protocol.server import SurfaceServer

        for name, surface in self._surfaces.items():
            self._servers[name] = self._create(surface, SurfaceServer)
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

    def _create(self, surface: Surface, kind: type[SurfaceServer]) -> SurfaceServer:
        long_calls = LongCalls(
            self.dispatcher, surface.mounted_call, self.rules, waits=surface.has_tasks, after_s=self._patience_s
        )
        composites = Composites(long_calls, surface.steps, self.searches, rules=self.rules)
        return kind(
            surface, self.table, composites, self.notifier, self.version, self.scratchpads, self.prompts, self.mounted,
            self.rules,
        )  # fmt: skip

    async def server(self, surface: str) -> SurfaceServer:
        """Wait until the SDK is loaded and return the server of a surface.

        Raises:
            InvalidParams: no surface has this name.
        """
        self.wanted.set()
        self.opened.set()
        found = await self.find(surface)
        await self.loaded.wait()
        if found.name not in self._servers:
            from linckia.services.front.protocol.server import SurfaceServer

            self._servers[found.name] = self._create(found, SurfaceServer)
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
