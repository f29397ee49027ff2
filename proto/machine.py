"""What this process has of the machine: processor cores, and memory, which is given back when it is not used.

The kernel starts services with thresholds of malloc's at which nothing freed goes back by itself, since messages and
batches come again and again; in the kernel it is what lies between pieces that stay. What a burst of work took would
so be held for ever: it goes back once the process rests.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

LOOK_EVERY_S = 5.0
RESTS_S = 0.05
"""Processor time between two looks that is no work: pings are answered, outboxes looked at."""
WORTH_S = 0.1
"""Processor time after which there may be something to give back: it takes hardly more to fill 100 MB.  The next work
takes its pages again, a millisecond for each 10 MB."""

_M_ARENA_MAX = -8  # of mallopt(3)


def usable_cores() -> int:
    """The cores this process may use: its affinity, and the quota of its control group (of version 2)."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def limit_heaps(count: int) -> None:
    """From how many heaps of glibc's the threads of this process take their memory.

    One: what is free at the end of any other never goes back, whatever is asked of it. Threads that fill and free
    megabytes all the time are quicker each with its own, by a tenth: none waits for another, and what one of them frees
    is still in the cache of its own processor when it takes it again.

    To be called before there is a second thread; later it changes nothing.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_ARENA_MAX, count)


def give_memory_back() -> None:
    """After work that is not done again soon: glibc keeps what was freed for the next allocation of its kind."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


async def _give_beside() -> None:
    await trio.to_thread.run_sync(give_memory_back)


async def give_back_at_rest(
    free: Callable[[], Awaitable[None]],
    worked_s: Callable[[], float] = time.process_time,
    give: Callable[[], Awaitable[None]] = _give_beside,
    *,
    rests_s: float = RESTS_S,
) -> None:
    """Give memory back each time the process has worked and rests; until cancelled.

    Args:
        free: frees what the process keeps for its work alone; raises nothing.
        worked_s: the processor time of this process so far.
        give: gives what is free to the machine, without holding up the loop.
        rests_s: processor time between two looks that is no work.
    """
    given = before = 0.0
    while True:
        await trio.sleep(LOOK_EVERY_S)
        now = worked_s()
        if now - before < rests_s and now - given >= WORTH_S:
            await free()
            await give()
            given = now = worked_s()
        before = now
