"""One process of a service, as the router sees it from generation to generation, and how much it may have in hand."""

from __future__ import annotations

import math

import msgspec

from kernel.ports import ServiceState
from proto.channel import Channel


class Limits(msgspec.Struct, frozen=True):
    """Back-pressure of one service: calls in flight in each instance, and calls that wait for a place."""

    in_flight: int
    queue: int


class Instance(msgspec.Struct, eq=False):
    """One process of the service, from generation to generation; `channel` is None while none takes calls."""

    name: str
    channel: Channel | None = None
    generation: int = 0
    in_flight: int = 0
    used: bool = False
    """Whether a client's call was sent to it since that was last asked."""
    tries_until: float = -math.inf
    """Until when a suspect that it was sent is to have it for itself."""
    busy_at: float = -math.inf
    """When it last had a call in hand, on trio's clock."""
    state: ServiceState = ServiceState.WAITING
    reason: str = "it has not been started yet"
    retry_at: float | None = None

    def is_hopeless(self, deadline: float) -> bool:
        """Whether a call of this deadline would wait for it in vain."""
        if self.state in (ServiceState.FAILED, ServiceState.STOPPED):
            return True
        return self.state is ServiceState.BACKOFF and self.retry_at is not None and self.retry_at > deadline
