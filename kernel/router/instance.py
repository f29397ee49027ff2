"""One process of a service as the router sees it: whether it takes calls, and how many it has."""

from __future__ import annotations

import math

from kernel.ports import ServiceState
from proto.channel import Channel


class Instance:
    """One process of the service, from generation to generation; `channel` is None while none takes calls."""

    __slots__ = ("busy_at", "channel", "generation", "in_flight", "name", "reason", "retry_at", "state", "used")

    def __init__(self, name: str) -> None:
        self.name = name
        self.channel: Channel | None = None
        self.generation = 0
        self.in_flight = 0
        self.used = False
        # When it last had a call in hand, on trio's clock.
        self.busy_at = -math.inf
        self.state = ServiceState.WAITING
        self.reason = "it has not been started yet"
        self.retry_at: float | None = None

    def is_hopeless(self, deadline: float) -> bool:
        """Whether a call of this deadline would wait for it in vain."""
        if self.state in (ServiceState.FAILED, ServiceState.STOPPED):
            return True
        return self.state is ServiceState.BACKOFF and self.retry_at is not None and self.retry_at > deadline
