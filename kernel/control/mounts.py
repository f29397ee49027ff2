"""The mounted MCP servers while the kernel runs: added, changed and removed as the settings say.

Each is a service made from a table `[mcp.NAME]`. A server that cannot start affects nobody else: nothing depends on it,
and only its own calls wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import trio
from msgspec import structs

from kernel.configure import catalog, manifests
from kernel.configure.catalog import ServiceEntry
from kernel.configure.config import Config, ConfigError
from kernel.router.generation import Limits, ServiceState
from kernel.router.router import Router
from kernel.supervisor.supervisor import Supervisor
from proto.mounts import TABLE, Mount, MountTable, ToolChoice, service_of
from proto.operation import Operation
from proto.ops import Table
from proto.ops.kernel import MountsReloaded

POLL_S = 600.0
"""How long a front's request for changes waits at most; less than its deadline."""

_log = logging.getLogger("linckia.kernel")


@dataclass(kw_only=True, eq=False)
class LiveMounts:
    """The mounted servers, by name."""

    config: Config
    entries: dict[str, ServiceEntry]
    own: Table
    """Operations of all other services."""
    launched: dict[str, ServiceEntry]
    """Entries of all services, by the name of the process, for launch configurations."""
    router: Router
    supervisor: Supervisor
    replace_table: Callable[[Table], None]
    read_settings: Callable[[], Config]
    _version: int = 1
    _changed: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    _reloading: trio.Lock = field(default_factory=trio.Lock)

    def __contains__(self, service: str) -> bool:
        """Return whether this service is a mounted server."""
        return any(entry.service == service for entry in self.entries.values())

    async def after(self, version: int) -> MountTable:
        """Return the mounted servers once they differ from `version`, or after a while anyway."""
        if version == self._version:
            with trio.move_on_after(POLL_S):
                await self._changed.park()
        mounts = [_for_fronts(entry) for entry in self.entries.values()]
        return MountTable(version=self._version, mounts=mounts, disabled=self.config.disabled_mounts)

    async def reload(self) -> MountsReloaded:
        """Read the settings again and apply what changed; returns before the servers have started or ended.

        Raises ConfigError: nothing was changed.
        """
        async with self._reloading:
            # Roots may be on a network that does not answer.
            config = await trio.to_thread.run_sync(self.read_settings, abandon_on_cancel=True)
            return self._apply(config)

    def _apply(self, config: Config) -> MountsReloaded:
        old, new = self.entries, mounted(config)
        removed = [name for name in old if name not in new]
        added = [name for name in new if name not in old]
        changed = [name for name in new if name in old and new[name] != old[name]]
        if config.disabled_mounts != self.config.disabled_mounts:
            self.config.disabled_mounts[:] = config.disabled_mounts
            self._tell_fronts()
        if not (removed or added or changed):
            return MountsReloaded()
        table = Table((*self.own.values(), *operations(new, config)))
        self.entries = new
        self.config.mounts.clear()
        self.config.mounts.update(config.mounts)
        self.replace_table(table)
        for name in removed:
            self.router.remove(service_of(name), f"the server {name} was removed")
            self.supervisor.remove(service_of(name))
        for name in (*added, *changed):
            entry = new[name]
            self.launched[entry.spec.name] = entry
            self.router.add(entry.service, limits_of(entry))
            (self.supervisor.add if name in added else self.supervisor.replace)(entry.spec)
        self._tell_fronts()
        reloaded = MountsReloaded(added=added, removed=removed, changed=changed)
        _log.info("mounted servers: %s", msgspec.json.encode(reloaded).decode())
        return reloaded

    def movable(self) -> dict[str, bool]:
        """Return the services of running servers that may move to a node of the cluster, each with whether it has
        nothing to do now. A server that keeps state stays where it has begun."""
        found = {}
        for entry in self.entries.values():
            name = entry.spec.name
            may = bool(entry.table and "cluster" in entry.table and not entry.table.get("stateful"))
            if may and self.supervisor.state(name) is ServiceState.READY:
                is_calm = self.supervisor.info(name).get("rests") == "yes"
                found[name] = is_calm and self.router.idle_since(name) is not None
        return found

    def _tell_fronts(self) -> None:
        self._version += 1
        self._changed.unpark_all()


def mounted(config: Config) -> dict[str, ServiceEntry]:
    """Return the services of the mounted servers, by the servers' names. Raises ConfigError."""
    found = {}
    for name, table in config.mounts.items():
        try:
            made = catalog.entry(_template(config).made(name, table))
        except ValueError as error:
            raise ConfigError(f"settings: {error}") from None
        if "cluster" in table and config.cluster is None:
            raise ConfigError(
                f"settings: mcp.{name}.cluster: there is no table [cluster] that says where the nodes are"
            )
        given = catalog.configured(made, table, rest_after_s=config.rest_after_s, standbys=config.standbys)
        found[name] = structs.replace(given, mount=name, table=table)
    return found


def limits_of(entry: ServiceEntry) -> Limits:
    """Return the router's limits for a service."""
    return Limits(entry.spec.in_flight, entry.spec.queue, entry.spec.calls_wait_s, entry.spec.grows_after_s)


def _template(config: Config) -> manifests.PackagedTemplate:
    return next(each for each in manifests.templates(config.packages) if each.template.table == TABLE)


def operations(entries: Mapping[str, ServiceEntry], config: Config) -> Iterator[Operation[object]]:
    """Yield the operations of mounted servers."""
    for name in entries:
        yield from _template(config).template.operations(name).values()


def _for_fronts(entry: ServiceEntry) -> Mount:
    table = entry.table or {}
    return Mount(
        name=entry.mount,
        tools=msgspec.convert(table.get("tools", {}), ToolChoice),
        stateful=bool(table.get("stateful", False)),
    )
