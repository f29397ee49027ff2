"""The supervisor: carries out the restart policy's decisions on processes that a placement starts.

The router is notified of READY, draining and death of every generation, in that order. When the supervisor ends,
orderly or not, no service outlives it.
"""

from __future__ import annotations

import collections
import logging
import random
import socket
from collections.abc import Callable, Collection, Mapping

import msgspec
import trio

from kernel.chronicle.isolation import isolated, run_isolated
from kernel.configure.spec import ServiceSpec, ZygoteSpec, check
from kernel.router.generation import HeldBytes, ServiceState
from kernel.router.ports import ROUTINE, Cause, CauseKind, GenerationSink
from kernel.supervisor import policy, policy_events, processes
from kernel.supervisor.placement import Placement
from kernel.supervisor.policy import Plan
from kernel.supervisor.policy_events import Decision, Event
from kernel.supervisor.process import Ended, Life, channel_to
from kernel.supervisor.rest import Awake
from kernel.supervisor.zygote import ZygoteReport
from proto.errors import InvalidParams, Unavailable
from proto.ops.kernel import ClusterStatus, ServiceFigures
from proto.ops.observation import TimelineEvent
from proto.wire.channel import Channel, Link
from proto.wire.launch import LaunchConfig

LaunchConfigSource = Callable[[ServiceSpec, int, str], LaunchConfig]
"""Returns the launch configuration of a generation, from spec, number and mode."""

_log = logging.getLogger("linckia.supervisor")


class Recovery(msgspec.Struct, kw_only=True):
    """How long recovery from the latest death took.

    `noticed_at` is on trio's clock. From then on, `answered_ms` is the time until all callers had a reply or were
    queued again, and `ready_ms` the time until the next generation was READY (None: not yet).
    """

    noticed_at: float
    answered_ms: float
    ready_ms: float | None = None


class ServiceReport(ServiceFigures, frozen=True, kw_only=True):
    """One service as the supervisor sees it."""

    how: str = ""
    """How its process was started."""
    programs: bool = False
    """Whether it has child processes, which count as its memory."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The state of all services and zygotes, in start order."""

    services: tuple[ServiceReport, ...]
    zygotes: tuple[ZygoteReport, ...] = ()
    cluster: ClusterStatus | None = None


