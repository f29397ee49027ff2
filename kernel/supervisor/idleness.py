"""Whether a generation has nothing to do: then its process may be ended until the next call, or be made anew.

Made anew, for memory that work has left behind: what is free in a process goes back to the machine page by page, and
after an hour of work hardly a page is free from end to end.  Servers of other kinds retire their workers after so many
requests for the same reason; here it waits until nobody is there to notice.
"""

from __future__ import annotations

from kernel.supervisor.spec import ServiceSpec

WORTH_BYTES = 12 * 1024 * 1024
"""What a process must have gained by its work to be made anew; a few megabytes come back with its first calls."""

SETTLES_S = 15.0
"""After its start a process reads what it needs, and gives back what that took."""

WORKS = 0.05
"""Share of one processor that is work; pings and looks at a queue take a hundredth."""


class Idleness:
    """Of one generation, without a clock of its own.  Times are in seconds, on one clock.

    Args:
        fresh: whether the one before it ended for want of anything to do: then what it holds before its first call is
            what it needs.
    """

    def __init__(self, spec: ServiceSpec, *, fresh: bool) -> None:
        self._rests_after_s = spec.rests_after_s
        self._renews_after_s = spec.renews_after_s
        self._fresh = fresh
        self._needs_bytes: int | None = None
        self._looked_at: float | None = None
        self._worked_s = 0.0
        self._busy_at = 0.0

    @property
    def matters(self) -> bool:
        """Whether its spec says what becomes of one that is idle."""
        return self._rests_after_s is not None or self._renews_after_s is not None

    def look(
        self, now: float, ready_at: float, idle_since: float | None, worked_s: float | None, memory: int | None
    ) -> bool:
        """Whether it should be ended now.

        Args:
            idle_since: when it last had a call; None while it has.
            worked_s: processor time of the process so far.
            memory: of its own, in bytes.
        """
        if worked_s is not None:
            if self._looked_at is None or worked_s - self._worked_s > WORKS * (now - self._looked_at):
                self._busy_at = now
            self._looked_at, self._worked_s = now, worked_s
        if memory is not None:
            # One that is called as soon as it is there has all it needs as well, or it would be exchanged for ever.
            called = idle_since is None or idle_since > ready_at
            since = ready_at if called else max(ready_at, self._busy_at)
            if self._needs_bytes is None or (self._fresh and now - since < SETTLES_S):
                self._needs_bytes = memory
        if idle_since is None:
            return False
        idle_s = now - max(idle_since, ready_at)
        if self._rests_after_s is not None:
            return idle_s >= self._rests_after_s
        if self._renews_after_s is None or memory is None or self._needs_bytes is None:
            return False
        rested_s = min(idle_s, now - self._busy_at)
        return rested_s >= self._renews_after_s and memory - self._needs_bytes >= WORTH_BYTES
