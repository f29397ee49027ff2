"""Whether an event loop that owes a pong hangs or is only slow: by what its process did with the time since.

A loop that sleeps while a ping lies in its socket is blocked in something else than its own waiting. One that has the
processor and does not come round is busy with one thing. One that waits for a processor, or for the disk, is slow
because the machine is, and is excused for that long, however long.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

LOOK_S = 0.1
"""Between two looks; what one may count for, since this process may itself have been late."""

GRACE_S = 0.2
"""Before the first: a healthy loop answers in milliseconds."""


class Activity(NamedTuple):
    """A process at one moment: the state of its main thread, which runs the loop, as proc_pid_stat(5) has it, and the
    processor time of each thread so far, in ns."""

    state: str
    used_ns: dict[str, int]


def activity(pid: int) -> Activity | None:
    """None where the process is gone, or the system does not tell."""
    used: dict[str, int] = {}
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            used[thread] = int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_bytes().split()[0])
        stat = Path(f"/proc/{pid}/task/{pid}/stat").read_bytes()
    except (OSError, ValueError, IndexError):
        return None
    return Activity(stat[stat.rindex(b")") + 2 :].split()[0].decode(), used)


def unexcused_s(pid: int, before: Activity, after: Activity) -> float | None:
    """Of the time between two looks, what counts against the loop; None: it waited for a processor or for the disk."""
    loop = str(pid)
    if after.used_ns.get(loop) == before.used_ns.get(loop):
        return LOOK_S if after.state == before.state == "S" else None
    # What holds the interpreter may be another thread.
    return max(used - before.used_ns.get(thread, 0) for thread, used in after.used_ns.items()) / 1e9
