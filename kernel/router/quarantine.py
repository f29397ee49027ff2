"""Requests refused for a while because generations crashed while they were in flight."""

from __future__ import annotations

import collections
import hashlib
from typing import NamedTuple

import trio

from kernel.router.generation import RoutedCall
from proto.wire import frames

QUARANTINE_S = 600.0
"""How long a convicted request is refused: longer than an agent's retries, short enough to notice a fix."""

ENTRIES = 1024
"""Maximum number of convictions remembered per service. The oldest is dropped first."""

MAX_BYTES = 8 * 1024 * 1024
"""Largest request that is remembered. Comparing one of this size takes some milliseconds."""


class _Conviction(NamedTuple):
    operation: str
    size: int
    digest: bytes
    until: float
    """Time at which the conviction expires, on trio's clock."""


class Quarantine:
    """The convictions of one service."""

    def __init__(self) -> None:
        self.kept: collections.deque[_Conviction] = collections.deque()

    def convict(self, call: RoutedCall) -> None:
        """Refuse equal requests from now on."""
        if len(call.params) <= MAX_BYTES:
            until = trio.current_time() + QUARANTINE_S
            self.kept.append(_Conviction(call.op.name, len(call.params), _digest(call), until))
        if len(self.kept) > ENTRIES:
            self.kept.popleft()

    def left_s(self, call: RoutedCall) -> float:
        """Return for how long equal requests are still refused; 0 if they are not."""
        now = trio.current_time()
        while self.kept and self.kept[0].until <= now:
            self.kept.popleft()
        alike = [each for each in self.kept if (each.operation, each.size) == (call.op.name, len(call.params))]
        digest = _digest(call) if alike else b""
        return next((each.until - now for each in alike if each.digest == digest), 0.0)


def _digest(call: RoutedCall) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    for piece in frames.pieces_of(call.params):
        digest.update(piece)
    return digest.digest()
