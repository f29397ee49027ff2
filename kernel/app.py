"""The assembled kernel: supervisor, router, handoff and control socket, from start to orderly end.

Fronts start first, since clients wait for them, while calls wait for their service. They end last, so that they can
still deliver the replies to calls that services finish.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import trio
from msgspec import structs

from kernel import VERSION
from kernel.chronicle.audit import Audit
from kernel.chronicle.isolation import keep_running, run_isolated
from kernel.chronicle.trends import Trends
from kernel.configure import catalog, tokens
from kernel.configure.catalog import ServiceEntry
from kernel.configure.config import Config, ConfigError
from kernel.configure.launch import LaunchConfigs, RootFolders, secret
from kernel.control import mounts, page_operations
from kernel.control.alerts import Alerts, Process
from kernel.control.handoff import Handoff
from kernel.control.listening import listen
from kernel.control.mounts import LiveMounts
from kernel.control.observation import Observation
from kernel.control.operations import KernelOperations
from kernel.control.page_handlers import PageHandlers
from kernel.control.recorded_events import RecordedEvents
from kernel.control.schedule import Schedule
from kernel.control.server import ControlServer
from kernel.router.generation import ServiceState
from kernel.router.mandates import KEY_FILE, Mandates
from kernel.router.ports import ROUTINE, Injector
from kernel.router.record import PAGE
from kernel.router.router import Router
from kernel.supervisor.local import LocalPlacement
from kernel.supervisor.placement import Placement
from kernel.supervisor.process import channel_to
from kernel.supervisor.rest import Awake
from kernel.supervisor.spawn import Prestarted
from kernel.supervisor.supervisor import Supervisor
from proto import approvals, ops
from proto.approvals import Rules
from proto.control.address import log_dir
from proto.host.end_signals import end_signals
from proto.host.machine import give_back_at_rest
from proto.operation import OPERATOR, Operation, operation_of
from proto.ops.fetch import AlertPost
from proto.origin import Origin
from proto.wire.front import SERVICE as FRONT

LINGER_S = 2.0
"""How long a kernel started for its clients outlives the last one, so that a restarted MCP client finds it running."""

RESTS_S = 0.25
"""Processor time per five seconds below which the kernel counts as idle; it pings every service each second."""

PAGE_KEY_FILE = "page.key"
PAGE_KEY_CHARS = 32
"""128 bits in hexadecimal; a longer key would only make the page's address longer."""

_log = logging.getLogger("linckia.kernel")


async def run(
    config: Config,
    listener: socket.socket,
    *,
    ephemeral: bool = False,
    prestarted: Prestarted | None = None,
    on_ready: Callable[[str | None, str | None], None] = lambda http_url, page_url: None,
    read_settings: Callable[[], Config],
    settings: page_operations.SettingsEditor,
) -> None:
    """Run the system until a signal, `kernel_shutdown`, or the departure of an ephemeral kernel's last client ends it.

    Args:
        listener: the control socket, bound and listening; the caller closes it.
        ephemeral: end shortly after the last attached client has left.
        prestarted: becomes the first front.
        read_settings: reads the settings again; raises ConfigError.
        settings: shows and changes the settings for the operator's page.
        on_ready: called with the URLs of MCP over HTTP and of the operator's page (None without HTTP).

    Raises ConfigError: a package cannot be served; a setting names an unknown service or module, or an impossible pool
    size; HTTP cannot listen; or a file of tokens cannot be read.
    """
    entries = catalog.served(config.packages)
    kernel = _Kernel(config, listener, entries, LINGER_S if ephemeral else None, prestarted, read_settings, settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_signal, kernel, nursery.cancel_scope)
        await kernel.serve(nursery, on_ready)
        nursery.cancel_scope.cancel()


