"""What Linux tells about processes (their memory, what they are at, who was killed for want of memory), and the reaper
of orphaned zombies.

Zombies are what services left behind; they became children of the subreaper, us.  The reaper never takes the exit
status of a child that other code waits for: those that the supervisor started are registered, the groups of dead
services hold nothing but what they spawned, and any other zombie is left alone for a while.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


def memory_bytes(pid: int) -> int | None:
    """Memory of its own, in bytes: anonymous, shared and swapped out; 40 µs.  None where the process is gone.

    File-backed pages are left out: they are given back under pressure, and a mapped index is no leak.
    """
    return _bytes(f"/proc/{pid}/status", b"RssAnon:", b"RssShmem:", b"VmSwap:")


def resident_bytes(pid: int) -> int | None:
    """All that is resident, file-backed pages included.  None where the process is gone."""
    return _bytes(f"/proc/{pid}/status", b"VmRSS:")


def proportional_bytes(pid: int) -> int | None:
    """Resident memory with shared pages divided among their sharers (PSS); some milliseconds for a large process."""
    return _bytes(f"/proc/{pid}/smaps_rollup", b"Pss:")


def _bytes(path: str, *fields: bytes) -> int | None:
    found = [int(line.split()[1]) * 1024 for line in _read(path).splitlines() if line.startswith(fields)]
    # A zombie has no memory and none of these lines.
    return sum(found) if found else None


def _read(path: str | Path) -> bytes:
    """Nothing where it is not there: processes end."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def session_of(pid: int) -> int | None:
    """The session of a process, a zombie's too.  None where there is no such process."""
    fields = _stat(pid)
    return int(fields[3]) if fields else None


STOPPED, GONE = "T", "X"
"""The state of a process that has got SIGSTOP, and of one that is not there."""


def progress_of(pid: int) -> tuple[str, int]:
    """The state of a process as ps(1) names it, and the processor time that it has used, in clock ticks."""
    fields = _stat(pid)
    return (fields[0].decode(), int(fields[11]) + int(fields[12])) if fields else (GONE, 0)


def threads_of(pid: int) -> int:
    """How many threads a process has; 0 where it is gone."""
    fields = _stat(pid)
    return int(fields[17]) if fields else 0


def _stat(pid: int) -> list[bytes]:
    """The fields of proc_pid_stat(5) from the third on; none where there is no such process."""
    # The name, in parentheses, may hold anything, so fields are counted after its end.
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


# Whether an event loop that owes a pong hangs or is only slow, by what its process did with the time since.  One that
# sleeps while a ping lies in its socket is blocked in something else than its own waiting. One that has the processor
# and does not come round is busy with one thing. One that waits for a processor, or for the disk, is slow because the
# machine is, and is excused for that long, however long.

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
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        used = {thread: int(_read(f"/proc/{pid}/task/{thread}/schedstat").split()[0]) for thread in threads}
    except (OSError, ValueError, IndexError):
        return None
    return Activity(progress_of(pid)[0], used)


def unexcused_s(pid: int, before: Activity, after: Activity) -> float | None:
    """Of the time between two looks, what counts against the loop; None: it waited for a processor or for the disk."""
    loop = str(pid)
    if after.used_ns.get(loop) == before.used_ns.get(loop):
        return LOOK_S if after.state == before.state == "S" else None
    # What holds the interpreter may be another thread.
    return max(used - before.used_ns.get(thread, 0) for thread, used in after.used_ns.items()) / 1e9


class OomCounter:
    """How many processes Linux has killed for want of memory, in our control group or on the machine."""

    def __init__(self) -> None:
        counting = (path for path in _group_paths() if b"oom_kill " in _read(path))
        self._path = next(counting, Path("/proc/vmstat"))

    def read(self) -> int:
        """Kills so far; 0 where they are not counted."""
        return sum(int(line.split()[1]) for line in _read(self._path).splitlines() if line.startswith(b"oom_kill "))


def _group_paths() -> Iterator[Path]:
    for line in _read("/proc/self/cgroup").decode().splitlines():
        _, controllers, group = line.split(":", 2)
        # In a container the group's path is often the host's, and the group itself is mounted at the root.
        for where in (group.lstrip("/"), ""):
            if not controllers:
                yield Path("/sys/fs/cgroup") / where / "memory.events"
            elif "memory" in controllers.split(","):
                yield Path("/sys/fs/cgroup/memory") / where / "memory.oom_control"


FORGOTTEN_AFTER_S = 5.0
"""Code that waits for a child has long had its status by then: a pidfd tells within a millisecond."""

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Orphans among our descendants become our children, rather than init's.  Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(error)}")


class Reaper:
    """`own` holds the pids that the supervisor waits for itself."""

    def __init__(self) -> None:
        self.own: set[int] = set()
        self._groups: set[int] = set()
        self._seen: tuple[int, float] | None = None
        self._session = os.getsid(0)

    def buried(self, pid: int) -> None:
        """A service is dead; whatever is left of its process group is to be collected."""
        self.own.discard(pid)
        self._groups.add(pid)

    def collect(self, now: float) -> None:
        """One round."""
        for group in tuple(self._groups - self.own):
            try:
                while os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG) is not None:
                    continue
            except ChildProcessError:
                # It has no members left.
                self._groups.discard(group)
        while (pid := _next_zombie()) is not None and self._is_orphan(pid, now):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)

    def _is_orphan(self, pid: int, now: float) -> bool:
        if pid in self.own:
            return False
        if session_of(pid) not in (self._session, pid):
            # The kernel did not make its session, so a service spawned it.
            return True
        if self._seen is None or self._seen[0] != pid:
            self._seen = (pid, now)
        return now - self._seen[1] >= FORGOTTEN_AFTER_S


def _next_zombie() -> int | None:
    """A dead child of ours that was not collected, left as it is."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found is not None else None
