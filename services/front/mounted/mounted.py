"""The mounted servers of a front: their surfaces, and their tools on the surfaces of Linckia's own."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Literal

import trio

from proto.mcp import ListChanged, ResourceUpdated
from proto.mounts import Mount, MountNames, Offered, Wanted
from proto.operation import ALL, CLIENT, CORE, REFERENCES, Operation
from proto.ops import Table
from services.front.mounted.catalogue import Catalogue
from services.front.mounted.listening import Listeners
from services.front.mounted.names import RESOURCES, MountedNames
from services.front.mounted.surface import MountSurface
from services.front.surfaces.surface import Surface
from services.runtime.dispatch import Dispatcher

LISTS: tuple[Literal["tools", "resources", "prompts"], ...] = ("tools", "resources", "prompts")

KNOWN_S = 10.0
"""How long a call of an unknown tool waits: after a death of the kernel, the registry starts with all other
services."""

COMPLETE_S = 2.0
"""How long a list waits for what the mounted servers offered last, which takes milliseconds unless the system is just
starting."""

_log = logging.getLogger("linckia.gateway")

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
        self._held = MountNames()
        """Who had which name when the registry was last asked."""
        self._named: tuple[list[Wanted], set[str]] | None = ([], set())
        """What it was asked; None if it did not answer."""
        self._collisions: set[tuple[str, ...]] = set()
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
        await self._name(mounts, offered)
        if renamed := self._tools != self.names.tools:
            self._tools = list(self.names.tools)
            table = Table([*self._own.values(), *self._tools], self._own.endpoints)
            for surface in self._own_surfaces.values():
                if surface.name not in REFERENCES:
                    surface.update(table)
        if not self.is_complete():
            # Clients have seen nothing else yet.
            return
        every = {each for lists in changed.values() for each in lists} | ({"tools"} if renamed else set())
        for name in LISTS:
            concerned = {mount for mount, lists in changed.items() if name in lists}
            if name in every:
                await self._publish(ListChanged(list=name), concerned | {ALL} | ({CORE} if name != "tools" else set()))

    async def _name(self, mounts: Mapping[str, Mount], offered: Mapping[str, Offered]) -> None:
        """Give names to everything that mounts offer."""
        wanted = self.names.want(mounts, offered, self._taken)
        known = {*mounts, *self.catalogue.disabled}
        if (wanted, known) != self._named:
            held = await self.catalogue.named(wanted, []) if wanted else MountNames()
            if held is not None and (released := self.names.released(held, known)):
                held = await self.catalogue.named(wanted, released)
            if held is not None:
                self._report(held, wanted)
                self._held = held
            self._named = (wanted, known) if held is not None else None
        self.names.give(self._held, is_current=self._named is not None)

    def _report(self, held: MountNames, wanted: Sequence[Wanted]) -> None:
        """Log the collisions that are new."""
        found: set[tuple[str, ...]] = set()
        for each in wanted:
            table = held.tools if each.kind == "tools" else held.prompts
            holder = table.get(each.name)
            if each.is_taken or (holder is not None and (holder.mount, holder.own) != (each.mount, each.own)):
                whose = "Linckia" if each.is_taken or holder is None else f"the server {holder.mount}"
                found.add((each.kind, each.mount, each.own, each.name, whose))
        for kind, mount, own, name, whose in sorted(found - self._collisions):
            what = kind.removesuffix("s")
            _log.error(
                "the %s %r of the server %s cannot be called %s: that belongs to %s", what, own, mount, name, whose
            )
        self._collisions = found

    async def mount_resource_updated(self, mount: str, uri: str) -> None:
        await self._publish(ResourceUpdated(uri=uri), {mount})
        await self._publish(ResourceUpdated(uri=f"{RESOURCES}{mount}/{uri}"), {ALL, CORE})


def _taken(own: Table) -> frozenset[str]:
    """Return the names that mounted tools must not have."""
    clients = [op for op in own.values() if op.admits(CLIENT)]
    return frozenset(name for op in clients for name in (op.name, op.step, *op.former, f"{op.service}_{op.name}"))
