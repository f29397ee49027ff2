"""How late the kernel's event loop is: the longest of its turns, since what comes during one is heard after it.

A turn is what trio runs between two looks for what has come.  Its wall time holds what the system gave to other
processes meanwhile; its processor time is the kernel's own work.  That clock costs as much as a short turn: it is read
before a turn every `SAMPLE_S`, and after one that was long, whose processor time is so much too long at most.
"""

from __future__ import annotations

import time

import trio

LATE_S = 0.02
"""Beyond it a turn is counted: clients would notice a few of them in a row."""

SAMPLE_S = 0.005
MINUTE_S = 60.0


class Lateness(trio.abc.Instrument):
    """An instrument of trio's; `worst_s` and `worst_cpu_s` are of the last minute that is whole and of this one."""

    def __init__(self) -> None:
        self.late = 0
        """Turns so far whose processor time was beyond `LATE_S`."""
        self._began = self._sampled = self._minute = time.monotonic()
        self._cpu = time.thread_time()
        self._worst = self._worst_cpu = 0.0
        self._before = (0.0, 0.0)

    def after_io_wait(self, timeout: float) -> None:
        self._began = now = time.monotonic()
        if now - self._sampled >= SAMPLE_S:
            self._sampled, self._cpu = now, time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        now = time.monotonic()
        wall = now - self._began
        if now - self._minute >= MINUTE_S:
            self._minute, self._before = now, (self._worst, self._worst_cpu)
            self._worst = self._worst_cpu = 0.0
        self._worst = max(self._worst, wall)
        if wall > self._worst_cpu or wall > LATE_S:
            cpu = min(wall, time.thread_time() - self._cpu)
            self._worst_cpu = max(cpu, self._worst_cpu)
            self.late += cpu > LATE_S

    @property
    def worst_s(self) -> float:
        return max(self._worst, self._before[0])

    @property
    def worst_cpu_s(self) -> float:
        return max(self._worst_cpu, self._before[1])
