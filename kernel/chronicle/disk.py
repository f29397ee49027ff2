"""Disk usage of a service: its own folder, and deleted files that it still has open.

Usage is measured once a second, less often if measuring takes long or the process rests. RLIMIT_FSIZE also limits each
single file (`services.runtime.sandbox`), so one huge file cannot slip in between two measurements.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from proto.host.removal import empty
from proto.host.scratch import provide
from proto.wire.launch import SCRATCH_FOLDER

INTERVAL_S = 1.0
SHARE = 1 / 50
"""Fraction of one processor that measuring may use."""

ENTRY_BYTES = 4096
"""Minimum counted for each file and folder: empty ones take up space too, and time to count."""

_CANNOT_BE_SEEN = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
"""Errors for a folder that the kernel cannot read or whose path is too long."""

_log = logging.getLogger("linckia.supervisor")


async def overflow(folder: Path, pid: int, limit: int, pause: Callable[[float], Awaitable[None]] = trio.sleep) -> str:
    """Wait until the process with this folder uses more than `limit` bytes of disk; return a message with the
    amount. `pause` waits for the next measurement: a process at rest writes nothing."""
    while True:
        begun = time.monotonic()
        held = await trio.to_thread.run_sync(held_bytes, folder, pid, limit, abandon_on_cancel=True)
        if held > limit:
            many = "what cannot be counted" if held == math.inf else f"{held / 2**20:.0f} MiB or more"
            return f"holds {many} of the disk in {folder}, its limit is {limit / 2**20:.0f} MiB (disk_limit_bytes)"
        await pause(max(INTERVAL_S, (time.monotonic() - begun) / SHARE))


async def clear(folder: Path, limit: int) -> str:
    """Remove a dead service's temporary files, so that the next process is not ended for them as well.

    If the other files alone exceed the limit, they are kept, since they may be user data. Returns what to do about
    them, or "".
    """
    return await trio.to_thread.run_sync(_clear, folder, limit)


def _clear(folder: Path, limit: int) -> str:
    scratch = folder / SCRATCH_FOLDER
    try:
        # A standby does not make the folder again when it takes over. It may not be able to use another one, so that
        # an existing one stays.
        empty(provide(folder))
    except OSError as error:
        _log.warning("the temporary files in %s cannot be removed: %s", scratch, error)
    held = folder_bytes(folder, limit)
    if held <= limit:
        return ""
    many = "what cannot be counted (a folder that is closed or too deep)" if held == math.inf else "more than the limit"
    return (
        f"; {many} lies outside {scratch}, so it will die of this again: remove what it does not need from {folder}, "
        "or raise its disk_limit_bytes"
    )


def held_bytes(folder: Path, pid: int, most: float = math.inf) -> float:
    """Return the bytes in use, infinity if a folder cannot be read. Counting stops once past `most`. Blocks."""
    return folder_bytes(folder, most, _deleted_bytes(pid))


def folder_bytes(folder: Path, most: float = math.inf, total: float = 0.0) -> float:
    """Like `held_bytes`, for the folder only; the result includes `total`."""
    waiting = [str(folder)]
    while waiting and total <= most:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    total += max(found.st_blocks * 512, ENTRY_BYTES)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    if total > most:
                        break
        except OSError as error:
            if error.errno in _CANNOT_BE_SEEN:
                return math.inf
            # Otherwise the folder changed during the scan.
    return total


def _deleted_bytes(pid: int) -> int:
    """Return the size of deleted files that the process has open; 0 if Linux does not report it."""
    total = 0
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            try:
                found = os.stat(f"/proc/{pid}/fd/{number}")
            except OSError:
                continue
            if found.st_nlink == 0 and stat.S_ISREG(found.st_mode):
                total += found.st_blocks * 512
    except OSError:
        return total
    return total
