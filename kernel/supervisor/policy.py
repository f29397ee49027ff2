"""The restart policy: what becomes of the services when something happens, as a pure function.

`decide` takes the state, what happened, the time and one random number, and gives the new state and the decisions:
Erlang/OTP's semantics for services that are restarted each for itself (restart types, intensity), and beyond them:

- a restart after healthy time is immediate; after that come exponential delays, and healthy time resets them;
- the system never ends because of a service: past its intensity it is FAILED, and gets one try after a stated time;
- what a person stopped stays stopped, whatever was planned;
- death by a signal from outside (`kill -9`) of a service that was READY is restarted at once and not counted;
- a service that is not called may rest, without a process, and starts at the next call, also where that comes while it
  is still ending.  A rest is neither a death nor a restart;
- a service that keeps dying in one mode goes on in the next, and comes back to the better one after healthy time.
"""

from __future__ import annotations

import signal
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from linckia.kernel.ports import Cause, CauseKind, ServiceState
from linckia.kernel.supervisor.spec import Backoff, Restart, ServiceSpec, check, shutdown_waves

MAX_CLIMB_DOUBLINGS = 7
"""A better mode that keeps failing is tried ever less often, down to once in 128 times `climb_after_s`."""

RESTS = "it was not called for a while, and starts at the next call"

OUTSIDE_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Not raised by a process in itself by mistake; the operating system's own SIGKILL is told apart as OOM before."""

_GONE = (ServiceState.FAILED, ServiceState.STOPPED, ServiceState.RESTING)


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """One service.  Times are on the caller's clock, in seconds."""

    state: ServiceState = ServiceState.STOPPED
    reason: str = "not started yet"
    retry_at: float | None = None
    """In BACKOFF and FAILED: when it is started again."""
    generation: int = 0
    mode: int = 0
    ready_at: float | None = None
    """When this generation became READY."""
    waits_for: frozenset[str] = frozenset()
    crashes: tuple[float, ...] = ()
    """Deaths that count against the intensity, within its period."""
    streak: int = 0
    """Unhealthy deaths in a row: the exponent of the back-off."""
    mode_deaths: int = 0
    on_trial: bool = False
    """The try after FAILED: one more unhealthy death fails it again at once."""
    climbing: bool = False
    """This generation tries a better mode."""
    failed_climbs: int = 0
    crashed: bool = False
    """The next start is a restart after a death."""
    then: ServiceState = ServiceState.STOPPED
    """While DRAINING: its state once it has ended; WAITING where it is started again at once."""
    restarts: int = 0
    deaths: dict[CauseKind, int] = {}
    last_death: Cause | None = None

    @property
    def lives(self) -> bool:
        """Whether there is (or is just being made) a process."""
        return self.state in (ServiceState.STARTING, ServiceState.READY, ServiceState.DRAINING)


class State(msgspec.Struct, frozen=True, kw_only=True):
    """All services."""

    children: dict[str, Child]
    closing: bool = False


class Boot(msgspec.Struct, frozen=True):
    """Start everything."""


class Close(msgspec.Struct, frozen=True):
    """End everything in order; nothing is started any more."""


class OfService(msgspec.Struct, frozen=True):
    name: str


class Due(OfService, frozen=True):
    """It is time for a planned start."""


class Wanted(OfService, frozen=True):
    """A call waits for a service that rests, or is about to."""


class StartAsked(OfService, frozen=True): ...


class StopAsked(OfService, frozen=True): ...


class RestartAsked(OfService, frozen=True): ...


class OfGeneration(OfService, frozen=True):
    generation: int


class BecameReady(OfGeneration, frozen=True): ...


class Idle(OfGeneration, frozen=True):
    """It has had nothing to do for as long as its spec says, and is to rest."""


class ClimbDue(OfGeneration, frozen=True):
    """It is time to try a better mode."""


class Died(OfGeneration, frozen=True):
    """The process is gone (or could not be made), whatever the reason."""

    cause: Cause


Happening: TypeAlias = (
    Boot | BecameReady | Died | Due | Idle | Wanted | ClimbDue | StartAsked | StopAsked | RestartAsked | Close
)  # fmt: skip


class Spawn(OfGeneration, frozen=True):
    """Start this generation."""

    mode: str


class End(OfGeneration, frozen=True):
    """End this generation in order (the kill ladder from its first rung)."""

    why: str
    rests: bool = False
    """For want of anything to do."""


class Wake(msgspec.Struct, frozen=True):
    """Say that this happened, at that time."""

    at: float
    happening: Due | ClimbDue


class Tell(OfService, frozen=True):
    """The state of a service changed."""

    state: ServiceState
    reason: str
    retry_at: float | None


Decision: TypeAlias = Spawn | End | Wake | Tell


class Plan:
    """The specs, in start order, and waves of shutdown.  Raises ValueError as `spec.check` does."""

    def __init__(self, specs: tuple[ServiceSpec, ...]) -> None:
        check(specs)
        self.specs = {spec.name: spec for spec in specs}
        self.waves = shutdown_waves(specs)

    def first(self) -> State:
        """Before anything was started."""
        return State(children={name: Child() for name in self.specs})


