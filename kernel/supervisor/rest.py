"""Processes that have nothing to do rest.

They are checked and pinged rarely, as is everything else that the kernel looks at from time to time, so that an idle
machine stays asleep.
"""

from __future__ import annotations

import os

import trio

from kernel.supervisor import processes

REST_AFTER_S = 10.0
"""Time after which a process rests that sends, gets and computes nothing. A client's call in flight keeps it awake."""

REST_LOOK_S = 5.0
"""Interval between checks of a process at rest. All processes at rest are checked in one pass of the event loop."""

REST_PING_S = 30.0
"""Interval between its pings: each one wakes a dozen threads."""

BUSY = 0.05
"""Share of a core above which a process does not rest."""

_TICKS_S = os.sysconf("SC_CLK_TCK")


class Calm:
    """Tracks since when a process has had nothing to do."""

    def __init__(self, pid: int, now: float) -> None:
        self._pid = pid
        self._used = 0
        self._seen_at = self.since = now

    def stood_still(self) -> bool:
        """Return whether it has run for less than a tick since the last time, so that it cannot have grown."""
        state, used = processes.progress_of(self._pid)
        return used == self._used and state != processes.GONE

    def seen(self, is_calm: bool, now: float) -> bool:
        """Note whether it had something to do since the last time; it also has while it computes."""
        used = processes.progress_of(self._pid)[1]
        # Times are rounded to ticks.
        is_calm = is_calm and used - self._used <= 1 + BUSY * _TICKS_S * (now - self._seen_at)
        self._used, self._seen_at = used, now
        if not is_calm:
            self.since = now
        return is_calm


class Awake:
    """Knows whether any process is awake."""

    def __init__(self) -> None:
        self._processes: set[object] = set()
        self._any = trio.Event()

    def add(self, process: object) -> None:
        """Note that the process is awake."""
        self._processes.add(process)
        self._any.set()

    def discard(self, process: object) -> None:
        """Note that the process rests or is dead."""
        self._processes.discard(process)
        if not self._processes and self._any.is_set():
            self._any = trio.Event()

    async def pause(self, seconds: float) -> None:
        """Wait this long, and longer while all processes rest: until the time at which they are checked."""
        await trio.sleep(seconds)
        if not self._any.is_set():
            with trio.CancelScope(deadline=next_look(trio.current_time())):
                await self._any.wait()


def next_look(now: float) -> float:
    """Return the next time at which processes at rest are checked."""
    return (now // REST_LOOK_S + 1) * REST_LOOK_S
