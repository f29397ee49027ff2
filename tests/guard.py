"""Ends processes that tests started, in a process of its own beside each process that runs tests.

    python guard.py RUN PID

PID is the process that runs tests. For each test it writes a line that says within how many seconds it will write the
next one. If it does not, it is stuck: it is made to write its tracebacks to stderr, and killed. After it has ended, in
whatever way, the processes that it started and left are killed too. They are recognized by the environment variable
`TESTS_RUN`, which processes inherit, or by a parent that has it: services see little of the environment.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

RUN = "TESTS_RUN"

DUMPED_S = 5.0
"""How long a process may take to write its tracebacks."""

ROUNDS = 20
"""How often the processes are listed: those that are about to be killed may start others."""


def started(run: str, since_s: float = 0.0) -> list[int]:
    """Return the processes of a run, and all below them, that were started at an instant of `uptime` or later."""
    if not run.endswith("/"):
        # Anything shorter would match the processes of other runs.
        raise ValueError(f"{run!r} is no run")
    parents: dict[int, int] = {}
    started_s: dict[int, float] = {}
    found: set[int] = set()
    wanted = f"\0{RUN}={run}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # It may end at any moment.
        with contextlib.suppress(OSError):
            # The name of the program, in parentheses, may contain spaces.
            state, parent, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
            if state == "Z":
                continue
            pid = int(entry.name)
            parents[pid], started_s[pid] = int(parent), int(rest[17]) / os.sysconf("SC_CLK_TCK")
            if wanted in b"\0" + (entry / "environ").read_bytes():
                found.add(pid)
    while below := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= below
    # Whatever goes wrong above, it is not the machine that is ended.
    if 1 in found or os.getppid() in found:
        raise RuntimeError(f"processes of {run!r} cannot be told from others")
    return sorted(pid for pid in found - {os.getpid()} if started_s[pid] >= since_s)


def uptime() -> float:
    """Return the present time on the clock of the starting times of processes, rounded down as these are."""
    ticks = os.sysconf("SC_CLK_TCK")
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * ticks) / ticks


def end(run: str, since_s: float = 0.0) -> list[int]:
    """Kill the processes that `started` returns until none is left; return all that were killed."""
    ended: list[int] = []
    for _ in range(ROUNDS):
        if not (found := started(run, since_s)):
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended += found
        time.sleep(0.05)
    return ended


def main(run: str, watched: int) -> None:
    try:
        process = os.pidfd_open(watched)
    except ProcessLookupError:
        # It has ended already.
        end(run)
        return
    deadline: float | None = None
    while True:
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = select.select([0, process], [], [], left_s)[0]
        if process in ready:
            break
        if not ready:
            # faulthandler then writes the tracebacks of all threads, even if one of them holds the interpreter's lock.
            for number in (signal.SIGABRT, signal.SIGKILL):
                signal.pidfd_send_signal(process, number)
                if select.select([process], [], [], DUMPED_S)[0]:
                    break
            break
        if not (lines := os.read(0, 65536).split()):
            break
        seconds = float(lines[-1])
        deadline = time.monotonic() + seconds if seconds else None
    end(run)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
