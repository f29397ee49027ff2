"""The restart policy: decides what happens to services after an event, as a pure function.

`decide` takes the state, the event, the time and a random number, and returns the new state and decisions. It follows
Erlang/OTP's one-for-one semantics (restart types, intensity), with these additions:

- The first restart after healthy time is immediate. Further ones are delayed exponentially; healthy time resets that.
- The system never ends because of a service. A service that exceeds its intensity is FAILED and retried once after a
  stated time.
- A service that a person stopped stays stopped, whatever was planned.
- A READY service that dies from an external signal (`kill -9`) restarts at once, and the death is not counted.
- A service that is not called may rest, without a process. The next call starts it, even while it is still ending. A
  rest is neither a death nor a restart.
- Services may be added, changed and removed at any time. A removed one ends in order, and is forgotten.
- A lazy service rests until its first call, and after FAILED until its next one.
- A service that keeps dying in one mode switches to the next, and returns to the better one after healthy time.
"""

from __future__ import annotations

import signal

from msgspec.structs import replace

from kernel.configure.spec import Backoff, Restart, ServiceSpec, check, shutdown_waves
from kernel.router.generation import ServiceState
from kernel.router.ports import Cause, CauseKind
from kernel.supervisor.policy_events import (
    Added,
    BecameReady,
    Boot,
    Child,
    ClimbDue,
    Close,
    Decision,
    Died,
    Due,
    End,
    Event,
    Gone,
    Idle,
    Notify,
    OfService,
    Removed,
    Renewed,
    Replaced,
    RestartAsked,
    Spawn,
    StartAsked,
    State,
    StopAsked,
    Wake,
    Wanted,
)

MAX_CLIMB_DOUBLINGS = 7
"""The interval between tries of a better mode doubles with each failure, up to 128 times `climb_after_s`."""

STARTS_LATER = "it starts at the first call"

RESTS = "it was not called for a while, and starts at the next call"

