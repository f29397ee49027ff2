"""What the restart policy is told, what it decides, and the state that it keeps of each service."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kernel.configure.spec import ServiceSpec
from kernel.router.generation import ServiceState
from kernel.router.ports import Cause, CauseKind


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """One service. Times are in seconds on the caller's clock."""

    state: ServiceState = ServiceState.STOPPED
    reason: str = "not started yet"
    retry_at: float | None = None
    """Time of the next start, in BACKOFF and FAILED."""
    generation: int = 0
    mode: int = 0
    ready_at: float | None = None
    """Time at which this generation became READY."""
    waits_for: frozenset[str] = frozenset()
    crashes: tuple[float, ...] = ()
    """Times of deaths within the period, which count towards the intensity."""
    streak: int = 0
    """Number of consecutive unhealthy deaths: the exponent of the back-off."""
    mode_deaths: int = 0
    on_trial: bool = False
    """Whether this is the retry after FAILED: the next unhealthy death fails the service again at once."""
    climbing: bool = False
    """Whether this generation tries a better mode."""
    failed_climbs: int = 0
    crashed: bool = False
    """Whether the next start is a restart after a death."""
    then: ServiceState = ServiceState.STOPPED
    """While DRAINING, the state to enter once it has ended; WAITING means that it is restarted at once."""
    removed: bool = False
    """Whether it is forgotten once it has ended."""
    renewed: bool = False
    """Whether it was added again before it had ended, so that its end says nothing about the new one."""
    restarts: int = 0
    deaths: dict[CauseKind, int] = {}
    last_death: Cause | None = None

    @property
    def lives(self) -> bool:
        """Return whether a process exists or is being created."""
        return self.state in (ServiceState.STARTING, ServiceState.READY, ServiceState.DRAINING)


class State(msgspec.Struct, frozen=True, kw_only=True):
    """All services."""

    children: dict[str, Child]
    closing: bool = False


class Boot(msgspec.Struct, frozen=True):
    """Start everything."""


class Close(msgspec.Struct, frozen=True):
    """End everything in order; start nothing more."""


class OfService(msgspec.Struct, frozen=True):
    name: str


class Due(OfService, frozen=True):
    """A planned start is due."""


class Wanted(OfService, frozen=True):
    """A call waits for a service that is resting or about to."""


class StartAsked(OfService, frozen=True): ...


class StopAsked(OfService, frozen=True): ...


class RestartAsked(OfService, frozen=True): ...


class Added(OfService, frozen=True):
    """A service was added, possibly while a removed one of that name is still ending."""

    spec: ServiceSpec


class Replaced(OfService, frozen=True):
    """A service has another spec."""

    spec: ServiceSpec


class Removed(OfService, frozen=True): ...


class OfGeneration(OfService, frozen=True):
    generation: int


class BecameReady(OfGeneration, frozen=True): ...


class Idle(OfGeneration, frozen=True):
    """It has been idle for as long as its spec allows, and should rest."""


class ClimbDue(OfGeneration, frozen=True):
    """A try of a better mode is due."""


class Died(OfGeneration, frozen=True):
    """The process is gone or could not be created, for whatever reason."""

    cause: Cause


Event: TypeAlias = (
    Boot | BecameReady | Died | Due | Idle | Wanted | ClimbDue | StartAsked | StopAsked | RestartAsked
    | Added | Replaced | Removed | Close
)  # fmt: skip


class Spawn(OfGeneration, frozen=True):
    """Start this generation."""

    mode: str


class End(OfGeneration, frozen=True):
    """End this generation in order, with the kill ladder from its first rung."""

    why: str
    rests: bool = False
    """Whether it ends because it is idle."""


class Wake(msgspec.Struct, frozen=True):
    """Report this event at that time."""

    at: float
    event: Due | ClimbDue


class Notify(OfService, frozen=True):
    """The state of a service changed."""

    state: ServiceState
    reason: str
    retry_at: float | None


class Gone(OfService, frozen=True):
    """A removed service has ended: forget it."""


class Renewed(OfService, frozen=True):
    """A removed service has ended, and another one was added under its name meanwhile."""


Decision: TypeAlias = Spawn | End | Wake | Notify | Gone | Renewed
