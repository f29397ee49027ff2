"""What a service holds of the disk: its own folder, and files that it has open and deleted.

Looked at once a second, and less often where a look takes long. RLIMIT_FSIZE bounds each file beside it
(`services.runtime.sandbox`), so that no burst in between is one huge file.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import shlex
import stat
import time
from pathlib import Path

import trio

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


async def clear(folder: Path) -> None:
    """Remove what is in it, or the next process would die of the same.  The folder stays: a standby may use no other.

    By programs, since it may lie deeper than Python recurses, and be closed to the user whose it is.
    """
    for command in (["chmod", "-R", "u+rwx", str(folder)], ["find", str(folder), "-mindepth", "1", "-delete"]):
        try:
            done = await trio.run_process(command, check=False, capture_stderr=True)
        except OSError as error:
            _log.warning("%s: %s", shlex.join(command), error)
            return
        if done.returncode:
            _log.warning("%s: %s", shlex.join(command), done.stderr.decode(errors="replace").strip()[:500])


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
