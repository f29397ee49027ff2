"""How a process is tied to the kernel: it dies when the kernel dies, even by SIGKILL, and leaves no orphan.

Linux only (`PR_SET_PDEATHSIG`).  The signal is bound to the *thread* that is the parent, so the kernel starts processes
from its main thread only.  A change of user clears it: call `bind` again after one.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


class KernelGone(Exception):
    """The kernel died between this process's birth and now."""


_libc = ctypes.CDLL(None, use_errno=True)


def bind(parent_pid: int, name: str) -> None:
    """Die with `parent_pid`, and be called `name` (15 bytes of it) in listings of processes.

    Raises:
        KernelGone: `parent_pid` is not the parent (any more).
    """
    _prctl(_PR_SET_NAME, name.encode()[:15])
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    # The parent may have died before the call above, which then never fires.
    if os.getppid() != parent_pid:
        raise KernelGone(f"process {parent_pid} is gone")


def _prctl(option: int, value: int | bytes) -> None:
    if _libc.prctl(option, value if isinstance(value, bytes) else ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")
