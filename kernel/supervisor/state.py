"""What the restart policy knows, hears and decides: immutable data, without clock, process or randomness of its own."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kernel.ports import Cause, CauseKind, ServiceState
from kernel.supervisor.spec import Node, ServiceSpec, TreeSpec, check, services, shutdown_waves


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """One service.  Times are on the caller's clock, in seconds."""

    state: ServiceState = ServiceState.STOPPED
    reason: str = "not started yet"
    retry_at: float | None = None
    wanted: bool = True
    """False once a person stopped it, though its process may take a while to end."""
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
    """While DRAINING: what it is once it has ended; RESTING, or WAITING where it is made anew or was called."""
    restarts: int = 0
    deaths: dict[CauseKind, int] = {}
    last_death: Cause | None = None

    @property
    def lives(self) -> bool:
        """Whether there is (or is just being made) a process."""
        return self.state in (ServiceState.STARTING, ServiceState.READY, ServiceState.DRAINING)


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A restart that is under way: first `stopping` are ended one by one, then, when it is due, `members` are started.

    The ticket makes a timer of a restart that was since withdrawn or replaced mean nothing.
    """

    ticket: int
    members: tuple[str, ...]
    stopping: tuple[str, ...] = ()
    due: float
    reason: str
    failed: bool = False


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The whole tree."""

    children: dict[str, Child]
    pending: tuple[Pending, ...] = ()
    tree_restarts: dict[str, tuple[float, ...]] = {}
    """Restarts of its children by tree, within its period."""
    tree_trials: dict[str, float] = {}
    """Trees tried again after FAILED, and until when they are on trial."""
    tickets: int = 0
    closing: bool = False


class Boot(msgspec.Struct, frozen=True):
    """Start everything."""


class BecameReady(msgspec.Struct, frozen=True):
    name: str
    generation: int


class Died(msgspec.Struct, frozen=True):
    """The process is gone (or could not be made), whatever the reason."""

    name: str
    generation: int
    cause: Cause


class Due(msgspec.Struct, frozen=True):
    """The time of a `Wake`."""

    ticket: int


class Idle(msgspec.Struct, frozen=True):
    """This generation has had nothing to do for as long as its spec says, and is to rest or to be made anew."""

    name: str
    generation: int


class Wanted(msgspec.Struct, frozen=True):
    """A call waits for a service that rests, or is about to."""

    name: str


class ClimbDue(msgspec.Struct, frozen=True):
    """The time of a `WakeToClimb`."""

    name: str
    generation: int


class StartAsked(msgspec.Struct, frozen=True):
    name: str


class StopAsked(msgspec.Struct, frozen=True):
    name: str


class RestartAsked(msgspec.Struct, frozen=True):
    name: str


class Close(msgspec.Struct, frozen=True):
    """End everything in order; nothing is started any more."""


Happening: TypeAlias = (
    Boot | BecameReady | Died | Due | Idle | Wanted | ClimbDue | StartAsked | StopAsked | RestartAsked | Close
)  # fmt: skip


class Spawn(msgspec.Struct, frozen=True):
    """Start this generation."""

    name: str
    generation: int
    mode: str


class End(msgspec.Struct, frozen=True):
    """End this generation in order (the kill ladder from its first rung)."""

    name: str
    generation: int
    why: str
    rests: bool = False
    """For want of anything to do."""


class Wake(msgspec.Struct, frozen=True):
    """Say `Due(ticket)` at that time."""

    at: float
    ticket: int


class WakeToClimb(msgspec.Struct, frozen=True):
    """Say `ClimbDue(name, generation)` at that time."""

    at: float
    name: str
    generation: int


class Tell(msgspec.Struct, frozen=True):
    """The state of a service changed."""

    name: str
    state: ServiceState
    reason: str
    retry_at: float | None


Decision: TypeAlias = Spawn | End | Wake | WakeToClimb | Tell


class Plan:
    """A tree of specs with the look-ups that the policy needs."""

    def __init__(self, tree: TreeSpec) -> None:
        check(tree)
        self.root = tree
        self.specs: dict[str, ServiceSpec] = {spec.name: spec for spec in services(tree)}
        self.order = tuple(self.specs)
        self.waves = shutdown_waves(tree)
        self._parents: dict[str, TreeSpec] = {}
        self._index(tree)

    def _index(self, tree: TreeSpec) -> None:
        for child in tree.children:
            self._parents[child.name] = tree
            if isinstance(child, TreeSpec):
                self._index(child)

    def parent(self, node: Node) -> TreeSpec:
        return self._parents[node.name]

    def first(self) -> State:
        """Before anything was started."""
        return State(children={name: Child() for name in self.order})
