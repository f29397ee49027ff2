"""What Linux reports about processes (memory, activity, OOM kills), and a reaper for orphans, dead or alive.

The zombies are processes that services left behind; we are their subreaper. The reaper never takes the exit status of a
child that other code waits for: children that the supervisor started are registered, process groups of dead services
contain only what those spawned, and other zombies are left alone for a while.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple


def memory_bytes(pid: int) -> int | None:
    """Return the process's own memory in bytes: anonymous, shared and swapped out. Takes 40 µs. None if it is gone.

    File-backed pages are excluded: the system reclaims them under pressure, and a mapped index is no leak.
    """
    return _bytes(f"/proc/{pid}/status", b"RssAnon:", b"RssShmem:", b"VmSwap:")


def resident_bytes(pid: int) -> int | None:
    """Return all resident memory, including file-backed pages; None if the process is gone."""
    return _bytes(f"/proc/{pid}/status", b"VmRSS:")


def proportional_bytes(pid: int) -> int | None:
    """Return resident memory with shared pages divided among sharers (PSS). Takes milliseconds for a large process."""
    return _bytes(f"/proc/{pid}/smaps_rollup", b"Pss:")


def family(pid: int) -> list[int]:
    """Return the process and all its descendants, whatever sessions they have. Takes some 0.1 ms per process."""
    found, left = [], [pid]
    while left:
        found.append(each := left.pop())
        left += children(each)
    return found


def children(pid: int) -> list[int]:
    """Return the children of a process, dead or alive; none if Linux does not list them."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def total(measure: Callable[[int], int | None], pid: int, *, with_programs: bool) -> int | None:
    """Return a measure of a process, or its sum over the process and its descendants; None if the process is gone."""
    if not with_programs:
        return measure(pid)
    sizes = [size for each in family(pid) if (size := measure(each)) is not None]
    return sum(sizes) if sizes else None


def _bytes(path: str, *fields: bytes) -> int | None:
    found = [int(line.split()[1]) * 1024 for line in _read(path).splitlines() if line.startswith(fields)]
    # A zombie has none of these lines.
    return sum(found) if found else None


def _read(path: str | Path) -> bytes:
    """Return b"" if the file does not exist, since processes end."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def session_of(pid: int) -> int | None:
    """Return the session of a process, or of a zombie; None if there is no such process."""
    fields = _stat(pid)
    return int(fields[3]) if fields else None


STOPPED, GONE = "T", "X"
"""States of a process that received SIGSTOP, and of one that does not exist."""


def progress_of(pid: int) -> tuple[str, int]:
    """Return the state of a process as in ps(1), and the processor time it has used, in clock ticks."""
    fields = _stat(pid)
    return (fields[0].decode(), int(fields[11]) + int(fields[12])) if fields else (GONE, 0)


def threads_of(pid: int) -> int:
    """Return the number of threads; 0 if the process is gone."""
    fields = _stat(pid)
    return int(fields[17]) if fields else 0


def _stat(pid: int) -> list[bytes]:
    """Return the fields of proc_pid_stat(5) from the third on; empty if there is no such process."""
    # The process name, in parentheses, may contain anything, so skip past its end.
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


# When a ping is unanswered, what the process did since then tells a hung event loop from a slow one. A process that
# sleeps although a ping is in its socket is blocked outside its event loop. One that uses the processor without
# answering is stuck in one computation. One that waits for a processor or the disk is slow because the machine is;
# that time is never counted against it.

LOOK_S = 0.1
"""Interval between two samples, and the most that one can count for, since this process may have been late itself."""

GRACE_S = 0.2
"""Delay before the first sample: a healthy loop answers in milliseconds."""


class Activity(NamedTuple):
    """A process at one moment: the state of its main thread, which runs the loop, as in proc_pid_stat(5), and the
    processor time that each thread has used, in ns."""

    state: str
    used_ns: dict[str, int]


def activity(pid: int) -> Activity | None:
    """Return None if the process is gone or the system does not report its activity."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        used = {thread: int(_read(f"/proc/{pid}/task/{thread}/schedstat").split()[0]) for thread in threads}
    except (OSError, ValueError, IndexError):
        return None
    return Activity(progress_of(pid)[0], used)