OUTSIDE_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals that a process does not raise in itself by mistake. SIGKILL by the OOM killer is recognized earlier."""

_GONE = (ServiceState.FAILED, ServiceState.STOPPED, ServiceState.RESTING)


class Plan:
    """The specs in start order, and the shutdown waves. Raises ValueError like `spec.check`."""

    def __init__(self, specs: tuple[ServiceSpec, ...]) -> None:
        check(specs)
        self.specs = {spec.name: spec for spec in specs}
        self.waves = shutdown_waves(specs)

    def first(self) -> State:
        """Return the state before anything is started."""
        return State(children={name: Child() for name in self.specs})

    def after(self, event: Event) -> Plan:
        """Return the plan that applies from this event on. Raises ValueError like `spec.check`."""
        match event:
            case Added(name, spec) | Replaced(name, spec):
                return Plan(tuple({**self.specs, name: spec}.values()))
            case _:
                return self

    def without(self, name: str) -> Plan:
        """Return the plan without a service that is gone. Raises ValueError if others depend on it."""
        return Plan(tuple(spec for spec in self.specs.values() if spec.name != name))


def decide(plan: Plan, state: State, event: Event, now: float, random: float) -> tuple[State, tuple[Decision, ...]]:
    """Return the new state, and the decisions in the order to carry them out.

    Args:
        plan: as of this event (`Plan.after`).
        now: seconds on a monotonic clock.
        random: number in [0, 1), for jitter.
    """
    step = _Step(plan, state, now, random)
    step.take(event)
    return step.finish()


def delay_s(backoff: Backoff, streak: int, random: float) -> float:
    """Return the delay before a restart, given the number of consecutive unhealthy deaths before this one."""
    if streak == 0:
        return 0.0
    # The exponent is bounded so that a very long streak cannot overflow.
    delay = min(backoff.max_s, backoff.base_s * backoff.factor ** min(streak - 1, 64))
    return delay * (1 + backoff.jitter * random)


def _notification(name: str, child: Child) -> Notify:
    return Notify(name, child.state, child.reason, child.retry_at)


class _Step:
    """A mutable copy of the state while one event is handled; `finish` returns the new state and the decisions."""

    def __init__(self, plan: Plan, state: State, now: float, random: float) -> None:
        self.plan = plan
        self.before = state
        self.now = now
        self.random = random
        self.children = dict(state.children)
        self.closing = state.closing
        self.decisions: list[Decision] = []

    def take(self, event: Event) -> None:
        if isinstance(event, OfService) and not isinstance(event, Added):
            child = self.children.get(event.name)
            if child is None or (child.removed and not isinstance(event, Died)):
                return
        match event:
            case Boot():
                for name, spec in self.plan.specs.items():
                    self._boot(name, spec)
            case Added(name, spec):
                self._add(name, spec)
            case Removed(name):
                self._remove(name)
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
                self._take_while_open(event)

    def _take_while_open(self, event: Event) -> None:
        """Handle events that are ignored during shutdown."""
        match event:
            case Due(name):
                child = self.children[name]
                if child.retry_at is None or child.retry_at > self.now:
                    return
                if child.state is ServiceState.FAILED and self.plan.specs[name].lazy:
                    # Nobody may ever call it again.
                    self._down(name, ServiceState.RESTING, f"{child.reason}; the next call starts it again")
                else:
                    self._start_soon(name, "")
            case Replaced(name, spec):
                self._replace(name, spec)
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
        before = self.before.children
        changes = [
            new
            for name, child in self.children.items()
            if child is not (old := before.get(name))
            and (new := _notification(name, child)) != (None if old is None else _notification(name, old))
        ]
        return State(children=self.children, closing=self.closing), (*changes, *self.decisions)

    def _set(self, name: str, **changes: object) -> Child:
        child = self.children[name] = replace(self.children[name], **changes)
        return child

    def _boot(self, name: str, spec: ServiceSpec) -> None:
        if spec.lazy:
            self._down(name, ServiceState.RESTING, STARTS_LATER)
        else:
            waits_for = frozenset(each for each in spec.depends_on if not self._is_up(each))
            self._set(name, state=ServiceState.WAITING, waits_for=waits_for)

    def _add(self, name: str, spec: ServiceSpec) -> None:
        if name in self.children:
            # The one that was removed is still ending.
            then = ServiceState.RESTING if spec.lazy else ServiceState.WAITING
            self._set(name, removed=False, renewed=True, then=then, reason="added again")
            self._set(name, deaths={}, last_death=None, restarts=0)
            self._clear_record(name)
            return
        self.children[name] = Child()
        if self.closing:
            self._down(name, ServiceState.STOPPED, "the system ends")
        else:
            self._boot(name, spec)

    def _replace(self, name: str, spec: ServiceSpec) -> None:
        why = "restarted with other settings"
        self._clear_record(name)
        self._set(name, mode=0, climbing=False)
        match self.children[name].state:
            case ServiceState.STARTING | ServiceState.READY:
                self._end(name, why, ServiceState.WAITING)
            case ServiceState.WAITING | ServiceState.BACKOFF | ServiceState.FAILED | ServiceState.RESTING:
                if spec.lazy:
                    self._down(name, ServiceState.RESTING, STARTS_LATER)
                else:
                    self._start_soon(name, why)
            case _:
                # Its next generation has them.
                pass

    def _remove(self, name: str) -> None:
        child = self._set(name, removed=True)
        if not child.lives:
            self._forget(name)
        elif child.state is not ServiceState.DRAINING:
            self._end(name, "it was removed", ServiceState.STOPPED)

    def _forget(self, name: str) -> None:
        del self.children[name]
        self.decisions.append(Gone(name))

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
        """Make it STOPPED, or start it (WAITING): in this step, or once its current process is gone."""
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
        """Start services that have waited long enough. A dependency that will not start soon does not hold them
        back."""
        for name, spec in self.plan.specs.items():
            child = self.children.get(name)
            if child is None or child.state is not ServiceState.WAITING:
                continue
            held_by = [other for other in sorted(child.waits_for) if self._may_start(other)]
            if held_by:
                self._set(name, reason=f"waits for {', '.join(held_by)} to be ready")
                continue
            self._down(name, ServiceState.STARTING, "")
            child = self._set(
                name, generation=child.generation + 1, crashed=False, restarts=child.restarts + child.crashed
            )
            self.decisions.append(Spawn(name, child.generation, spec.modes[child.mode] if spec.modes else ""))

    def _is_up(self, name: str) -> bool:
        return name in self.children and self.children[name].state is ServiceState.READY

    def _may_start(self, name: str) -> bool:
        return name in self.children and self.children[name].state not in _GONE

    def _close_next_wave(self) -> None:
        for wave in self.plan.waves:
            living = [name for name in wave if name in self.children and self.children[name].lives]
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
        if child.renewed:
            child = self._set(name, renewed=False)
            self.decisions.append(Renewed(name))
        elif cause.kind is not CauseKind.RESTED:
            deaths = {**child.deaths, cause.kind: child.deaths.get(cause.kind, 0) + 1}
            child = self._set(name, deaths=deaths, last_death=cause)
        if child.removed:
            self._forget(name)
        elif child.state is ServiceState.DRAINING or self.closing:
            # It was ended on purpose, so the cause of death no longer matters.
            self._down(name, ServiceState.STOPPED if self.closing else child.then, child.reason)
        elif spec.restart is Restart.PERMANENT or (spec.restart is Restart.TRANSIENT and cause.is_crash):
            self._crashed(spec, cause)
        else:
            self._down(name, ServiceState.STOPPED, f"ended: {cause.text or cause.kind}")

    def _crashed(self, spec: ServiceSpec, cause: Cause) -> None:
        name = spec.name
        ready_at = self.children[name].ready_at
        # Only the record matters from here on: the process is gone.
        child = self._set(name, state=ServiceState.STOPPED, crashed=True)
        if ready_at is not None and self.now - ready_at >= spec.backoff.healthy_after_s:
            climbs = 0 if child.climbing else child.failed_climbs
            child = self._set(name, streak=0, mode_deaths=0, on_trial=False, climbing=False, failed_climbs=climbs)
        if cause.kind is CauseKind.SIGNAL and cause.code in OUTSIDE_SIGNALS and ready_at is not None:
            self._start_soon(name, cause.text)
            return

        crashes = (*(time for time in child.crashes if time > self.now - spec.period_s), self.now)
        failed_starts = child.streak + 1 if ready_at is None else 0
        never_starts = spec.start_tries is not None and failed_starts >= spec.start_tries
        given_up = len(crashes) > spec.intensity or child.on_trial or never_starts
        delay = delay_s(spec.backoff, child.streak, self.random)
        self._set(name, crashes=crashes, streak=child.streak + 1, mode_deaths=child.mode_deaths + 1)
        lower = child.mode + 1
        if lower < len(spec.modes) and (child.climbing or given_up or child.mode_deaths + 1 >= spec.descend_after):
            # The next mode may not have the defect: it starts at once, with a clean record.
            climbs = child.failed_climbs + child.climbing
            self._set(name, mode=lower, crashes=(), streak=0, mode_deaths=0, climbing=False, failed_climbs=climbs)
            self._start_soon(name, cause.text)
        elif given_up:
            why = f"{len(crashes)} deaths within {spec.period_s:g} s"
            if child.on_trial:
                why = "died again when tried"
            elif never_starts:
                why = f"{failed_starts} starts in a row have failed"
            self._set(name, crashes=(), on_trial=True)
            retry_s = spec.backoff.retry_s * (1 + spec.backoff.jitter * self.random)
            self._start_later(name, ServiceState.FAILED, retry_s, f"{why}; the last: {cause.text or cause.kind}")
        else:
            self._start_later(name, ServiceState.BACKOFF, delay, cause.text)

    def _clear_record(self, name: str) -> None:
        self._set(name, crashes=(), streak=0, mode_deaths=0, on_trial=False)
