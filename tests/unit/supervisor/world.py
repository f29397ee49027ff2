"""A simulated world for the policy: a clock and obedient processes."""

from __future__ import annotations

import heapq

from kernel.configure.spec import ServiceSpec
from kernel.router.generation import ServiceState
from kernel.router.ports import Cause, CauseKind
from kernel.supervisor.policy import Plan, decide
from kernel.supervisor.policy_events import BecameReady, Boot, Child, Died, End, Event, Gone, Spawn, Wake

CRASH = Cause(CauseKind.EXIT, 1, "exit code 1")
NORMAL = Cause(CauseKind.EXIT, 0, "exit code 0")
KILLED = Cause(CauseKind.SIGNAL, 9, "killed by SIGKILL")
SEGFAULT = Cause(CauseKind.SIGNAL, 11, "killed by SIGSEGV")
STOPPED = Cause(CauseKind.STOPPED, 0, "stopped")
RESTED = Cause(CauseKind.RESTED, 0, "rests")


def service(name: str, **changes: object) -> ServiceSpec:
    return ServiceSpec(name=name, module=f"modules.{name}", **changes)  # type: ignore[arg-type]  # a table's shorthand


class World:
    """Keeps what the policy decided in `log`: `+a1` is a start of generation 1 of a, `-a1` an end, `~a` that it is
    forgotten."""

    def __init__(self, *specs: ServiceSpec, starts_ready: bool = True, ends_at_once: bool = True) -> None:
        self.plan = Plan(specs)
        self.policy = self.plan.first()
        self.now = 0.0
        self.log: list[str] = []
        self.modes: list[str] = []
        self.alive: dict[str, int] = {}
        self.ending: dict[str, int] = {}
        self.starts_ready = starts_ready
        self.ends_at_once = ends_at_once
        self.random = 0.0
        self._timers: list[tuple[float, int, Event]] = []
        self._n = 0

    def boot(self) -> World:
        self.happen(Boot())
        return self

    def happen(self, *events: Event) -> None:
        queue = list(events)
        while queue:
            event = queue.pop(0)
            self.plan = self.plan.after(event)
            self.policy, decisions = decide(self.plan, self.policy, event, self.now, self.random)
            for decision in decisions:
                match decision:
                    case Spawn(name, generation, mode):
                        assert name not in self.alive, f"two processes of {name}"
                        self.alive[name] = generation
                        self.modes.append(mode)
                        self.log.append(f"+{name}{generation}")
                        if self.starts_ready:
                            queue.append(BecameReady(name, generation))
                    case End(name, generation, _, rests):
                        assert self.alive[name] == generation
                        self.log.append(f"-{name}{generation}")
                        if self.ends_at_once:
                            del self.alive[name]
                            queue.append(Died(name, generation, RESTED if rests else STOPPED))
                        else:
                            self.ending[name] = generation
                    case Gone(name):
                        assert name not in self.alive, f"{name} was forgotten while its process existed"
                        self.plan = self.plan.without(name)
                        self.log.append(f"~{name}")
                    case Wake(at, later):
                        self._plan_timer(at, later)

    def _plan_timer(self, at: float, event: Event) -> None:
        self._n += 1
        heapq.heappush(self._timers, (at, self._n, event))

    def die(self, name: str, cause: Cause = CRASH) -> None:
        generation = self.alive.pop(name)
        self.ending.pop(name, None)
        self.happen(Died(name, generation, cause))

    def ready(self, name: str) -> None:
        self.happen(BecameReady(name, self.alive[name]))

    def pass_time(self, seconds: float) -> None:
        """Advance the clock and fire due timers."""
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            at, _, event = heapq.heappop(self._timers)
            self.now = max(self.now, at)
            self.happen(event)
        self.now = until

    @property
    def next_timer(self) -> float | None:
        return self._timers[0][0] if self._timers else None

    def child(self, name: str) -> Child:
        return self.policy.children[name]

    def state(self, name: str) -> ServiceState:
        return self.child(name).state

    def said(self) -> str:
        """Return the decisions since the last call."""
        text = " ".join(self.log)
        self.log.clear()
        return text