def unexcused_s(pid: int, before: Activity, after: Activity) -> float | None:
    """Return how much of the time between two samples counts against the loop.

    None means that it was waiting for a processor or the disk.
    """
    loop = str(pid)
    if after.used_ns.get(loop) == before.used_ns.get(loop):
        return LOOK_S if after.state == before.state == "S" else None
    # Another thread may hold the interpreter lock.
    return max(used - before.used_ns.get(thread, 0) for thread, used in after.used_ns.items()) / 1e9


class OomCounter:
    """Counts OOM kills in our control group, or on the whole machine."""

    def __init__(self) -> None:
        counting = (path for path in _group_paths() if b"oom_kill " in _read(path))
        self._path = next(counting, Path("/proc/vmstat"))

    def read(self) -> int:
        """Return the number of kills so far; 0 if they are not counted."""
        return sum(int(line.split()[1]) for line in _read(self._path).splitlines() if line.startswith(b"oom_kill "))


def _group_paths() -> Iterator[Path]:
    for line in _read("/proc/self/cgroup").decode().splitlines():
        _, controllers, group = line.split(":", 2)
        # In a container, the group's path is often the host's, and the group itself is mounted at the root.
        for where in (group.lstrip("/"), ""):
            if not controllers:
                yield Path("/sys/fs/cgroup") / where / "memory.events"
            elif "memory" in controllers.split(","):
                yield Path("/sys/fs/cgroup/memory") / where / "memory.oom_control"


LAST_STRAYS_S = 2.0
"""Time at the end for killing what services left. A process in uninterruptible sleep may take longer."""

FORGOTTEN_AFTER_S = 5.0
"""Code that waits for a child has its status long before this: a pidfd reports within a millisecond."""

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make orphaned descendants our children rather than init's. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(error)}")


class Reaper:
    """Collects orphaned zombies, and ends living orphans: what a mounted server left after everything above it died.

    `own` holds the pids that the supervisor itself waits for.
    """

    def __init__(self) -> None:
        self.own: set[int] = set()
        self._older = frozenset(children(os.getpid()))
        """Children of the program that became the kernel."""
        self._strays: dict[int, float] = {}
        """Living orphans, and when they were first seen."""
        self._groups: set[int] = set()
        self._seen: tuple[int, float] | None = None
        self._session = os.getsid(0)

    def buried(self, pid: int) -> None:
        """Note that a service is dead, so that the rest of its process group is collected."""
        self.own.discard(pid)
        self._groups.add(pid)

    def strays(self) -> list[int]:
        """Return the children that services left: they have a session of their own, and nobody waits for them.

        A process that a zygote has just forked is among them until the zygote has reported it.
        """
        if os.getpid() == 1:
            # All orphans of the container come here.
            return []
        unknown = set(children(os.getpid())) - self.own - self._older
        return [pid for pid in unknown if session_of(pid) not in (self._session, None)]

    def end_strays(self, now: float) -> None:
        """Kill what services left at least `FORGOTTEN_AFTER_S` ago, with everything below it."""
        self._strays = {pid: self._strays.get(pid, now) for pid in self.strays()}
        for pid, since in self._strays.items():
            if now - since >= FORGOTTEN_AFTER_S:
                _kill_family(pid)

    def end_all_strays(self) -> None:
        """Kill all that services left, and what was below it. Blocks, for `LAST_STRAYS_S` at most."""
        ends_at = time.monotonic() + LAST_STRAYS_S
        while living := [pid for pid in self.strays() if progress_of(pid)[0] not in ("Z", GONE)]:
            if time.monotonic() > ends_at:
                return
            for pid in living:
                _kill_family(pid)
            time.sleep(0.005)

    def collect(self, now: float) -> None:
        """Collect once."""
        self.end_strays(now)
        for group in tuple(self._groups - self.own):
            try:
                while os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG) is not None:
                    continue
            except ChildProcessError:
                # The group has no members left.
                self._groups.discard(group)
        while (pid := _next_zombie()) is not None and self._is_orphan(pid, now):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)

    def _is_orphan(self, pid: int, now: float) -> bool:
        if pid in self.own:
            return False
        if session_of(pid) not in (self._session, pid):
            # The kernel did not create its session, so a service spawned it.
            return True
        if self._seen is None or self._seen[0] != pid:
            self._seen = (pid, now)
        return now - self._seen[1] >= FORGOTTEN_AFTER_S


def _kill_family(pid: int) -> None:
    for each in family(pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)


def _next_zombie() -> int | None:
    """Return the pid of an uncollected dead child, without collecting it."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found is not None else None
