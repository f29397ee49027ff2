"""What Linux tells about processes: their memory, who was killed for want of it, and who is still a child of ours."""

from __future__ import annotations

import os
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
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may hold anything, so fields are counted after its end.
    return int(stat[stat.rindex(b")") + 2 :].split()[3])


class OomCounter:
    """How many processes the operating system has killed for want of memory where we live.

    Of our own control group, version 2 or 1, where it counts them; of the whole machine otherwise.
    """

    def __init__(self) -> None:
        self._path = _counter_path()

    def read(self) -> int:
        """Kills so far; 0 where they are not counted."""
        try:
            lines = self._path.read_text(encoding="ascii").splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _counter_path() -> Path:
    for path in _group_paths():
        try:
            if "oom_kill " in path.read_text(encoding="ascii"):
                return path
        except OSError:
            continue
    return Path("/proc/vmstat")


def _group_paths() -> list[Path]:
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths: list[Path] = []
    for line in groups:
        _, controllers, group = line.split(":", 2)
        inside = group.lstrip("/")
        # In a container the group's path is often the host's, and the group itself is mounted at the root.
        for where in (inside, ""):
            if not controllers:
                paths.append(Path("/sys/fs/cgroup") / where / "memory.events")
            elif "memory" in controllers.split(","):
                paths.append(Path("/sys/fs/cgroup/memory") / where / "memory.oom_control")
    return paths