class Supervisor:
    """Supervises all services; `run` must be running. All other methods are called from trio's thread."""

    def __init__(
        self,
        specs: tuple[ServiceSpec, ...],
        zygotes: tuple[ZygoteSpec, ...],
        sink: GenerationSink,
        launch_config: LaunchConfigSource,
        placement: Placement,
        *,
        channel_to: Callable[[str, Link], Channel] = channel_to,
        handoff: Callable[[str, socket.socket, Callable[[str], None]], None] = lambda name, end, condemn: None,
        awake: Awake | None = None,
    ) -> None:
        """
        Args:
            launch_config: called for each start. If it raises, the start has failed.
            channel_to: creates the kernel's end of a link, given the service's name.
            handoff: called for each READY generation that has a handoff socket, with the kernel's end of it and a
                function that ends the generation for breaking the protocol.
            placement: starts the services.
            awake: is told which processes are awake.

        Raises:
            ValueError: the specs are inconsistent; the message names the field.
        """
        check(specs, zygotes)
        self.plan = Plan(specs)
        self._state = self.plan.first()
        self._placement = placement
        self._sink = sink
        self._launch_config = launch_config
        self._channel_to = channel_to
        self._handoff = handoff
        self._held = HeldBytes()
        self._awake = awake or Awake()
        self._generations: dict[str, Life] = {}
        self._recoveries: dict[str, Recovery] = {}
        self._dead: set[str] = set()
        """Services whose death is on the timeline, and whose recovery is not yet."""
        self._queue: collections.deque[Event] = collections.deque()
        self._applying = False
        self._nursery: trio.Nursery | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._over = trio.Event()
        self.witness: Callable[[TimelineEvent], None] = lambda event: None
        """Notified of deaths, recoveries, failures and manual stops."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start all services and keep them alive until `shutdown`. Reports started before any service is READY.

        On cancellation, all services are killed.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(self._placement.run)
                self._apply(policy_events.Boot())
                task_status.started()
                while not self._state.closing or any(child.lives for child in self._state.children.values()):
                    await self._changed.park()
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            self._over.set()

    async def shutdown(self) -> None:
        """End all services in order, dependents first, then the zygotes. Returns when `run` is over; takes bounded
        time.

        Cancellation does not stop the shutdown.
        """
        if self._nursery is not None:
            self._apply(policy_events.Close())
            await self._over.wait()

    def start(self, name: str) -> None:
        """Start a service that is stopped, failed or waiting; no effect if it runs. Raises InvalidParams, like `stop`,
        `restart` and `wanted`."""
        self._apply(policy_events.StartAsked(self.known(name)))

    def stop(self, name: str) -> None:
        """End a service in order; it stays stopped until `start`."""
        self._apply(policy_events.StopAsked(self.known(name)))

    def restart(self, name: str) -> None:
        """End a service in order and start it again now."""
        self._apply(policy_events.RestartAsked(self.known(name)))

    def add(self, spec: ServiceSpec) -> None:
        """Supervise another service. It starts now, or if it is lazy, when it is wanted. If a removed one of its name
        is still ending, it starts afterwards. Raises ValueError if the specs are then inconsistent."""
        if spec.name in self._state.children and not self._state.children[spec.name].removed:
            raise ValueError(f"there already is a service {spec.name!r}")
        self.plan.after(policy_events.Added(spec.name, spec))
        self._apply(policy_events.Added(spec.name, spec))

    def replace(self, spec: ServiceSpec) -> None:
        """Give a service another spec, or another launch configuration. It is restarted in order if it runs. Raises
        InvalidParams, ValueError."""
        self.plan.after(policy_events.Replaced(self.known(spec.name), spec))
        self._apply(policy_events.Replaced(spec.name, spec))

    def remove(self, name: str) -> None:
        """End a service in order and forget it; the sink is notified (`gone`) once its process has ended. Raises
        InvalidParams, and ValueError if others depend on it."""
        self.plan.without(self.known(name))
        self._apply(policy_events.Removed(name))

    def wanted(self, name: str) -> None:
        """Start this service because a call waits for it: wake it if it rests, or move it ahead of others at
        start-up."""
        self._placement.prioritize(self.known(name))
        self._apply(policy_events.Wanted(name))

    def known(self, name: str) -> str:
        """Return `name` if it is a service. Raises InvalidParams if not."""
        if name not in self.plan.specs:
            known = ", ".join(self.plan.specs)
            raise InvalidParams(f"there is no service {name!r}; services: {known}", field="service")
        return name

    def generation(self, name: str) -> int:
        """Return the number of the latest generation; 0 before the first."""
        return self._state.children[name].generation

    def state(self, name: str) -> ServiceState:
        return self._state.children[name].state

    def info(self, name: str) -> Mapping[str, str]:
        """Return what the service's process says of itself."""
        generation = self._generations.get(name)
        return {} if generation is None else generation.info

    async def wait_for(self, name: str, states: Collection[ServiceState], *, after_generation: int = 0) -> ServiceState:
        """Wait until the service is in one of `states`, in a generation after `after_generation`; return the state."""
        while True:
            child = self._state.children.get(name)
            if child is None:
                raise Unavailable(f"service {name} was removed")
            if child.state in states and child.generation > after_generation:
                return child.state
            await self._changed.park()

    def _apply(self, event: Event) -> None:
        # Carrying out a decision may cause another event, which is handled afterwards.
        self._queue.append(event)
        if self._applying:
            return
        self._applying = True
        try:
            while self._queue:
                event = self._queue.popleft()
                self.plan = self.plan.after(event)
                self._state, decisions = policy.decide(
                    self.plan, self._state, event, trio.current_time(), random.random()
                )
                for decision in decisions:
                    self._carry_out(decision)
        finally:
            self._applying = False
            self._changed.unpark_all()

    def _carry_out(self, decision: Decision) -> None:
        nursery = self._nursery
        if nursery is None:
            return
        match decision:
            case policy_events.Spawn(name, number, mode):
                generation = Life(
                    self.plan.specs[name], number, mode, self._sink,
                    channel_to=self._channel_to,
                    on_ready=self._became_ready,
                    on_idle=lambda idle: self._apply(policy_events.Idle(idle.service, idle.number)),
                    held=self._held,
                    awake=self._awake,
                )  # fmt: skip
                self._generations[name] = generation
                nursery.start_soon(run_isolated, f"the life of {name}", self._live, generation)
            case policy_events.End(name, number, why, rests):
                if self._generations[name].number == number:
                    kind = CauseKind.RESTED if rests else CauseKind.STOPPED
                    self._generations[name].end(Cause(kind, None, why))
            case policy_events.Wake(at, event):
                nursery.start_soon(run_isolated, f"{event}", self._wake, at, event)
            case policy_events.Notify(name, state, reason, retry_at):
                if state in (ServiceState.STOPPED, ServiceState.FAILED, ServiceState.RESTING):
                    self._placement.dismiss(name)
                level = logging.ERROR if state is ServiceState.FAILED else logging.INFO
                when = f", next try in {retry_at - trio.current_time():.1f} s" if retry_at is not None else ""
                detail = f": {reason}" if reason else ""
                extra = ROUTINE if self._routine(name, state) else {}
                _log.log(level, "%s is %s%s%s", name, state, detail, when, extra=extra)
                if state in (ServiceState.FAILED, ServiceState.STOPPED) and not self._state.closing:
                    self.witness(TimelineEvent(service=name, kind=state.value, text=reason))
                self._sink.state(name, state, reason, retry_at)
            case policy_events.Gone(name):
                self._forget(name)
            case policy_events.Renewed(name):
                self._placement.renew_log(name)

    def _forget(self, name: str) -> None:
        """Forget a service that was removed."""
        self.plan = self.plan.without(name)
        self._recoveries.pop(name, None)
        self._placement.forget(name)
        _log.info("%s was removed", name)
        self._sink.gone(name)

    def _routine(self, name: str, state: ServiceState) -> bool:
        """Return whether this is normal operation: the first start, the shutdown, a rest."""
        begins = state in (ServiceState.WAITING, ServiceState.STARTING, ServiceState.READY)
        unhurt = begins and not self._state.children[name].restarts
        return self._state.closing or unhurt or state is ServiceState.RESTING

    async def _wake(self, at: float, event: Event) -> None:
        await trio.sleep_until(at)
        self._apply(event)

    async def _live(self, generation: Life) -> None:
        name, number = generation.service, generation.number
        try:
            launch = self._launch_config(generation.spec, number, generation.mode)
            ended = await generation.run(self._placement, launch)
        except Exception as error:  # noqa: BLE001  # a defect in one service's launch or watch must not end the system
            _log.exception("%s generation %d could not be supervised", name, number)
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            cause = Cause(CauseKind.SPAWN, None, f"{type(error).__name__}: {error}")
            ended = Ended(cause=cause, noticed_at=trio.current_time())
        self._generations.pop(name, None)
        cause = ended.cause
        with isolated(f"the end of {name}"):
            self._sink.down(generation, cause)
        if cause.kind is not CauseKind.RESTED:
            answered_ms = (trio.current_time() - ended.noticed_at) * 1000
            level, extra = (logging.WARNING, {}) if cause.is_crash else (logging.INFO, ROUTINE)
            _log.log(level, "%s generation %d died (%s): %s", name, number, cause.kind, cause.text, extra=extra)
            if not self._state.closing and cause.kind is not CauseKind.STOPPED:
                died = TimelineEvent(
                    service=name, kind="died", generation=number, cause=cause.kind.value, text=cause.text
                )
                self.witness(died)
                self._dead.add(name)
            self._recoveries[name] = Recovery(noticed_at=ended.noticed_at, answered_ms=answered_ms)
        self._apply(policy_events.Died(name, number, cause))

    def _became_ready(self, generation: Life) -> None:
        name, running = generation.service, generation.running
        recovery = self._recoveries.get(name)
        if recovery is not None and recovery.ready_ms is None:
            recovery.ready_ms = (trio.current_time() - recovery.noticed_at) * 1000
            if name in self._dead:
                self._dead.discard(name)
                recovery_ms = round(recovery.ready_ms, 1)
                recovered = TimelineEvent(
                    service=name, kind="recovered", generation=generation.number, recovery_ms=recovery_ms
                )
                self.witness(recovered)
        if running is not None and running.handoff is not None:
            self._handoff(name, running.handoff, generation.condemn)
        self._apply(policy_events.BecameReady(name, generation.number))

    def status(self) -> Report:
        """Return the current state of everything; takes some 0.1 ms per service."""
        services = tuple(self._report(name) for name in self.plan.specs)
        return Report(services=services, zygotes=self._placement.zygote_reports(), cluster=self._placement.status())

    def _report(self, name: str) -> ServiceReport:
        child = self._state.children[name]
        spec = self.plan.specs[name]
        generation = self._generations.get(name)
        running = generation.running if generation is not None else None
        recovery = self._recoveries.get(name)
        now = trio.current_time()
        report = ServiceReport(
            name=name,
            state=child.state,
            reason=child.reason,
            generation=child.generation,
            standby_pid=self._placement.standby_pid(name),
            mode=spec.modes[child.mode] if spec.modes else "",
            restarts=child.restarts,
            deaths={kind.value: count for kind, count in child.deaths.items()},
            last_death="" if child.last_death is None else child.last_death.text or child.last_death.kind.value,
            retry_in_s=None if child.retry_at is None else max(0.0, child.retry_at - now),
            recovery_ms=recovery.ready_ms if recovery is not None else None,
            answered_ms=recovery.answered_ms if recovery is not None else None,
        )
        if generation is None or running is None:
            return report
        round_trip_s = generation.liveness.round_trip_s
        # Here, another process may have the number that it has on its node.
        pid = running.pid if not running.node else None
        measure = processes.resident_bytes
        rss_bytes = None if pid is None else processes.total(measure, pid, with_programs=spec.programs)
        return msgspec.structs.replace(
            report,
            pid=pid,
            node=f"{running.node} (process {running.pid})" if running.node else "",
            programs=spec.programs,
            how=running.how,
            uptime_s=now - generation.ready_at if generation.ready_at is not None else None,
            rss_bytes=rss_bytes,
            in_flight=generation.in_flight,
            ping_ms=round_trip_s * 1000 if round_trip_s is not None else None,
            info=generation.info,
            backlogs=generation.backlogs,
        )
