"""Does memory, or the number of open files, grow with every call?

The same calls are made in rounds, in one process. What grows in nearly each of the later rounds, and goes on at the
same rate in as many rounds again, has no end in sight: a cache that fills or a heap that settles slows down.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

from services.mounts.torture.client import Client, Gone
from services.mounts.torture.report import Growth
from services.mounts.torture.storm import Storm

ROUNDS = 12
ROUND_S = 1.0
MOST_CALLS = 200
AT_ONCE = 20
LEAST_CALLS = 1000
"""With fewer, what grows may be what a server loads when it is first needed."""
LEAST_BYTES = 24 << 20
LEAST_FILES = 6
STEADY = 0.5
"""A later half that grows by this share of what an earlier half grew by has not slowed down."""


async def growth(storm: Storm) -> None:
    """Make rounds of calls; twice as many if something seems to grow."""
    storm.doing = "calls without an end"
    client = await storm.client()
    calls = await _calibrated(storm, client)
    found = Growth(calls_a_round=calls, memory_bytes=[], open_files=[])
    for number in range(2 * ROUNDS):
        if number == ROUNDS and not (
            grows(found.memory_bytes, LEAST_BYTES // 2) or grows(found.open_files, LEAST_FILES // 2)
        ):
            break
        if not await _round(storm, client, calls):
            return
        use = client.process.use()
        found.memory_bytes.append(use.memory_bytes)
        found.open_files.append(use.open_files)
    storm.report.growth = found
    made = calls * len(found.memory_bytes)
    if len(found.memory_bytes) < 2 * ROUNDS:
        return
    if made < LEAST_CALLS:
        note = f"something grows, but {made} calls are too few to say that it does not end"
        storm.report.notes += [] if note in storm.report.notes else [note]
        return
    if grows(found.memory_bytes, LEAST_BYTES) and goes_on(found.memory_bytes):
        first, last = found.memory_bytes[0] >> 20, found.memory_bytes[-1] >> 20
        storm.note("grew", f"memory from {first} to {last} MiB over {made} calls")
    if grows(found.open_files, LEAST_FILES) and goes_on(found.open_files):
        storm.note("grew", f"from {found.open_files[0]} to {found.open_files[-1]} open files over {made} calls")


def grows(seen: Sequence[int], least: int) -> bool:
    """Return whether most of the later rounds end higher than the one before, and all together by at least so much."""
    later = seen[len(seen) // 3 :]
    steps = [after - before for before, after in pairwise(later)]
    return later[-1] - later[0] >= least and sum(step > 0 for step in steps) >= 0.75 * len(steps)


def goes_on(seen: Sequence[int]) -> bool:
    """Return whether the last third grows as the second did."""
    third = len(seen) // 3
    earlier, later = seen[2 * third] - seen[third], seen[-1] - seen[2 * third]
    return earlier > 0 and later >= STEADY * earlier


async def _calibrated(storm: Storm, client: Client) -> int:
    """Return how many calls take about the time of a round."""
    began = time.monotonic()
    if not await _round(storm, client, AT_ONCE):
        raise Gone
    took_s = max(time.monotonic() - began, 0.001)
    return max(5, min(MOST_CALLS, int(AT_ONCE * ROUND_S / took_s)))


async def _round(storm: Storm, client: Client, calls: int) -> bool:
    for begin in range(0, calls, AT_ONCE):
        for _ in range(min(AT_ONCE, calls - begin)):
            await storm.probe(client)
        if not await storm.settle():
            return False
    return True