class _Kernel:
    """The connected parts of one kernel."""

    def __init__(
        self,
        config: Config,
        listener: socket.socket,
        all_entries: tuple[ServiceEntry, ...],
        linger_s: float | None,
        prestarted: Prestarted | None,
        read_settings: Callable[[], Config],
        settings: page_operations.SettingsEditor,
    ) -> None:
        try:
            if config.http is not None and config.http.token is None:
                http = structs.replace(config.http, token=tokens.own(config.data_dir))
                config = structs.replace(config, http=http)
            self.tokens = tokens.LiveTokens(config.data_dir)
        except tokens.CannotRead as error:
            raise ConfigError(str(error)) from None
        self.config = config
        self.listener = listener
        self.read_settings = read_settings
        pools = catalog.pools(
            all_entries,
            config.services,
            rest_after_s=config.rest_after_s,
            standbys=config.standbys,
            only_essential=config.only_mounts,
            cluster=config.cluster,
            sources=config.sources,
        )
        self.unserved = {entry.service for entry in all_entries} - set(pools)
        self.entries = tuple(entry for pool in pools.values() for entry in pool)
        extra = [*(module for entry in self.entries for module in entry.ops_modules), page_operations.__name__]
        self.injector: Injector | None = None
        if config.chaos_module is not None:
            self.injector = _injector(config.chaos_module)
            extra.append(config.chaos_module)
        declared = ops.load(extra)
        own = ops.Table(op for op in declared.values() if op.service not in self.unserved)
        mounted = mounts.mounted(config)
        table = ops.Table((*own.values(), *mounts.operations(mounted, config)))
        # Pools have several processes; a mounted server has one.
        every = (*self.entries, *mounted.values())
        first = [*(pool[0] for pool in pools.values()), *mounted.values()]
        log = config.audit
        self.audit = (
            Audit(config.data_dir, max_bytes=log.max_bytes, files=log.files, reads=log.reads) if log.enabled else None
        )
        self.router = Router(
            table,
            {entry.service: mounts.limits_of(entry) for entry in first},
            {name: [entry.spec.name for entry in pool] for name, pool in pools.items()},
            fronts=(FRONT,),
            read_only=config.read_only,
            audit=self.audit,
            rules=_rules(config, own.values(), mounted),
        )
        self.folders = RootFolders(
            (*config.roots, *dict.fromkeys(Path(path) for entry in self.entries for path in entry.follows))
        )
        self.awake = Awake()
        self.handoff = Handoff([entry.spec.name for entry in pools[FRONT]], self.awake.pause)
        zygotes = catalog.zygotes(every, config.rest_after_s)
        self.launches = LaunchConfigs(
            config, {entry.spec.name: entry for entry in every}, table, self.folders, self.unserved,
            secrets.token_hex() if config.cluster is not None else "",
        )  # fmt: skip
        local = LocalPlacement(
            zygotes, log_dir(config.data_dir), prestarted, [entry.spec.name for entry in every], self.awake.pause
        )
        self.supervisor = Supervisor(
            tuple(entry.spec for entry in every),
            zygotes,
            self.router,
            self.launches,
            self._placement(local, pools),
            handoff=self.handoff.ready,
            channel_to=channel_to if self.injector is None else self.injector.channel_to,
            awake=self.awake,
        )
        self.router.wake_with(self.supervisor.wanted)
        self.mounts = LiveMounts(
            config=config, entries=mounted, own=own, launched=self.launches.entries, router=self.router,
            supervisor=self.supervisor, replace_table=self._replace_table, read_settings=read_settings,
        )  # fmt: skip
        self.manager = ServiceManager()
        self.schedule = Schedule(config)
        key = secret(config.data_dir, KEY_FILE, "the rights of stored plans end")
        self.mandates = Mandates(bytes.fromhex(key), self.tokens.of)
        self.trends = Trends(config.data_dir, self._deaths)
        self.page_key = secret(config.data_dir, PAGE_KEY_FILE, "links to the operator's page end")[:PAGE_KEY_CHARS]
        self.observation = Observation(
            config=config, router=self.router, supervisor=self.supervisor, launches=self.launches, trends=self.trends,
            tokens=self.tokens, page_key=self.page_key,
        )  # fmt: skip
        self.alerts = self._alerts()
        self.observation.alerts = lambda: list(self.alerts.current.values())
        self.supervisor.witness = self.observation.recorder.happened
        PageHandlers(
            data_dir=config.data_dir, router=self.router, supervisor=self.supervisor,
            recorder=self.observation.recorder, settings=settings, settings_changed=self._settings_changed,
        )  # fmt: skip
        RecordedEvents(config.data_dir, self.router, self.audit, self.observation.recorder)
        self.stop = trio.Event()
        self.control = ControlServer(
            router=self.router,
            table=table,
            attach=self.handoff.attach,
            started=trio.Event(),
            stopping=self.stop,
            roots=tuple(map(str, config.roots)),
            read_only=config.read_only,
            linger_s=linger_s,
        )

    async def serve(self, nursery: trio.Nursery, on_ready: Callable[[str | None, str | None], None]) -> None:
        """Serve until `stop`, then shut down in order. Background tasks run in `nursery`."""
        if self.audit is not None:
            await nursery.start(self.audit.run)
        await nursery.start(self.router.run)
        await nursery.start(self.handoff.run)
        operations = KernelOperations(
            config=self.config, router=self.router, supervisor=self.supervisor, tokens=self.tokens,
            handoff=self.handoff, shut_down=self.stop.set, audit=self.audit, injector=self.injector,
            schedule=self.schedule, trends=self.trends, page_key=self.page_key,
            mandates=self.mandates, mounts=self.mounts, read_settings=self.read_settings,
        )  # fmt: skip
        self.observation.status = operations.status
        if self.config.http is not None:
            operations.http_url = f"{await listen(self.handoff, self.config.http, self.config.data_dir)}/mcp"
        await nursery.start(self.observation.recorder.run)
        await nursery.start(self._control)
        await nursery.start(self.supervisor.run)
        self.control.started.set()
        restart = self._restart_for_other_folders
        nursery.start_soon(keep_running, "the check of the roots", self.folders.run, restart, self.awake.pause)
        _log.info(
            "serving %d operations of %d services", len(self.router.table), len(self.launches.entries), extra=ROUTINE
        )
        nursery.start_soon(
            run_isolated,
            "announcing the kernel",
            self._announce,
            partial(on_ready, operations.http_url, operations.page_url),
        )
        nursery.start_soon(self.manager.keep_alive)
        nursery.start_soon(keep_running, "the backup schedule", self.schedule.run)
        nursery.start_soon(keep_running, "recording trends", self.trends.run)
        nursery.start_soon(keep_running, "watching for alerts", self.alerts.run)
        await self.stop.wait()
        self.manager.tell("STOPPING=1")
        _log.info("shutting down in order")
        await self.supervisor.shutdown()
        self.handoff.close()

    def signalled(self) -> None:
        """End in order. A service manager that restarts its unit sends a signal as well, so local clients' sessions
        continue in the next kernel, or in one that they start if none comes."""
        if self.manager.is_present:
            self.control.is_replaced = True
        self.stop.set()

    async def _announce(self, on_ready: Callable[[], None]) -> None:
        """Announce that clients can be served."""
        await self.supervisor.wait_for(FRONT, (ServiceState.READY,))
        on_ready()
        self.manager.tell("READY=1")
        # These objects live as long as the kernel, so the collector need not visit them again.
        gc.freeze()
        gc.enable()
        await give_back_at_rest(_collect, rests_s=RESTS_S)

    def _replace_table(self, table: ops.Table) -> None:
        self.router.table = self.launches.table = self.control.table = table

    def _settings_changed(self, config: Config) -> None:
        """Apply what acts at once."""
        self.alerts.settings = config.alerts

    def _alerts(self) -> Alerts:
        return Alerts(
            settings=self.config.alerts, data_dir=self.config.data_dir, recorder=self.observation.recorder,
            processes=self._processes, backup=self.schedule.status, post=self._post, version=VERSION,
        )  # fmt: skip

    def _processes(self) -> list[Process]:
        entries = self.launches.entries
        return [
            Process(name, self.supervisor.state(name), bool(name in entries and entries[name].mount))
            for name in self.supervisor.plan.specs
        ]

    async def _post(self, url: str, message: bytes) -> None:
        """Send an alert by the service that may use the network. Raises LinckiaError."""
        params = AlertPost(hook=url, body=message)
        await self.router.call(operation_of(AlertPost), params, origin=Origin(OPERATOR, peer=PAGE))

    def _deaths(self) -> dict[str, int]:
        return {each.name: sum(each.deaths.values()) for each in self.supervisor.status().services}

    def _restart_for_other_folders(self) -> None:
        # Services that are stopped or waiting will get the current folders when they start.
        living = (ServiceState.STARTING, ServiceState.READY)
        for entry in self.entries:
            if entry.uses_roots and self.supervisor.state(entry.spec.name) in living:
                self.supervisor.restart(entry.spec.name)

    def _placement(self, local: LocalPlacement, pools: Mapping[str, tuple[ServiceEntry, ...]]) -> Placement:
        """Return where services run: on this machine, and on the cluster if there is one. Raises ConfigError."""
        if (cluster := self.config.cluster) is None:
            return local
        from kernel.supervisor.cluster.nodes import ClusterPlacement

        placed = catalog.placed(pools, cluster, self.config.services)
        logs = log_dir(self.config.data_dir)
        return ClusterPlacement(
            local, placed, cluster.address, self._move, self._movable, host=cluster.host,
            secret=self.launches.driver, log_dir=logs,
        )  # fmt: skip

    def _move(self, name: str) -> None:
        # A service that is stopped or rests gets its new place when it starts.
        if self.supervisor.state(name) in (ServiceState.STARTING, ServiceState.READY):
            self.supervisor.restart(name)

    def _movable(self) -> dict[str, bool]:
        return self.mounts.movable()

    async def _control(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self.control.run(self.listener, task_status=task_status)
        self.stop.set()


class ServiceManager:
    """Notifies the service manager, if there is one, as in sd_notify(3): ready, still alive, ending.

    systemd sets `NOTIFY_SOCKET` for units with `Type=notify`, and `WATCHDOG_USEC` for those with `WatchdogSec=`. If the
    kernel's event loop hangs, it stops sending keep-alives and systemd restarts it.
    """

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        own = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        given = os.environ.get("WATCHDOG_USEC", "") if own else ""
        self._watchdog_s = int(given) / 1e6 if given.isdigit() else 0.0

    @property
    def is_present(self) -> bool:
        return bool(self._address)

    def tell(self, state: str) -> None:
        """Send a message such as `READY=1`; it is lost if nobody receives it."""
        if not self._address:
            return
        # An abstract address starts with a zero byte, which an environment variable cannot contain.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line,
            contextlib.suppress(OSError),
        ):
            line.setblocking(False)
            line.sendto(state.encode(), address)

    async def keep_alive(self) -> None:
        """Send keep-alives twice as often as required; return at once if none are."""
        while self._address and self._watchdog_s:
            self.tell("WATCHDOG=1")
            await trio.sleep(self._watchdog_s / 2)


