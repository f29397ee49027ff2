"""What Linux tells about processes (their memory, who was killed for want of it), and the reaper of orphaned zombies.

Zombies are what services left behind; they became children of the subreaper, us.  The reaper never takes the exit
status of a child that other code waits for: those that the supervisor started are registered, the groups of dead
services hold nothing but what they spawned, and any other zombie is left alone for a while.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_OWN = (b"RssAnon:", b"RssShmem:", b"VmSwap:")


def memory_bytes(pid: int) -> int | None:
    """Memory of its own, in bytes: anonymous, shared and swapped out; 40 µs.  None where the process is gone.

    File-backed pages are left out: they are given back under pressure, and a mapped index is no leak.
    """
    return _status_bytes(pid, _OWN)


def resident_bytes(pid: int) -> int | None:
    """All that is resident, file-backed pages included.  None where the process is gone."""
    return _status_bytes(pid, (b"VmRSS:",))


def proportional_bytes(pid: int) -> int | None:
    """Resident memory with shared pages divided among their sharers (PSS); some milliseconds for a large process."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss:"))


def _status_bytes(pid: int, fields: tuple[bytes, ...]) -> int | None:
    try:
        fd = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(fd, 8192)
    except OSError:
        # The process ended in between.
        return None
    finally:
        os.close(fd)
    found = [int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(fields)]
    # A zombie has no memory and none of these lines.
    return sum(found) if found else None


def session_of(pid: int) -> int | None:
    """The session of a process, a zombie's too.  None where there is no such process."""
    fields = _stat(pid)
    return int(fields[3]) if fields else None


STOPPED = "T"
"""The state of a process that has got SIGSTOP."""


def progress_of(pid: int) -> tuple[str, int]:
    """The state of a process as ps(1) names it, and the processor time that it has used, in clock ticks."""
    fields = _stat(pid)
    return (fields[0].decode(), int(fields[11]) + int(fields[12])) if fields else ("X", 0)


def _stat(pid: int) -> list[bytes]:
    """The fields of proc_pid_stat(5) from the third on; none where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    # The name, in parentheses, may hold anything, so fields are counted after its end.
    return stat[stat.rindex(b")") + 2 :].split()


class OomCounter:
    """How many processes Linux has killed for want of memory, in our control group or on the machine."""

    def __init__(self) -> None:
        counting = (path for path in _group_paths() if "oom_kill " in _text(path))
        self._path = next(counting, Path("/proc/vmstat"))

    def read(self) -> int:
        """Kills so far; 0 where they are not counted."""
        return sum(int(line.split()[1]) for line in _text(self._path).splitlines() if line.startswith("oom_kill "))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _group_paths() -> Iterator[Path]:
    for line in _text(Path("/proc/self/cgroup")).splitlines():
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
        session = session_of(pid)
        if session not in (self._session, pid):
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
