"""This process's share of the machine: processor cores, and memory, which is returned when it is not used.

The kernel starts services with malloc thresholds at which freed memory is not returned automatically, since messages
and batches come again and again. The kernel's freed memory lies between objects that stay. So memory taken by a burst
of work would never be returned; it is returned explicitly once the process is idle, or has grown a lot although it is
never idle.
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
"""Processor time between two checks below which the process is idle: it only answers pings and checks outboxes."""
WORTH_S = 0.1
"""Processor time after which returning memory may be worthwhile: filling 100 MB takes hardly more. The next work takes
the pages again, at a millisecond per 10 MB."""

GROWN_BYTES = 32 * 1024 * 1024
"""Growth since memory was last returned after which a busy process returns it too: small calls keep a process busy for
hours after a few very large ones."""

_M_ARENA_MAX = -8  # of mallopt(3)


def usable_cores() -> int:
    """Return the number of cores this process may use: its affinity, and the quota of its control group (version 2)."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def limit_heaps(count: int) -> None:
    """Limit the number of glibc heaps from which this process's threads take memory.

    Use one to be able to return memory: free memory at the end of any other heap is never returned. Threads that fill
    and free megabytes all the time are a tenth faster with a heap each: none waits for another, and memory that one of
    them frees is still in its own processor's cache when it is taken again.

    Call it before a second thread exists; later it has no effect.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_ARENA_MAX, count)


def give_memory_back() -> None:
    """Return freed memory after work that will not recur soon; glibc keeps it for similar allocations otherwise."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def resident_bytes() -> int:
    """Return the resident memory of this process that is not part of a file; 0 if the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    _, found, rest = status.partition("RssAnon:")
    return int(rest.split(maxsplit=1)[0]) << 10 if found else 0


async def _give_beside() -> None:
    await trio.to_thread.run_sync(give_memory_back)


async def give_back_at_rest(
    free: Callable[[], Awaitable[None]],
    worked_s: Callable[[], float] = time.process_time,
    give: Callable[[], Awaitable[None]] = _give_beside,
    resident: Callable[[], int] = resident_bytes,
    *,
    rests_s: float = RESTS_S,
    wait: Callable[[float], Awaitable[None]] = trio.sleep,
) -> None:
    """Return memory each time the process is idle after work, until cancelled.

    A busy process returns it if it was larger at two checks in a row than after the last time by `GROWN_BYTES`. It
    calls `free` only when idle, since that would slow down its work.

    Args:
        free: frees what the process keeps only for its work; must not raise.
        worked_s: returns the processor time of this process so far.
        give: returns free memory to the system, without blocking the event loop.
        resident: returns the size of this process's memory.
        rests_s: processor time between two checks below which the process is idle.
        wait: waits for the next check, for at least this long.
    """
    given = before = 0.0
    least, was_grown, looks, pause = resident(), False, 0, 0
    while True:
        await wait(LOOK_EVERY_S)
        looks += 1
        now, size = worked_s(), resident()
        is_idle = now - before < rests_s
        is_grown = size - least > GROWN_BYTES
        least = min(least, size)
        if (is_idle and now - given >= WORTH_S) or (is_grown and was_grown and looks > pause):
            if is_idle:
                await free()
            await give()
            given = now = worked_s()
            left, looks = resident(), 0
            # What could not be returned is in use, perhaps by large answers only: look again, each time later.
            pause = 2 * pause + 1 if left - least > GROWN_BYTES and not is_idle and pause < 7 else 0
            least, is_grown = (least, is_grown) if pause else (left, False)
        before, was_grown = now, is_grown