def _rules(config: Config, operations: Iterable[Operation[Any]], mounted: Collection[str]) -> Rules:
    """Return the rules for approvals. Raises ConfigError: an entry chooses nothing."""
    try:
        approvals.check(config.approvals.require, operations, mounted)
    except ValueError as error:
        raise ConfigError(f"settings: approvals.require: {error}") from None
    return Rules(config.approvals)


def _injector(module: str) -> Injector:
    """Load the injector. Raises ConfigError: there is no such module, or it has no injector."""
    try:
        injector: Injector = importlib.import_module(module).Injector()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"settings: chaos.module is {module!r}: {error}") from error
    return injector


async def _collect() -> None:
    """Collect cyclic garbage created since the start; takes some milliseconds while the kernel is idle."""
    gc.collect()
    await trio.lowlevel.checkpoint()


async def _stop_on_signal(kernel: _Kernel, everything: trio.CancelScope) -> None:
    """Shut down in order on the first signal, and at once on the second."""
    with trio.open_signal_receiver(*end_signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)) as signals:
        async for number in signals:
            if kernel.stop.is_set():
                _log.warning("second signal (%s): ending at once", signal.Signals(number).name)
                everything.cancel()
                return
            _log.info("%s received", signal.Signals(number).name)
            kernel.signalled()
