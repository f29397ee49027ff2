"""The mounted servers as a front knows them: which there are, and what each offers.

The kernel says which mounts there are, and the registry what each offers. Neither starts a mounted server.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Protocol, TypeVar

import msgspec
import trio
from msgspec import Raw

from proto.errors import LinckiaError
from proto.mounts import (
    CHANGED,
    READ,
    UPDATED,
    Mount,
    MountChanged,
    MountNames,
    MountRequest,
    MountResourceUpdated,
    MountTable,
    Offered,
    Taken,
    Wanted,
    operations_of,
)
from proto.operation import CLIENT, Params, operation_of
from proto.ops.kernel import KernelMounts
from proto.ops.mounts import MountsName, MountsOffered
from proto.origin import Origin
from proto.wire import frames
from proto.wire.frames import Event
from proto.wire.front import OWN
from services.runtime.dispatch import Dispatcher

R = TypeVar("R")

RETRY_S = 1.0

ALL_LISTS = ("tools", "resources", "prompts")

_log = logging.getLogger("linckia.gateway")


class Receiver(Protocol):
    """Is told what changed, after it has."""

    async def mounts_changed(self, changed: Mapping[str, Collection[str]]) -> None:
        """Lists of mounts have changed: `tools`, `resources`, `prompts`, by mount."""

    async def mount_resource_updated(self, mount: str, uri: str) -> None: ...


class Catalogue:
    """The mounts, and what they offer; `run` keeps both current."""

    def __init__(self, dispatcher: Dispatcher, receiver: Receiver) -> None:
        self._dispatcher = dispatcher
        self._receiver = receiver
        self._changes = trio.Lock()
        self.mounts: dict[str, Mount] = {}
        self.offered: dict[str, Offered] = {}
        self.disabled: frozenset[str] = frozenset()
        """Names of mounts that are in the settings, and disabled."""
        self.loaded = trio.Event()
        """Set once the mounts are known for the first time, with what they offered last."""
        self._learning: trio.Nursery | None = None
        self._refreshed = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Follow the kernel's table of mounts, and start servers that never ran, to know what they offer."""
        async with trio.open_nursery() as nursery:
            self._learning = nursery
            await self._follow()

    async def _follow(self) -> None:
        version = -1
        while True:
            try:
                table = await self._ask(KernelMounts(version=version))
            except LinckiaError as error:
                _log.debug("the table of mounts is not available: %s", error)
                self.loaded.set()
                await trio.sleep(RETRY_S)
                continue
            if table.version != version:
                version = table.version
                await self._apply(table)
            self.loaded.set()

    async def _apply(self, table: MountTable) -> None:
        mounts = {mount.name: mount for mount in table.mounts}
        async with self._changes:
            before = dict(self.mounts)
            changed = [name for name in mounts.keys() | before.keys() if mounts.get(name) != before.get(name)]
            offered: dict[str, Offered] = {}
            async with trio.open_nursery() as nursery:
                for name in changed:
                    if name in mounts:
                        nursery.start_soon(self._fetch, name, offered)
            self.mounts = mounts
            self.offered = {name: offered.get(name) or self.offered.get(name) or Offered() for name in mounts}
            for name in changed:
                if name in mounts and not self.offered[name].version and self._learning is not None:
                    self._learning.start_soon(self._learn, name)
            before_disabled, self.disabled = self.disabled, frozenset(table.disabled)
            if changed or before_disabled != self.disabled:
                await self._receiver.mounts_changed(dict.fromkeys(changed, ALL_LISTS))
            self._refreshed.unpark_all()

    async def _learn(self, name: str) -> None:
        try:
            await self.start(name, Origin(CLIENT))
        except LinckiaError as error:
            _log.warning("the mount %s could not be started to learn what it offers: %s", name, error)

    async def start(self, name: str, origin: Origin) -> None:
        """Start a mount's server if it does not run. Raises LinckiaError."""
        ping = MountRequest(method="ping", name=name)
        await self._dispatcher.call(operations_of(name)[READ], ping, origin=origin, written=True)

    async def _fetch(self, name: str, offered: dict[str, Offered]) -> bool:
        try:
            offered[name] = await self._ask(MountsOffered(mount=name))
        except LinckiaError as error:
            _log.warning("what the mount %s offers is not available: %s", name, error)
            return False
        return True

    async def receive(self, event: Event) -> None:
        """Take note of an event about a mount."""
        try:
            if event.topic == CHANGED:
                changed = frames.read_body(event.body, MountChanged)
                await self.refresh(changed.mount, changed.lists)
            elif event.topic == UPDATED:
                updated = frames.read_body(event.body, MountResourceUpdated)
                await self._receiver.mount_resource_updated(updated.mount, updated.uri)
        except msgspec.DecodeError as error:
            _log.warning("event %s is malformed: %s", event.topic, error)

    async def refresh(self, name: str, lists: Collection[str]) -> None:
        """Fetch what a mount offers now."""
        async with self._changes:
            offered: dict[str, Offered] = {}
            while name in self.mounts:
                if await self._fetch(name, offered):
                    break
                await trio.sleep(RETRY_S)
            else:
                return
            is_new = offered[name].version != self.offered[name].version
            self.offered |= offered
            if is_new:
                await self._receiver.mounts_changed({name: lists})
            self._refreshed.unpark_all()

    async def named(self, wanted: list[Wanted], released: list[Taken]) -> MountNames | None:
        """Give names beside Linckia's own; None if the registry is not available."""
        try:
            return await self._ask(MountsName(wanted=wanted, released=released))
        except LinckiaError as error:
            _log.warning("names of mounted tools cannot be stored yet: %s", error)
            return None

    async def known(self, name: str) -> None:
        """Wait until a mount's server has started once, so that its definitions are known, or the mount is gone."""
        while name in self.mounts and not self.offered[name].version:
            await self._refreshed.park()

    async def _ask(self, params: Params[R]) -> R:
        operation = operation_of(params)
        value = await self._dispatcher.call(operation, params, origin=OWN, written=True)
        # Definitions are JSON as servers wrote it, which only JSON can carry.
        of_json = operation.decoders[1]
        return of_json(value) if isinstance(value, Raw) else msgspec.convert(value, operation.result)
