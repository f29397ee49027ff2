"""The restart policy: what becomes of the tree when something happens, as a pure function.

`decide` takes the state, what happened, the time and one random number, and gives the new state and what is to be done.
It promises Erlang/OTP's semantics (restart types, strategies, intensity with escalation), and beyond them:

- a restart after healthy time is immediate; after that come exponential delays, and healthy time resets them;
- the top of the tree never ends: past the intensity the culprit is FAILED, with the time of the next try, and that one
  try is all it gets before it is FAILED again, so there is no busy loop;
- what a person stopped stays stopped: every planned start carries a ticket, and stopping withdraws it;
- death by a signal from outside (`kill -9` by a person) of a service that was READY is no defect of its own: it is
  restarted at once and not counted, since each turn of such a loop needs the outsider;
- a service that nobody calls may rest, without a process, and starts at the next call, also where that comes while it
  is still ending; and one that has grown by its work may be made anew while nobody calls it.  Neither counts as a
  death or as a restart;
- a service that keeps dying in one mode goes on in the next, and comes back to the better one after healthy time.

Unlike OTP, a transient child that ended in order is not resurrected by the restart of its siblings.
"""

from __future__ import annotations

import signal

from msgspec.structs import replace

from kernel.ports import Cause, CauseKind, ServiceState
from kernel.supervisor.spec import Backoff, Node, Restart, ServiceSpec, TreeSpec, services
from kernel.supervisor.state import (
    BecameReady,
    Boot,
    Child,
    ClimbDue,
    Close,
    Decision,
    Died,
    Due,
    Happening,
    Idle,
    Plan,
    RestartAsked,
    StartAsked,
    State,
    StopAsked,
    WakeToClimb,
    Wanted,
)
from kernel.supervisor.step import Step

MAX_CLIMB_DOUBLINGS = 7
"""A better mode that keeps failing is tried ever less often, down to once in 128 times `climb_after_s`."""

RESTS = "it was not called for a while, and starts at the next call"

RENEWS = "it gives memory back that its work has left, and is here again in a moment"

OUTSIDE_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals that nobody raises in himself by mistake; the operating system's own SIGKILL is told apart as OOM before."""


def decide(
    plan: Plan, state: State, happening: Happening, now: float, random: float
) -> tuple[State, tuple[Decision, ...]]:
    """What becomes of `state`.

    Args:
        now: seconds, on one monotonic clock.
        random: in [0, 1), for the jitter.

    Returns: the new state, and what is to be done, in this order.
    """
    step = _Policy(plan, state, now, random)
    step.take(happening)
    return step.finish()


def delay_s(backoff: Backoff, streak: int, random: float) -> float:
    """The wait before a restart, after `streak` unhealthy deaths in a row before this one."""
    if streak == 0:
        return 0.0
    # The exponent is bounded so that a very long streak cannot overflow.
    delay = min(backoff.max_s, backoff.base_s * backoff.factor ** min(streak - 1, 64))
    return delay * (1 + backoff.jitter * random)


