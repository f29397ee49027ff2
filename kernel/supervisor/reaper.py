"""Collects orphaned zombies: processes that services left behind and that became children of the subreaper, us.

It never takes the exit status of a child that other code in the kernel waits for: those that the supervisor started are
registered, the groups of dead services hold nothing but what they spawned, and any other zombie is left alone until it
has evidently been forgotten.
"""

from __future__ import annotations

import ctypes
import os

import trio

from kernel.supervisor import procfs

INTERVAL_S = 1.0
"""A zombie costs an entry in the process table and nothing else, so there is no hurry."""

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
    """`run` collects until cancelled; `own` holds the pids that the supervisor waits for itself."""

    def __init__(self) -> None:
        self.own: set[int] = set()
        self._groups: set[int] = set()
        self._seen: tuple[int, float] | None = None
        self._session = os.getsid(0)

    def left_behind(self, group: int) -> None:
        """A service is dead; whatever is left of its process group is to be collected."""
        self._groups.add(group)

    async def run(self) -> None:
        while True:
            await trio.sleep(INTERVAL_S)
            self.collect(trio.current_time())

    def collect(self, now: float) -> None:
        """One round."""
        for group in tuple(self._groups - self.own):
            if not self._collect_group(group):
                self._groups.discard(group)
        while (pid := _next_zombie()) is not None and self._is_orphan(pid, now):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)

    def _collect_group(self, group: int) -> bool:
        """Whether the group has members left."""
        try:
            while os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG) is not None:
                continue
        except ChildProcessError:
            return False
        return True

    def _is_orphan(self, pid: int, now: float) -> bool:
        if pid in self.own:
            return False
        session = procfs.session_of(pid)
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
