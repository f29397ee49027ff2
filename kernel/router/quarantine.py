"""Requests that are refused for a while, because generations crashed with them in flight."""

from __future__ import annotations

import collections
from typing import NamedTuple

import trio

from linckia.kernel.generation import RoutedCall
from linckia.proto.frames import MAX_MESSAGE_BYTES

QUARANTINE_S = 600.0
"""For refusing a convicted request: longer than an agent's retries, short enough that a repair is noticed."""

ENTRIES = 1024
"""Convictions kept for one service, of `MAX_MESSAGE_BYTES` at most together; the oldest goes first."""


class _Conviction(NamedTuple):
    operation: str
    params: bytes
    until: float
    """On trio's clock."""


class Quarantine:
    """The convictions of one service."""

    def __init__(self) -> None:
        self._kept: collections.deque[_Conviction] = collections.deque()

    def convict(self, call: RoutedCall) -> None:
        """Refuse what it asks from now on."""
        self._kept.append(_Conviction(call.op.name, call.params, trio.current_time() + QUARANTINE_S))
        while len(self._kept) > ENTRIES or sum(len(each.params) for each in self._kept) > MAX_MESSAGE_BYTES:
            self._kept.popleft()

    def left_s(self, call: RoutedCall) -> float:
        """For how long a request that asks the same is refused still; 0 where none is."""
        now = trio.current_time()
        while self._kept and self._kept[0].until <= now:
            self._kept.popleft()
        # To compare is quick: of another length, or with another beginning, they are told apart at once.
        asked = call.op.name, call.params
        return next((each.until - now for each in self._kept if (each.operation, each.params) == asked), 0.0)
