"""What /proc says about a server's processes: their memory, whether they are stopped, and leftovers of earlier ones."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from services.mounts.process.guardian import children, descendants, kill

MARKER = "LINCKIA_MOUNT"
"""Environment variable by which a server's processes are recognized after the death of everything above them."""

LEFTOVERS_S = 5.0
"""How long to wait until killed leftovers are gone. A process in uninterruptible sleep may take longer."""

_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_STOPPED = (b"T", b"t")
_ENDED = (b"Z", b"X")


def memory_bytes(guardian: int, limit_bytes: int) -> int:
    """Return the memory of all processes below a guardian, including those that have left the server's tree.

    Shared pages count once for each process, unless that sum exceeds the limit: then each process counts its share of
    them (PSS), which takes longer to find out.
    """
    pids = descendants(guardian)
    resident = sum(map(_resident_bytes, pids))
    return resident if resident <= limit_bytes else sum(map(proportional_bytes, pids))


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines()
    except OSError:
        return _resident_bytes(pid)
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss:")), 0)


def _state(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return b""


def are_stopped(pid: int) -> bool:
    """Return whether a process and all below it are stopped, by SIGSTOP or a debugger."""
    states = [state for each in (pid, *descendants(pid)) if (state := _state(each)) and state not in _ENDED]
    return bool(states) and all(state in _STOPPED for state in states)


def kill_leftovers(mark: str) -> int:
    """Kill all processes whose environment has the marker; return how many. Blocks until they are gone."""
    wanted = f"{MARKER}={mark}".encode()
    killed: set[int] = set()
    ends_at = time.monotonic() + LEFTOVERS_S
    while found := [pid for pid in _own_processes() if _is_marked(pid, wanted)]:
        killed.update(found)
        kill(found)
        if time.monotonic() > ends_at:
            break
        time.sleep(0.01)
    return len(killed)


def _own_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _is_marked(pid: int, wanted: bytes) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return wanted in variables.split(b"\0") and _state(pid) not in _ENDED


def kill_orphans(guardians: set[int]) -> None:
    """Kill children of this process that are not guardians, with all below them, until none is left. Blocks.

    They were inherited from a guardian that was killed.
    """
    pause_s = 0.002
    while orphans := [pid for pid in children(os.getpid()) if pid not in guardians]:
        for orphan in orphans:
            kill([*descendants(orphan), orphan])
        for orphan in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, os.WNOHANG)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.25)
