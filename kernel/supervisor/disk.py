"""What a service holds of the disk: its own folder, and files that it has open and deleted.

Looked at once a second, and less often where a look takes long. RLIMIT_FSIZE bounds each file beside it
(`services.runtime.sandbox`), so that no burst in between is one huge file.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import stat
import time
from pathlib import Path

import trio

from linckia.proto.birth import SCRATCH_FOLDER
from linckia.proto.removal import empty, remove

INTERVAL_S = 1.0
SHARE = 1 / 50
"""Of a processor, for looking."""

ENTRY_BYTES = 4096
"""At least, for each file and folder: empty ones take space as well, and time to count."""

_CANNOT_BE_SEEN = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
"""A folder that is closed to its kernel, or lies deeper than a path leads."""

_log = logging.getLogger("linckia.supervisor")


async def overflow(folder: Path, pid: int, limit: int) -> str:
    """Until the process with its folder holds more than `limit` bytes of the disk; says how much."""
    while True:
        begun = time.monotonic()
        held = await trio.to_thread.run_sync(held_bytes, folder, pid, limit, abandon_on_cancel=True)
        if held > limit:
            many = "what cannot be counted" if held == math.inf else f"{held / 2**20:.0f} MiB or more"
            return f"holds {many} of the disk in {folder}, its limit is {limit / 2**20:.0f} MiB (disk_limit_bytes)"
        await trio.sleep(max(INTERVAL_S, (time.monotonic() - begun) / SHARE))


async def clear(folder: Path, limit: int) -> str:
    """Remove a dead service's temporary files, so that the next process does not die of them.

    Returns what is to be done about the rest where that alone is past the limit: it may be somebody's data.
    """
    return await trio.to_thread.run_sync(_clear, folder, limit)


def _clear(folder: Path, limit: int) -> str:
    scratch = folder / SCRATCH_FOLDER
    try:
        # The folder stays: a standby may use no other.
        empty(scratch) if scratch.is_dir() and not scratch.is_symlink() else remove(scratch)
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
    """Bytes, counted no further than past `most`; infinity where the folder hides what is in it.  Blocks."""
    return folder_bytes(folder, most, _deleted_bytes(pid))


def folder_bytes(folder: Path, most: float = math.inf, total: float = 0.0) -> float:
    """The same of the folder alone, added to `total`."""
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
            # It changes meanwhile.
    return total


def _deleted_bytes(pid: int) -> int:
    """Of files without a name that the process has open; 0 where Linux does not tell."""
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