class _Policy(Step):
    """What each happening means."""

    def take(self, happening: Happening) -> None:
        match happening:
            case Boot():
                for name in self.plan.order:
                    self._set(name, state=ServiceState.WAITING, waits_for=frozenset(self.plan.specs[name].depends_on))
            case BecameReady(name, generation):
                self._became_ready(name, generation)
            case Died(name, generation, cause):
                if self.children[name].generation == generation and self.children[name].lives:
                    self._died(name, cause)
            case Due(ticket):
                for pending in self.pending:
                    if pending.ticket == ticket:
                        self._advance(pending)
                        break
            case Idle(name, generation):
                self._idle(name, generation)
            case Wanted(name):
                self._wanted(name)
            case ClimbDue(name, generation):
                self._climb(name, generation)
            case StartAsked(name):
                self._start_asked(name)
            case StopAsked(name):
                self._stop_asked(name)
            case RestartAsked(name):
                self._restart_asked(name)
            case Close():
                self._close()

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
            self.decisions.append(WakeToClimb(self.now + patience, name, generation))

    # Rest.

    def _idle(self, name: str, generation: int) -> None:
        child = self.children[name]
        # One that a restart is about to end, or that a person stops, has other things ahead.
        busy = self.closing or any(name in pending.members + pending.stopping for pending in self.pending)
        if child.generation == generation and child.state is ServiceState.READY and not busy:
            if self.plan.specs[name].rests_after_s is not None:
                self._end(name, RESTS, ServiceState.RESTING)
            else:
                self._end(name, RENEWS, ServiceState.WAITING)

    def _wanted(self, name: str) -> None:
        child = self.children[name]
        if child.state is ServiceState.RESTING and not self.closing:
            self._set(name, state=ServiceState.WAITING, waits_for=frozenset())
        elif child.state is ServiceState.DRAINING and child.then is ServiceState.RESTING:
            self._set(name, then=ServiceState.WAITING)

    # Deaths.

    def _died(self, name: str, cause: Cause) -> None:
        child = self.children[name]
        if cause.kind is not CauseKind.RESTED:
            deaths = {**child.deaths, cause.kind: child.deaths.get(cause.kind, 0) + 1}
            child = self._set(name, deaths=deaths, last_death=cause)
        restart = next((p for p in self.pending if name in p.stopping), None)
        if restart is not None:
            # It was about to be ended anyway, so whatever it died of counts for nothing more.
            self._settle(name, restart)
            self._advance(restart)
        elif child.state is ServiceState.DRAINING or self.closing:
            self._down(name, ServiceState.STOPPED if self.closing else child.then, child.reason)
        elif not _is_restarted(self.plan.specs[name].restart, cause):
            self._down(name, ServiceState.STOPPED, f"ended: {cause.text or cause.kind}")
        else:
            self._crashed(self.plan.specs[name], child, cause)

    def _crashed(self, spec: ServiceSpec, child: Child, cause: Cause) -> None:
        ready_for = None if child.ready_at is None else self.now - child.ready_at
        if ready_for is not None and ready_for >= spec.backoff.healthy_after_s:
            failed_climbs = 0 if child.climbing else child.failed_climbs
            child = replace(child, streak=0, mode_deaths=0, on_trial=False, climbing=False, failed_climbs=failed_climbs)
        self.children[spec.name] = replace(child, crashed=True)
        if cause.kind is CauseKind.SIGNAL and cause.code in OUTSIDE_SIGNALS and ready_for is not None:
            self._restart(spec, self.now, cause.text)
            return

        crashes = (*_within(child.crashes, self.now - spec.period_s), self.now)
        given_up = len(crashes) > spec.intensity or child.on_trial
        delay = delay_s(spec.backoff, child.streak, self.random)
        child = replace(
            child, crashed=True, crashes=crashes, streak=child.streak + 1, mode_deaths=child.mode_deaths + 1
        )
        lower = child.mode + 1
        if lower < len(spec.modes) and (child.climbing or given_up or child.mode_deaths >= spec.descend_after):
            # Another mode is another hypothesis: it starts at once and with a clean record.
            failed_climbs = child.failed_climbs + child.climbing
            child = replace(
                child, mode=lower, crashes=(), streak=0, mode_deaths=0, climbing=False, failed_climbs=failed_climbs
            )
            given_up, delay = False, 0.0
        self.children[spec.name] = child
        if given_up:
            text = (
                f"{len(crashes)} deaths within {spec.period_s:g} s" if not child.on_trial else "died again when tried"
            )
            self._exceeded(spec, delay, f"{text}; the last: {cause.text or cause.kind}")
        elif self._count_restart(self.plan.parent(spec)):
            self._restart(spec, self.now + delay, cause.text)
        else:
            tree = self.plan.parent(spec)
            self._exceeded(
                spec, delay, f"more than {tree.intensity} restarts within {tree.period_s:g} s in {tree.name}; "
                f"the last: {spec.name}, {cause.text or cause.kind}"
            )  # fmt: skip

    def _count_restart(self, tree: TreeSpec) -> bool:
        """Record a restart of one of its children; whether that is within the tree's intensity."""
        restarts = (*_within(self.tree_restarts.get(tree.name, ()), self.now - tree.period_s), self.now)
        self.tree_restarts[tree.name] = restarts
        return len(restarts) <= tree.intensity

    def _exceeded(self, spec: ServiceSpec, delay: float, reason: str) -> None:
        """A limit was passed: the service's tree gives up and leaves it to the tree above."""
        tree = self.plan.parent(spec)
        failing: Node = spec
        while tree is not self.plan.root:
            failing, tree = tree, self.plan.parent(tree)
            on_trial = self.tree_trials.get(failing.name, float("-inf")) > self.now
            if self._count_restart(tree) and not on_trial:
                self._forget_inside(failing)
                self._restart(failing, self.now + delay, f"{failing.name} is restarted as a whole: {reason}")
                return
        self._fail(failing, spec, reason)

    def _fail(self, failing: Node, culprit: ServiceSpec, reason: str) -> None:
        backoff = culprit.backoff
        due = self.now + backoff.retry_s * (1 + backoff.jitter * self.random)
        self._set(culprit.name, on_trial=True)
        self._forget_inside(failing)
        if isinstance(failing, TreeSpec):
            self.tree_trials[failing.name] = due + failing.period_s
        self.tree_restarts.pop(self.plan.root.name, None)
        self._restart(failing, due, reason, failed=True)

    def _forget_inside(self, node: Node) -> None:
        """A fresh supervisor has seen no restarts.  Back-off is kept, so that an escalation is no way round it."""
        for spec in services(node):
            self._set(spec.name, crashes=())
        if isinstance(node, TreeSpec):
            self.tree_restarts.pop(node.name, None)
            for child in node.children:
                if isinstance(child, TreeSpec):
                    self._forget_inside(child)

    # A person's wishes.

    def _stop_asked(self, name: str) -> None:
        remaining = self._withdraw(name)
        why = "stopped on request"
        self._set(name, wanted=False)
        if self.children[name].state is ServiceState.DRAINING:
            self._set(name, reason=why, then=ServiceState.STOPPED)
        elif self.children[name].lives:
            self._end(name, why)
        else:
            self._down(name, ServiceState.STOPPED, why)
        for pending in remaining:
            self._advance(pending)

    def _start_asked(self, name: str) -> None:
        child = self.children[name]
        if self.closing or (child.lives and child.state is not ServiceState.DRAINING):
            return
        self._set(name, crashes=(), streak=0, mode_deaths=0, on_trial=False, waits_for=frozenset(), wanted=True)
        self._plan_at_once(name, "started on request")

    def _restart_asked(self, name: str) -> None:
        if self.closing:
            return
        self._set(name, crashes=(), streak=0, mode_deaths=0, on_trial=False, waits_for=frozenset(), wanted=True)
        self._plan_at_once(name, "restarted on request")

    def _climb(self, name: str, generation: int) -> None:
        child = self.children[name]
        if child.generation != generation or child.state is not ServiceState.READY or child.mode == 0 or self.closing:
            return
        better = child.mode - 1
        self._set(name, mode=better, climbing=True, crashes=(), streak=0, mode_deaths=0)
        self._plan_at_once(name, f"tries mode {self.plan.specs[name].modes[better]} again")

    # The end.

    def _close(self) -> None:
        self.closing = True
        self.pending.clear()
        for name, child in self.children.items():
            if not child.lives:
                self._down(name, ServiceState.STOPPED, child.reason or "the system ends")


def _is_restarted(restart: Restart, cause: Cause) -> bool:
    return restart is Restart.PERMANENT or (restart is Restart.TRANSIENT and cause.is_crash)


def _within(times: tuple[float, ...], since: float) -> tuple[float, ...]:
    return tuple(time for time in times if time > since)
