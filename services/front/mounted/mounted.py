"""The mounted servers of a front: their surfaces, and their tools on the surfaces of Linckia's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Literal

import trio

from linckia.proto.dispatch import Dispatcher
from linckia.proto.mcp import ListChanged, ResourceUpdated
from linckia.proto.operation import ALL, CLIENT, CORE, REFERENCES, Operation
from linckia.proto.ops import Table
from linckia.proto.surfaces.surface import Surface
from linckia.services.front.mounted.catalogue import Catalogue
from linckia.services.front.mounted.listening import Listeners
from linckia.services.front.mounted.names import RESOURCES, MountedNames
from linckia.services.front.mounted.surface import MountSurface

LISTS: tuple[Literal["tools", "resources", "prompts"], ...] = ("tools", "resources", "prompts")

KNOWN_S = 10.0
"""How long a call of an unknown tool waits: after a death of the kernel, the registry starts with all other
services."""

COMPLETE_S = 2.0
"""How long a list waits for what the mounted servers offered last, which takes milliseconds unless the system is just
starting."""

Publish = Callable[[ListChanged | ResourceUpdated, Collection[str] | None], Awaitable[None]]


class Mounted:
    """Shows what mounted servers offer.

    Args:
        own: Linckia's own operations.
        surfaces: Linckia's own surfaces, which are updated when mounts change.
        publish: sends a notice to the clients of some surfaces.
    """

    def __init__(self, own: Table, surfaces: Mapping[str, Surface], dispatcher: Dispatcher, publish: Publish) -> None:
        self._own = own
        self._own_surfaces = surfaces
        self._publish = publish
        self._taken = _taken(own)
        self._tools: list[Operation[object]] = []
        self.names = MountedNames()
        self.surfaces: dict[str, MountSurface] = {}
        """Surfaces of mounts, by name; those of removed mounts stay, for clients that still use them."""
        self.catalogue = Catalogue(dispatcher, self)
        self.listeners = Listeners(dispatcher)

    def is_complete(self) -> bool:
        """Whether the lists have everything that mounted servers offered last."""
        return self.catalogue.loaded.is_set()

    async def complete(self, within_s: float = COMPLETE_S) -> None:
        """Wait until the lists are complete, but not for long."""
        if not self.is_complete():
            with trio.move_on_after(within_s):
                await self.catalogue.loaded.wait()

    def find(self, name: str) -> MountSurface | None:
        """Return the surface of a mount; None if there is no such mount."""
        return self.surfaces.get(name) if name in self.catalogue.mounts else None

    async def mounts_changed(self, changed: Mapping[str, Collection[str]]) -> None:
        """Show the new definitions, and notify the clients that see them."""
        mounts, offered = self.catalogue.mounts, self.catalogue.offered
        for name in changed:
            if name in mounts and name in self.surfaces:
                self.surfaces[name].show(mounts[name], offered[name])
            elif name in mounts:
                self.surfaces[name] = MountSurface(mounts[name], offered[name])
        self.names.update(mounts, offered, self._taken)
        if self._tools != self.names.tools:
            self._tools = list(self.names.tools)
            table = Table([*self._own.values(), *self._tools], self._own.endpoints)
            for surface in self._own_surfaces.values():
                if surface.name not in REFERENCES:
                    surface.update(table)
        if not self.is_complete():
            # Clients have seen nothing else yet.
            return
        every = {each for lists in changed.values() for each in lists}
        for name in LISTS:
            concerned = {mount for mount, lists in changed.items() if name in lists}
            if name in every:
                await self._publish(ListChanged(list=name), concerned | {ALL} | ({CORE} if name != "tools" else set()))

    async def mount_resource_updated(self, mount: str, uri: str) -> None:
        await self._publish(ResourceUpdated(uri=uri), {mount})
        await self._publish(ResourceUpdated(uri=f"{RESOURCES}{mount}/{uri}"), {ALL, CORE})


def _taken(own: Table) -> frozenset[str]:
    """Return the names that mounted tools must not have."""
    clients = [op for op in own.values() if op.admits(CLIENT)]
    return frozenset(name for op in clients for name in (op.name, op.step, *op.former, f"{op.service}_{op.name}"))