def decide(
    plan: Plan, state: State, happening: Happening, now: float, random: float
) -> tuple[State, tuple[Decision, ...]]:
    """What becomes of `state`, and the decisions in the order in which they are carried out.

    Args:
        now: seconds, on one monotonic clock.
        random: in [0, 1), for the jitter.
    """
    step = _Step(plan, state, now, random)
    step.take(happening)
    return step.finish()


def delay_s(backoff: Backoff, streak: int, random: float) -> float:
    """The wait before a restart, after `streak` unhealthy deaths in a row before this one."""
    if streak == 0:
        return 0.0
    # The exponent is bounded so that a very long streak cannot overflow.
    delay = min(backoff.max_s, backoff.base_s * backoff.factor ** min(streak - 1, 64))
    return delay * (1 + backoff.jitter * random)


def _told(children: dict[str, Child]) -> list[Tell]:
    return [Tell(name, child.state, child.reason, child.retry_at) for name, child in children.items()]


class _Step:
    """The state made mutable while one happening is worked out; `finish` gives the new state and the decisions."""

    def __init__(self, plan: Plan, state: State, now: float, random: float) -> None:
        self.plan = plan
        self.before = state
        self.now = now
        self.random = random
        self.children = dict(state.children)
        self.closing = state.closing
        self.decisions: list[Decision] = []

    def take(self, happening: Happening) -> None:
        match happening:
            case Boot():
                for name, spec in self.plan.specs.items():
                    self._set(name, state=ServiceState.WAITING, waits_for=frozenset(spec.depends_on))
            case Close():
                self.closing = True
                for name, child in self.children.items():
                    if not child.lives:
                        self._down(name, ServiceState.STOPPED, child.reason or "the system ends")
            case BecameReady(name, generation):
                self._became_ready(name, generation)
            case Died(name, generation, cause):
                if self.children[name].generation == generation and self.children[name].lives:
                    self._died(name, cause)
            case StopAsked(name):
                self._soon(name, ServiceState.STOPPED, "stopped on request")
            case _ if not self.closing:
                self._take_while_open(happening)

    def _take_while_open(self, happening: Happening) -> None:
        """What means nothing any more once the system ends."""
        match happening:
            case Due(name):
                retry_at = self.children[name].retry_at
                if retry_at is not None and retry_at <= self.now:
                    self._start_soon(name, "")
            case Idle(name, generation):
                if self._is_ready(name, generation):
                    self._end(name, RESTS, ServiceState.RESTING, rests=True)
            case Wanted(name):
                child = self.children[name]
                if ServiceState.RESTING in (child.state, child.then):
                    self._start_soon(name, child.reason)
            case ClimbDue(name, generation):
                self._climb(name, generation)
            case StartAsked(name):
                child = self.children[name]
                if child.state is ServiceState.DRAINING or not child.lives:
                    self._clear_record(name)
                    self._start_soon(name, "started on request")
            case RestartAsked(name):
                self._clear_record(name)
                self._start_soon(name, "restarted on request")

    def finish(self) -> tuple[State, tuple[Decision, ...]]:
        if self.closing:
            self._close_next_wave()
        else:
            self._start_released()
        told, before = map(_told, (self.children, self.before.children))
        news = [now for now, then in zip(told, before, strict=True) if now != then]
        return State(children=self.children, closing=self.closing), (*news, *self.decisions)

    def _set(self, name: str, **changes: object) -> Child:
        child = self.children[name] = replace(self.children[name], **changes)
        return child

    def _down(self, name: str, state: ServiceState, reason: str, retry_at: float | None = None) -> None:
        self._set(
            name, state=state, reason=reason, retry_at=retry_at, ready_at=None, waits_for=frozenset(),
            then=ServiceState.STOPPED,
        )  # fmt: skip

    def _end(self, name: str, why: str, then: ServiceState, *, rests: bool = False) -> None:
        child = self._set(name, state=ServiceState.DRAINING, reason=why, then=then)
        self.decisions.append(End(name, child.generation, why, rests=rests))

    def _start_soon(self, name: str, why: str) -> None:
        self._soon(name, ServiceState.WAITING, why)

    def _soon(self, name: str, state: ServiceState, why: str) -> None:
        """Have it be STOPPED, or started (WAITING), in this step or as soon as the process that it has is gone."""
        child = self.children[name]
        if child.state is ServiceState.DRAINING:
            self._set(name, reason=why, then=state)
        elif child.lives:
            self._end(name, why, state)
        else:
            self._down(name, state, why)

    def _start_later(self, name: str, state: ServiceState, delay: float, reason: str) -> None:
        if delay > 0:
            self._down(name, state, reason, self.now + delay)
            self.decisions.append(Wake(self.now + delay, Due(name)))
        else:
            self._start_soon(name, reason)

    def _start_released(self) -> None:
        """Start those whose wait is over.  A dependency that will not come soon does not hold its dependents back."""
        for name, spec in self.plan.specs.items():
            child = self.children[name]
            if child.state is not ServiceState.WAITING:
                continue
            held_by = [other for other in sorted(child.waits_for) if self.children[other].state not in _GONE]
            if held_by:
                self._set(name, reason=f"waits for {', '.join(held_by)} to be ready")
                continue
            self._down(name, ServiceState.STARTING, "")
            child = self._set(
                name, generation=child.generation + 1, crashed=False, restarts=child.restarts + child.crashed
            )
            self.decisions.append(Spawn(name, child.generation, spec.modes[child.mode] if spec.modes else ""))

    def _close_next_wave(self) -> None:
        for wave in self.plan.waves:
            living = [name for name in wave if self.children[name].lives]
            for name in living:
                if self.children[name].state is not ServiceState.DRAINING:
                    self._end(name, "the system ends", ServiceState.STOPPED)
            if living:
                return

    def _is_ready(self, name: str, generation: int) -> bool:
        child = self.children[name]
        return child.generation == generation and child.state is ServiceState.READY

    def _became_ready(self, name: str, generation: int) -> None:
        child = self.children[name]
        if child.generation != generation or child.state is not ServiceState.STARTING:
            return
        self._set(name, state=ServiceState.READY, ready_at=self.now)
        for other, waiting in self.children.items():
            if name in waiting.waits_for:
                self._set(other, waits_for=waiting.waits_for - {name})
        if child.mode > 0:
            patience = self.plan.specs[name].climb_after_s * 2 ** min(child.failed_climbs, MAX_CLIMB_DOUBLINGS)
            self.decisions.append(Wake(self.now + patience, ClimbDue(name, generation)))

    def _climb(self, name: str, generation: int) -> None:
        child = self.children[name]
        if self._is_ready(name, generation) and child.mode > 0:
            better = child.mode - 1
            self._set(name, mode=better, climbing=True, crashes=(), streak=0, mode_deaths=0)
            self._start_soon(name, f"tries mode {self.plan.specs[name].modes[better]} again")

    def _died(self, name: str, cause: Cause) -> None:
        spec, child = self.plan.specs[name], self.children[name]
        if cause.kind is not CauseKind.RESTED:
            deaths = {**child.deaths, cause.kind: child.deaths.get(cause.kind, 0) + 1}
            child = self._set(name, deaths=deaths, last_death=cause)
        if child.state is ServiceState.DRAINING or self.closing:
            # It was ended, so whatever it died of counts for nothing more.
            self._down(name, ServiceState.STOPPED if self.closing else child.then, child.reason)
        elif spec.restart is Restart.PERMANENT or (spec.restart is Restart.TRANSIENT and cause.is_crash):
            self._crashed(spec, cause)
        else:
            self._down(name, ServiceState.STOPPED, f"ended: {cause.text or cause.kind}")

    def _crashed(self, spec: ServiceSpec, cause: Cause) -> None:
        name = spec.name
        ready_at = self.children[name].ready_at
        # The process is gone; only its record matters from here on.
        child = self._set(name, state=ServiceState.STOPPED, crashed=True)
        if ready_at is not None and self.now - ready_at >= spec.backoff.healthy_after_s:
            climbs = 0 if child.climbing else child.failed_climbs
            child = self._set(name, streak=0, mode_deaths=0, on_trial=False, climbing=False, failed_climbs=climbs)
        if cause.kind is CauseKind.SIGNAL and cause.code in OUTSIDE_SIGNALS and ready_at is not None:
            self._start_soon(name, cause.text)
            return

        crashes = (*(time for time in child.crashes if time > self.now - spec.period_s), self.now)
        given_up = len(crashes) > spec.intensity or child.on_trial
        delay = delay_s(spec.backoff, child.streak, self.random)
        self._set(name, crashes=crashes, streak=child.streak + 1, mode_deaths=child.mode_deaths + 1)
        lower = child.mode + 1
        if lower < len(spec.modes) and (child.climbing or given_up or child.mode_deaths + 1 >= spec.descend_after):
            # Another mode is another hypothesis: it starts at once and with a clean record.
            climbs = child.failed_climbs + child.climbing
            self._set(name, mode=lower, crashes=(), streak=0, mode_deaths=0, climbing=False, failed_climbs=climbs)
            self._start_soon(name, cause.text)
        elif given_up:
            why = "died again when tried" if child.on_trial else f"{len(crashes)} deaths within {spec.period_s:g} s"
            self._set(name, crashes=(), on_trial=True)
            retry_s = spec.backoff.retry_s * (1 + spec.backoff.jitter * self.random)
            self._start_later(name, ServiceState.FAILED, retry_s, f"{why}; the last: {cause.text or cause.kind}")
        else:
            self._start_later(name, ServiceState.BACKOFF, delay, cause.text)

    def _clear_record(self, name: str) -> None:
        self._set(name, crashes=(), streak=0, mode_deaths=0, on_trial=False)
