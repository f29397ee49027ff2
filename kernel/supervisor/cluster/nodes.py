"""Generations on the nodes of a cluster, for stateless services that the settings place there.

Nothing depends on the cluster. A service runs on this machine while the cluster is not connected, has no room, or has
failed to run it twice in a row. If the head is lost, services on nodes finish their calls in flight and continue here.
Pings over the link show that a node is lost; the next generation then starts here, which is quick.

A service moves to a node without a pause: its next generation is started there while it serves here, and takes over
once it is ready.
"""

from __future__ import annotations

import itertools
import logging
import math
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec
import trio

from kernel.chronicle.isolation import keep_running, run_isolated
from kernel.configure.spec import ServiceSpec
from kernel.supervisor.cluster.driver import Driver, DriverDown
from kernel.supervisor.cluster.fallbacks import Fallbacks
from kernel.supervisor.cluster.remote import ClusterDriver, RemoteProcess
from kernel.supervisor.local import LINK_MESSAGE_BYTES, LocalPlacement
from kernel.supervisor.placement import Exit, Placement, Running
from kernel.supervisor.zygote import ZygoteReport
from proto.ops.kernel import ClusterNode, ClusterStatus
from proto.wire.channel import LinkClosed
from proto.wire.cluster import (
    Ended,
    Kill,
    Nodes,
    Prepare,
    Prepared,
    Resources,
    Start,
    Started,
)
from proto.wire.launch import LaunchConfig
from proto.wire.nng_link import Certificates, NngLink

PLACE_S = 5.0
"""Time for reserving resources on a node and starting the process there, after which the service starts here."""

MOVE_S = 30.0
"""The same for a service that is moved to a node, and serves here meanwhile. Ray may have to wait for room, and starts
a process within seconds only on a machine that is not busy."""

AVOID_S = 60.0
"""Time for which nothing is placed on a node to which a link broke. Ray takes some 15 s to notice that a node is gone,
and would place services there until then."""

CONNECTING = "connecting"

GPU_MODE, CPU_MODE = "cuda", "cpu"

_log = logging.getLogger("linckia.supervisor")


