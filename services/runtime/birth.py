"""When a file was created, which `os.stat` does not tell on Linux: statx(2)."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

from linckia.services.runtime.privileges import libc

AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_AT_EMPTY_PATH: Final = 0x1000
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_BTIME = struct.Struct("=qI")
_BTIME_AT: Final = 80


def born_ns(name: str | bytes, folder: int = AT_FDCWD) -> int:
    """When the entry of an open folder was created, in nanoseconds, or with an empty name that folder; 0 where that is
    not known or it does not exist. No link is followed.

    A file's number may be given to another one as soon as it is gone; the two are told apart by this.
    """
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    flags = _AT_SYMLINK_NOFOLLOW if name else _AT_EMPTY_PATH
    if libc().statx(folder, os.fsencode(name), flags, _STATX_BTIME, buffer) < 0:
        return 0
    if not struct.unpack_from("=I", buffer)[0] & _STATX_BTIME:
        return 0
    seconds, nanoseconds = _BTIME.unpack_from(buffer, _BTIME_AT)
    return int(seconds * 1_000_000_000 + nanoseconds)
