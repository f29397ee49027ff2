"""One step of the restart policy while it is worked out: the state made mutable, and the moves of which rules are made.

A restart of one service or of many is the same move: end those that run, one by one, last started first; wait until it
is due; start them in their order, each once what it depends on is READY.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from kernel.ports import ServiceState
from kernel.supervisor.spec import Node, Restart, ServiceSpec, Strategy, services
from kernel.supervisor.state import Child, Decision, End, Pending, Plan, Spawn, State, Tell, Wake


class Step:
    """Mutable while it runs, seen by nobody; `finish` gives the new state and what is to be done."""

    def __init__(self, plan: Plan, state: State, now: float, random: float) -> None:
        self.plan = plan
        self.before = state
        self.now = now
        self.random = random
        self.children = dict(state.children)
        self.pending = list(state.pending)
        self.tree_restarts = dict(state.tree_restarts)
        self.tree_trials = dict(state.tree_trials)
        self.tickets = state.tickets
        self.closing = state.closing
        self.decisions: list[Decision] = []

    def finish(self) -> tuple[State, tuple[Decision, ...]]:
        if self.closing:
            self._close_next_wave()
        else:
            self._start_released()
        told = [
            Tell(name, child.state, child.reason, child.retry_at)
            for name, child in self.children.items()
            if (child.state, child.reason, child.retry_at) != _shown(self.before.children[name])
        ]
        state = State(
            children=self.children,
            pending=tuple(self.pending),
            tree_restarts=self.tree_restarts,
            tree_trials=self.tree_trials,
            tickets=self.tickets,
            closing=self.closing,
        )
        return state, (*told, *self.decisions)

    # One service.

    def _set(self, name: str, **changes: object) -> Child:
        child = self.children[name] = replace(self.children[name], **changes)
        return child

    def _down(self, name: str, state: ServiceState, reason: str, retry_at: float | None = None) -> None:
        self._set(name, state=state, reason=reason, retry_at=retry_at, ready_at=None, waits_for=frozenset())

    def _spawn(self, name: str) -> None:
        spec, child = self.plan.specs[name], self.children[name]
        self._set(
            name,
            state=ServiceState.STARTING,
            reason="",
            retry_at=None,
            ready_at=None,
            waits_for=frozenset(),
            generation=child.generation + 1,
            crashed=False,
            then=ServiceState.STOPPED,
            restarts=child.restarts + child.crashed,
        )
        mode = spec.modes[child.mode] if spec.modes else ""
        self.decisions.append(Spawn(name, child.generation + 1, mode))

    def _end(self, name: str, why: str, then: ServiceState = ServiceState.STOPPED) -> None:
        child = self._set(name, state=ServiceState.DRAINING, reason=why, then=then)
        self.decisions.append(End(name, child.generation, why, rests=then is not ServiceState.STOPPED))

    def _start_released(self) -> None:
        """Start those whose wait is over.  A dependency that will not come soon holds nobody back."""
        for name in self.plan.order:
            child = self.children[name]
            if child.state is not ServiceState.WAITING:
                continue
            gone = (ServiceState.FAILED, ServiceState.STOPPED, ServiceState.RESTING)
            held_by = [other for other in sorted(child.waits_for) if self.children[other].state not in gone]
            if held_by:
                self._set(name, reason=f"waits for {', '.join(held_by)} to be ready")
            else:
                self._spawn(name)

    # Restarts of one or more services.

    def _restart(self, node: Node, due: float, reason: str, *, failed: bool = False) -> None:
        """Restart `node` and those siblings that its parent's strategy names."""
        parent = self.plan.parent(node)
        at = parent.children.index(node)
        affected: Iterable[Node] = {
            Strategy.ONE_FOR_ONE: (node,),
            Strategy.REST_FOR_ONE: parent.children[at:],
            Strategy.ONE_FOR_ALL: parent.children,
        }[parent.strategy]
        specs = [spec for child in affected for spec in services(child)]
        self._plan_restart(
            members=[spec.name for spec in specs if self._comes_along(spec)],
            # The one that just died still counts as living here, until it is settled below.
            stopping=[spec.name for spec in reversed(specs) if not self._is_dead(spec.name)],
            due=due,
            reason=reason,
            failed=failed,
        )

    def _comes_along(self, spec: ServiceSpec) -> bool:
        """Whether a restart of its group starts it again: not what ended in order or was stopped by a person."""
        child = self.children[spec.name]
        return child.wanted and child.state is not ServiceState.STOPPED and spec.restart is not Restart.TEMPORARY

    def _is_dead(self, name: str) -> bool:
        child = self.children[name]
        return not child.lives or child.crashed

    def _plan_restart(
        self, members: list[str], stopping: list[str], due: float, reason: str, *, failed: bool = False
    ) -> None:
        """Add a restart; others that touch the same services are taken into it, so that each is in one at most."""
        touched = {*members, *stopping}
        for other in [p for p in self.pending if touched.intersection(p.members + p.stopping)]:
            self.pending.remove(other)
            members += other.members
            stopping += [name for name in other.stopping if name not in stopping]
            due = max(due, other.due)
            failed = failed or other.failed
        self.tickets += 1
        order = self.plan.order.index
        pending = Pending(
            ticket=self.tickets,
            members=tuple(sorted(set(members), key=order)),
            stopping=tuple(sorted(stopping, key=order, reverse=True)),
            due=due,
            reason=reason,
            failed=failed,
        )
        self.pending.append(pending)
        for name in pending.members:
            if name not in pending.stopping:
                self._settle(name, pending)
        self._advance(pending)

    def _settle(self, name: str, pending: Pending) -> None:
        """`name` is down and waits for `pending` to start it, if it is to be started."""
        if name in pending.members:
            state = ServiceState.FAILED if pending.failed else ServiceState.BACKOFF
            self._down(name, state, pending.reason, pending.due)
        else:
            child = self.children[name]
            self._down(name, ServiceState.STOPPED, pending.reason if child.wanted else child.reason)

    def _advance(self, pending: Pending) -> None:
        """The next thing to do for `pending`: end one more, wait, or start them all."""
        stopping = tuple(name for name in pending.stopping if self.children[name].lives)
        at = self.pending.index(pending)
        pending = self.pending[at] = replace(pending, stopping=stopping)
        if stopping:
            if not any(self.children[name].state is ServiceState.DRAINING for name in stopping):
                self._end(stopping[0], pending.reason)
        elif pending.due > self.now:
            self.decisions.append(Wake(pending.due, pending.ticket))
        else:
            del self.pending[at]
            for name in pending.members:
                waits_for = frozenset(self.plan.specs[name].depends_on) & frozenset(pending.members)
                self._set(name, state=ServiceState.WAITING, waits_for=waits_for, retry_at=None)

    def _withdraw(self, name: str) -> list[Pending]:
        """Take `name` out of every restart that is under way; those that remain."""
        remaining: list[Pending] = []
        for pending in [p for p in self.pending if name in p.members or name in p.stopping]:
            members = tuple(member for member in pending.members if member != name)
            stopping = tuple(member for member in pending.stopping if member != name)
            at = self.pending.index(pending)
            if members or stopping:
                self.pending[at] = replace(pending, members=members, stopping=stopping)
                remaining.append(self.pending[at])
            else:
                del self.pending[at]
        return remaining

    def _plan_at_once(self, name: str, reason: str) -> None:
        shared = next((p for p in self.pending if name in p.members), None)
        if shared is not None:
            # Its siblings come along: their restart is one.
            hastened = replace(shared, due=self.now, failed=False)
            self.pending[self.pending.index(shared)] = hastened
            self._advance(hastened)
            return
        stopping = [name] if self.children[name].lives else []
        self._plan_restart([name], stopping, self.now, reason)

    def _close_next_wave(self) -> None:
        for wave in self.plan.waves:
            living = [name for name in wave if self.children[name].lives]
            for name in living:
                if self.children[name].state is not ServiceState.DRAINING:
                    self._end(name, "the system ends")
            if living:
                return


def _shown(child: Child) -> tuple[ServiceState, str, float | None]:
    return child.state, child.reason, child.retry_at
