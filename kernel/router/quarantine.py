"""Requests that are refused for a while, since generations of their service crashed with them in flight.

A request is known again by a digest of what it asks. One is made only of requests as long as one that is refused, and
of long ones beside the event loop: 64 MiB take a tenth of a second.
"""

from __future__ import annotations

import collections
import hashlib
import math
from collections.abc import Awaitable, Callable

import trio

from kernel.router.call import RoutedCall

QUARANTINE_S = 600.0
"""For refusing a convicted request: longer than an agent's retries, short enough that a repair is noticed."""

ENTRIES = 1024
"""Convictions kept for one service; the oldest goes first."""

LONG_BYTES = 1024 * 1024
"""Of parameters that are read by a thread."""

Start = Callable[[Callable[[], Awaitable[None]]], None]
"""Runs a task beside the caller's."""


class Quarantine:
    """The convictions of one service."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._until: collections.OrderedDict[tuple[int, bytes], float] = collections.OrderedDict()
        """By length and digest, on trio's clock."""

    def convict(self, call: RoutedCall) -> None:
        """Refuse what it asks from now on; a long request from when it has been read."""
        until = trio.current_time() + QUARANTINE_S

        async def read() -> None:
            self._keep(len(call.params), await trio.to_thread.run_sync(digest, call), until)

        if len(call.params) > LONG_BYTES:
            self._start(read)
        else:
            self._keep(len(call.params), digest(call), until)

    def _keep(self, size: int, name: bytes, until: float) -> None:
        self._until[size, name] = until
        while len(self._until) > ENTRIES:
            self._until.popitem(last=False)

    def may_refuse(self, call: RoutedCall) -> bool:
        """Whether a request of its length is refused: only then is it read."""
        size = len(call.params)
        return bool(self._until) and any(size == each for each, _ in self._until)

    def left_s(self, call: RoutedCall, name: bytes) -> float:
        """For how long a request of this digest is refused still; 0 where it is not."""
        key = len(call.params), name
        left = self._until.get(key, -math.inf) - trio.current_time()
        if left <= 0:
            self._until.pop(key, None)
        return max(0.0, left)


def digest(call: RoutedCall) -> bytes:
    """Names the request by what it asks."""
    found = hashlib.blake2b(call.op.name.encode() + b"\0", digest_size=16)
    found.update(call.params)
    return found.digest()