class ClusterPlacement:
    """`placement.Placement` for nodes of a cluster, and for this machine whenever that is not possible.

    Args:
        placed: the resources of each process that should run on the cluster, by its name.
        move: restarts a service in order, if it runs.
        movable: returns the services of mounted servers whose processes may move, each with whether it has nothing to
            do now. Their adapters are on this machine, and place them.
        host: address of this machine for the nodes; "" for the one by which the cluster knows it.
        secret: by which the driver knows the adapters of mounted servers.
        driver: for tests; by default, a process that speaks with Ray at `address`.
    """

    def __init__(
        self,
        local: LocalPlacement | Placement,
        placed: Mapping[str, Resources],
        address: str,
        move: Callable[[str], None],
        movable: Callable[[], Mapping[str, bool]] = dict,
        *,
        host: str = "",
        secret: str = "",
        log_dir: Path = Path(),
        driver: ClusterDriver | None = None,
    ) -> None:
        self.local = local
        self._move_now, self._movable = move, movable
        self._waiting: set[str] = set()
        """Services of mounted servers that move to a node once they have nothing to do."""
        self.placed = dict(placed)
        self.nodes: Nodes | None = None
        """The latest report of the cluster; None if it is not connected."""
        self.processes: dict[int, tuple[str, RemoteProcess]] = {}
        """Processes on nodes that have not ended, with their services."""
        self.stays = Fallbacks()
        self._ids = itertools.count(1)
        self._avoided: dict[str, float] = {}
        """Ids of nodes to which a link broke, and when."""
        self._latest: dict[str, tuple[ServiceSpec, LaunchConfig]] = {}
        """The latest generation of each service that the settings place on the cluster."""
        self._lost_nodes: set[str] = set()
        """Services whose node was lost, until their next start."""
        self._moving: set[str] = set()
        """Services whose next generation is being started on a node."""
        self._next: dict[str, tuple[LaunchConfig, RemoteProcess]] = {}
        """Next generations of services, which are ready on nodes."""
        self._nursery: trio.Nursery | None = None
        if driver is None:
            assert isinstance(local, LocalPlacement)
            driver = Driver(
                address,
                host,
                secret,
                log_dir,
                local.reaper,
                nodes_changed=self.nodes_changed,
                lost=self.lost,
                ended=self.ended,
            )  # fmt: skip
        self.driver: ClusterDriver = driver

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self.local.run)
            nursery.start_soon(keep_running, "the cluster driver", self.driver.run)
            task_status.started()

    async def start(self, spec: ServiceSpec, launch: LaunchConfig) -> Running:
        resources = self.placed.get(spec.name)
        if resources is None:
            return await self.local.start(spec, launch)
        self._latest[spec.name] = spec, launch
        if (process := self._take_next(spec.name, launch)) is not None:
            self.stays.there(spec.name)
            self.local.dismiss(spec.name)
            return process
        if spec.name in self._lost_nodes:
            self._lost_nodes.discard(spec.name)
            _log.info("%s continues on this machine until another node has started it", spec.name)
            self.stays.here(spec.name, -math.inf)
            return await self.local.start(spec, launch)
        why = self.stays.reason(spec.name) or ("" if self.driver.connected else self.driver.problem or CONNECTING)
        if not why:
            self.stays.there(spec.name)
            try:
                with trio.fail_after(PLACE_S):
                    process = await self._start_on_node(spec, launch, resources)
                self.local.dismiss(spec.name)
                return process
            except trio.TooSlowError:
                why = f"no node has started it within {PLACE_S:g} s"
            except (DriverDown, OSError, ValueError) as error:
                why = str(error)
            _log.warning("%s runs on this machine instead of the cluster: %s", spec.name, why)
        self.stays.here(spec.name, trio.current_time())
        return await self.local.start(spec, launch)

    def _take_next(self, name: str, launch: LaunchConfig) -> RemoteProcess | None:
        """Return the process that was started for exactly this generation, if there is one."""
        if name not in self._next:
            return None
        prestarted, process = self._next.pop(name)
        if prestarted == launch and not process.is_over and self.driver.connected:
            return process
        self._discard(process)
        return None

    def _discard(self, process: RemoteProcess) -> None:
        """End a process that the supervisor does not know."""
        self.processes.pop(process.number, None)
        process.close()

    async def _start_on_node(self, spec: ServiceSpec, launch: LaunchConfig, resources: Resources) -> RemoteProcess:
        prepared = await self._prepare(spec.name, resources)
        number = prepared.id
        link: NngLink | None = None
        try:
            certificates = Certificates(
                prepared.certificate, prepared.key, prepared.authority, peer_name=_name(spec.name, number)
            )
            at = f"[{prepared.host}]" if ":" in prepared.host else prepared.host
            link = NngLink.listening(f"tls+tcp://{at}:0", certificates, max_message_bytes=LINK_MESSAGE_BYTES)
            url = f"tls+tcp://{at}:{link.port}"
            started = await self.driver.request(
                Start(id=number, launch=for_node(launch, spec, resources), env=spec.env, url=url)
            )
            assert isinstance(started, Started)
        except BaseException:
            self.driver.post(Kill(id=number))
            if link is not None:
                link.close()
            raise
        process = RemoteProcess(
            number, started.pid, prepared.node_name, link, self.driver,
            on_ready=lambda: self.stays.worked(spec.name),
            on_end=partial(self._ended, spec.name, prepared),
        )  # fmt: skip
        self.processes[number] = spec.name, process
        _log.info("%s generation %d runs on node %s", spec.name, launch.generation, process.node)
        return process

    async def _prepare(self, name: str, resources: Resources) -> Prepared:
        number, now = next(self._ids), trio.current_time()
        self._avoided = {node: at for node, at in self._avoided.items() if now - at < AVOID_S}
        request = Prepare(id=number, name=_name(name, number), resources=resources, avoid=list(self._avoided))
        try:
            prepared = await self.driver.request(request)
        except BaseException:
            self.driver.post(Kill(id=number))
            raise
        assert isinstance(prepared, Prepared)
        return prepared

    def _ended(self, name: str, prepared: Prepared, ended: Exit, was_ready: bool) -> None:
        self.processes.pop(prepared.id, None)
        if not self.driver.connected:
            # Its end says nothing about its node: Ray ends what a driver placed with the driver.
            return
        if ended.lost:
            self._avoided[prepared.node] = trio.current_time()
            self._lost_nodes.add(name)
        elif not was_ready:
            self.stays.failed(name)

    def ended(self, report: Ended) -> None:
        """Note the driver's report that a process has ended."""
        if report.id in self.processes:
            self.processes[report.id][1].ended(report)

    def nodes_changed(self, nodes: Nodes) -> None:
        """Note the nodes that are alive; services move there if that is new."""
        known = {node.id for node in self.nodes.nodes} if self.nodes is not None else set()
        self.nodes = nodes
        is_new = any(node.id not in known for node in nodes.nodes)
        if is_new or nodes.ready or self._waiting:
            self._move_mounted(nodes, is_new=is_new)
        for name in self.stays.to_move(frozenset(node.id for node in nodes.nodes), trio.current_time()):
            assert self._nursery is not None, "`run` comes first"
            self._nursery.start_soon(run_isolated, f"moving {name} to the cluster", self._move, name)

    def _move_mounted(self, nodes: Nodes, *, is_new: bool) -> None:
        """Restart mounted servers that run on this machine, if a node is new or has started a process for them."""
        there = {name for node in nodes.nodes for name in node.runs}
        movable = {name: may for name, may in self._movable().items() if name not in there}
        self._waiting |= set(movable) if is_new else set(nodes.ready)
        self._waiting &= set(movable)
        for name in [name for name in self._waiting if movable[name]]:
            self._waiting.discard(name)
            self._move_now(name)

    async def _move(self, name: str) -> None:
        """Start the next generation of a service on a node; once that is ready, it replaces the one on this machine."""
        if name in self._moving or name in self._next or not self.stays.is_here(name):
            return
        spec, launch = self._latest[name]
        launch = msgspec.structs.replace(launch, generation=launch.generation + 1)
        self._moving.add(name)
        try:
            process = await self._started_in_advance(spec, launch)
        finally:
            self._moving.discard(name)
        if process is None:
            return
        self._next[name] = launch, process
        self._move_now(name)
        await trio.sleep(PLACE_S)
        # If it was not taken, the service was stopped, or has other settings now.
        if self._next.get(name) == (launch, process):
            del self._next[name]
            self._discard(process)

    async def _started_in_advance(self, spec: ServiceSpec, launch: LaunchConfig) -> RemoteProcess | None:
        """Return a generation that is ready on a node; None if no node could start it."""
        why = f"no node has started it within {MOVE_S:g} s"
        try:
            with trio.fail_after(MOVE_S):
                process = await self._start_on_node(spec, launch, self.placed[spec.name])
            try:
                why = f"it did not become ready on node {process.node}"
                with trio.fail_after(spec.startup_timeout_s):
                    await process.until_ready()
                if self.driver.connected:
                    return process
            except (trio.TooSlowError, LinkClosed):
                if self.driver.connected:
                    self.stays.failed(spec.name)
            self._discard(process)
        except (DriverDown, OSError, ValueError) as error:
            why = str(error)
        except trio.TooSlowError:
            # There is no room.
            pass
        _log.info("%s stays on this machine: %s", spec.name, why)
        return None

    def lost(self) -> None:
        """Note that the cluster is lost: its services continue here."""
        self.nodes = None
        self.stays.lost()
        for _, process in self._next.values():
            self._discard(process)
        self._next.clear()
        for name, _ in tuple(self.processes.values()):
            # What moves is still on this machine.
            if name not in self._moving:
                self._move_now(name)

    def zygote_reports(self) -> tuple[ZygoteReport, ...]:
        return self.local.zygote_reports()

    def status(self) -> ClusterStatus:
        """Return the state of the cluster and its nodes, with the services on each."""
        nodes = self.nodes.nodes if self.nodes is not None else []
        return ClusterStatus(
            engine="ray",
            address=self.driver.address,
            problem=self.driver.problem or ("" if self.driver.connected else CONNECTING),
            restarts=self.driver.restarts,
            nodes=[
                ClusterNode(
                    name=node.name, num_cpus=node.num_cpus, num_gpus=node.num_gpus,
                    memory_bytes=node.memory_bytes,
                    services=sorted(
                        [*(name for name, process in self.processes.values() if process.node == node.name),
                         *node.runs]
                    ),
                )
                for node in nodes
            ],
        )  # fmt: skip

    def dismiss(self, service: str) -> None:
        # It has no process now; its next start tries the cluster.
        self.stays.there(service)
        self.local.dismiss(service)

    def forget(self, service: str) -> None:
        self.stays.forget(service)
        self._latest.pop(service, None)
        self._lost_nodes.discard(service)
        self.local.forget(service)

    def renew_log(self, service: str) -> None:
        self.local.renew_log(service)

    def prioritize(self, service: str) -> None:
        self.local.prioritize(service)

    def standby_pid(self, service: str) -> int | None:
        return self.local.standby_pid(service)


def _name(service: str, number: int) -> str:
    """Return the name in the certificate of the service's end of a link; no other link has it."""
    return f"{service.replace('_', '-')}.{number}.{_RUN}.linckia"


_RUN = secrets.token_hex(4)
"""Distinguishes the names of this kernel's links from those of others."""


def for_node(launch: LaunchConfig, spec: ServiceSpec, resources: Resources) -> LaunchConfig:
    """Return the launch configuration for a process on a node: its reserved GPUs decide the mode."""
    mode = launch.mode
    if resources.num_gpus and GPU_MODE not in (mode, *spec.modes[: spec.modes.index(mode) if mode else 0]):
        mode = GPU_MODE if spec.modes else mode
    elif not resources.num_gpus and mode == GPU_MODE:
        mode = CPU_MODE
    walls = launch.confinement
    if walls is not None:
        walls = msgspec.structs.replace(walls, gpu=mode == GPU_MODE)
    return msgspec.structs.replace(launch, mode=mode, confinement=walls)
