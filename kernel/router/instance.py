"""What the router knows of each process of a service, beyond the life of one generation."""

from __future__ import annotations

import math

import msgspec

from linckia.kernel.generation import Generation
from linckia.kernel.ports import ServiceState


class Limits(msgspec.Struct, frozen=True):
    """Back-pressure of one service: calls in flight in each instance, and calls that wait for a place."""

    in_flight: int
    queue: int


class Instance(msgspec.Struct, eq=False):
    """One process of the service, from generation to generation."""

    name: str
    generation: Generation | None = None
    """The latest one that was READY; None before the first."""
    used: bool = False
    """Whether a client's call was sent to it since that was last asked."""
    tries_until: float = -math.inf
    """Until then the suspect that was sent to it has the process to itself."""
    busy_at: float = -math.inf
    """When it last had a call in flight, on trio's clock."""
    state: ServiceState = ServiceState.WAITING
    reason: str = "it has not been started yet"
    retry_at: float | None = None

    @property
    def in_flight(self) -> int:
        return 0 if self.generation is None else len(self.generation.calls)

    @property
    def taking(self) -> Generation | None:
        """The generation that takes calls, if there is one."""
        return self.generation if self.generation is not None and self.generation.takes_calls else None

    def is_hopeless(self, deadline: float) -> bool:
        """Whether a call of this deadline would wait for it in vain."""
        if self.state in (ServiceState.FAILED, ServiceState.STOPPED):
            return True
        return self.state is ServiceState.BACKOFF and self.retry_at is not None and self.retry_at > deadline
