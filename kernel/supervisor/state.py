"""What the restart policy knows, hears and decides: immutable data, without clock, process or randomness of its own."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kernel.ports import Cause, CauseKind, ServiceState
from kernel.supervisor.spec import ServiceSpec, check, shutdown_waves


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

    name: str


class Idle(msgspec.Struct, frozen=True):
    """This generation has had nothing to do for as long as its spec says, and is to rest."""

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
    """Say `Due(name)` at that time."""

    at: float
    name: str


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
    """The specs, in start order, with the look-ups that the policy needs.

    Raises ValueError as `spec.check` does.
    """

    def __init__(self, specs: tuple[ServiceSpec, ...]) -> None:
        check(specs)
        self.specs: dict[str, ServiceSpec] = {spec.name: spec for spec in specs}
        self.waves = shutdown_waves(specs)

    def first(self) -> State:
        """Before anything was started."""
        return State(children={name: Child() for name in self.specs})
