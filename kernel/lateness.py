"""How late the kernel's event loop is: the longest of its turns, since what comes during one is heard after it.

A turn is what trio runs between two looks for what has come.  Its wall time holds what the system gave to other
processes meanwhile; its processor time is the kernel's own work.
"""

from __future__ import annotations

import time

import trio

LATE_S = 0.02
"""Beyond it a turn is counted: clients would notice a few of them in a row."""

MINUTE_S = 60.0


class Lateness(trio.abc.Instrument):
    """An instrument of trio's; `worst_s` and `worst_cpu_s` are of the last minute that is whole and of this one."""

    def __init__(self) -> None:
        self.late = 0
        """Turns so far whose processor time was beyond `LATE_S`."""
        self._began = time.monotonic()
        self._began_cpu = time.thread_time()
        self._minute = self._began
        self._worst: list[tuple[float, float]] = [(0.0, 0.0), (0.0, 0.0)]

    def after_io_wait(self, timeout: float) -> None:
        self._began, self._began_cpu = time.monotonic(), time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        now = time.monotonic()
        wall, cpu = now - self._began, time.thread_time() - self._began_cpu
        if now >= self._minute + MINUTE_S:
            self._minute = now
            self._worst = [self._worst[1], (0.0, 0.0)]
        self.late += cpu > LATE_S
        worst_wall, worst_cpu = self._worst[1]
        if wall > worst_wall or cpu > worst_cpu:
            self._worst[1] = (max(wall, worst_wall), max(cpu, worst_cpu))

    @property
    def worst_s(self) -> float:
        return max(wall for wall, _ in self._worst)

    @property
    def worst_cpu_s(self) -> float:
        return max(cpu for _, cpu in self._worst)
