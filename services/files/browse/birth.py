"""When a file was born, which Python's `os.stat` does not tell on Linux: statx(2)."""

from __future__ import annotations

import ctypes
import functools
import os
import struct

from services.files import paths, times

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_BTIME = 0x800
_SIZE = 256
_MASK_AT, _BTIME_AT = 0, 80


@functools.cache
def _statx() -> ctypes._NamedFuncPointer | None:
    function = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
    return function


def birth_ns(path: str) -> int | None:
    """When the file at a clean path was made, in nanoseconds; None where nobody knows, or it is not there."""
    statx = _statx()
    if statx is None:
        return None
    buffer = ctypes.create_string_buffer(_SIZE)
    if statx(_AT_FDCWD, os.fsencode(paths.to_os(path)), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, buffer) != 0:
        return None
    (mask,) = struct.unpack_from("=I", buffer, _MASK_AT)
    if not mask & _STATX_BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, _BTIME_AT)
    return int(seconds) * times.NS + int(nanoseconds)
