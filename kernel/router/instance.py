"""What the router knows about each process of a service, across generations."""

from __future__ import annotations

import math

import msgspec

from kernel.router.generation import Generation
from kernel.router.ports import ServiceState


class Limits(msgspec.Struct, frozen=True):
    """Back-pressure limits of a service: calls in flight per instance, and calls that wait for a free slot.

    `wait_s` is how long a call waits for an instance to become READY; None: until its deadline. `grow_after_s` is how
    long calls wait before a further instance of a pool is woken; None: not at all.
    """

    in_flight: int
    queue: int
    wait_s: float | None = None
    grow_after_s: float | None = None


class Instance(msgspec.Struct, eq=False):
    """One process of the service, across its generations."""

    name: str
    generation: Generation | None = None
    """The latest generation that was READY; None before the first."""
    used: bool = False
    """Whether a client's call was sent to it, or made by it, since the last check."""
    tries_until: float = -math.inf
    """Exclusive-use deadline for a suspect call sent to it."""
    busy_at: float = -math.inf
    """Time at which it last had a call in flight, on trio's clock."""
    state: ServiceState = ServiceState.WAITING
    reason: str = "it has not been started yet"
    retry_at: float | None = None
    place: int = 0
    """Its place in the pool."""
    load: int | None = None
    """Its calls in flight as `Loads` knows them; None if it accepts no calls."""

    @property
    def in_flight(self) -> int:
        return 0 if self.generation is None else len(self.generation.calls)

    @property
    def taking(self) -> Generation | None:
        """The generation that accepts calls, if there is one."""
        return self.generation if self.generation is not None and self.generation.takes_calls else None

    def is_hopeless(self, deadline: float) -> bool:
        """Return whether this instance will not be available before the deadline."""
        if self.state in (ServiceState.FAILED, ServiceState.STOPPED):
            return True
        return self.state is ServiceState.BACKOFF and self.retry_at is not None and self.retry_at > deadline
