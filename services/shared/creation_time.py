"""The creation time of a file, read with statx(2) because `os.stat` does not report it on Linux."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

from services.runtime.privileges import libc

AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_AT_EMPTY_PATH: Final = 0x1000
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_BTIME = struct.Struct("=qI")
_BTIME_AT: Final = 80


def created_ns(name: str | bytes, folder: int = AT_FDCWD) -> int:
    """Return when the entry `name` of an open folder was created, in nanoseconds; an empty name means the folder
    itself.

    Returns 0 if the time is unknown or the entry does not exist. Symbolic links are not followed.

    An inode number may be reused as soon as its file is deleted; the creation time tells the two files apart.
    """
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    flags = _AT_SYMLINK_NOFOLLOW if name else _AT_EMPTY_PATH
    if libc().statx(folder, os.fsencode(name), flags, _STATX_BTIME, buffer) < 0:
        return 0
    if not struct.unpack_from("=I", buffer)[0] & _STATX_BTIME:
        return 0
    seconds, nanoseconds = _BTIME.unpack_from(buffer, _BTIME_AT)
    return int(seconds * 1_000_000_000 + nanoseconds)
