"""Throughput of a backlog, and an estimate of the time left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from proto.wire.frames import Backlog

_OVER_S = 30.0
"""Width of the window.  If nothing arrived for this long, no rate is reported."""


class Rate:
    """Recent throughput.

    Args:
        now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._came: deque[tuple[float, int]] = deque([(now(), 0)], maxlen=256)

    def begin(self) -> None:
        """Restart the measurement: there was no backlog until now."""
        self._came.clear()
        self._came.append((self._now(), 0))

    def add(self, count: int) -> None:
        """SegmentRecord `count` completed items."""
        self._came.append((self._now(), count))
        while self._came[-1][0] - self._came[0][0] > _OVER_S and len(self._came) > 2:
            self._came.popleft()

    def backlog(self, done: int, waiting: int) -> Backlog:
        """Return the backlog as `status` shows it."""
        (first, before), (last, _) = self._came[0], self._came[-1]
        count = sum(each for _, each in self._came) - before
        if not count or self._now() - last > _OVER_S:
            return Backlog(done=done, total=done + waiting)
        per_s = count / max(0.001, last - first)
        return Backlog(done=done, total=done + waiting, per_s=round(per_s, 2), left_s=round(waiting / per_s, 1))
