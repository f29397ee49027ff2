"""Events of changed folders from the operating system: inotify(7) by way of the C library.

A watch is put on an open folder, never on a path, so that it is on the very folder that was looked at. Events are read
without blocking and are hints: which entry of which folder to look at again. An overflow of the queue is an event as
well; then everything has to be looked at.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

IN_MODIFY: Final = 0x2
IN_ATTRIB: Final = 0x4
IN_CLOSE_WRITE: Final = 0x8
IN_MOVED_FROM: Final = 0x40
IN_MOVED_TO: Final = 0x80
IN_CREATE: Final = 0x100
IN_DELETE: Final = 0x200
IN_DELETE_SELF: Final = 0x400
IN_MOVE_SELF: Final = 0x800
IN_UNMOUNT: Final = 0x2000
IN_Q_OVERFLOW: Final = 0x4000
IN_IGNORED: Final = 0x8000
_IN_ONLYDIR: Final = 0x1000000

_MASK: Final = (
    IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE
    | IN_DELETE_SELF | IN_MOVE_SELF | _IN_ONLYDIR
)  # fmt: skip

_HEAD = struct.Struct("=iIII")
READ_BYTES: Final = 256 * 1024
"""Some 8,000 events at once: a few milliseconds of work."""

_AT_EMPTY_PATH: Final = 0x1000
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_BTIME = struct.Struct("=qI")
_BTIME_AT: Final = 80


class Event(NamedTuple):
    """`watch` is -1 where the queue overflowed; `name` is empty where the folder itself is meant."""

    watch: int
    mask: int
    name: bytes


class Inotify:
    """An open queue of events; `fd` is for `trio.lowlevel.wait_readable`."""

    def __init__(self) -> None:
        """Raises OSError where the user has too many of them already (`fs.inotify.max_user_instances`)."""
        self.fd = _checked(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")

    def add(self, folder: int) -> int:
        """Watch an open folder; the same folder always has the same number. Raises OSError (ENOSPC: past the limit)."""
        path = b"/proc/self/fd/%d" % folder
        return _checked(_libc().inotify_add_watch(self.fd, path, ctypes.c_uint32(_MASK)), "inotify_add_watch")

    def remove(self, watch: int) -> None:
        """End a watch; one that ended by itself, with its folder, is passed over."""
        if _libc().inotify_rm_watch(self.fd, watch) < 0 and ctypes.get_errno() != errno.EINVAL:
            raise OSError(ctypes.get_errno(), f"inotify_rm_watch: {os.strerror(ctypes.get_errno())}")

    def read(self) -> bytes:
        """Whole events, as many as the queue has; empty where it has none."""
        try:
            return os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        os.close(self.fd)


def parse(data: bytes) -> Iterator[Event]:
    """The events in what `read` gave."""
    at, end = 0, len(data)
    while at < end:
        watch, mask, _, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield Event(watch, mask, data[at : at + length].rstrip(b"\0"))
        at += length


def born_ns(folder: int, name: bytes = b"") -> int:
    """When the entry of an open folder (or, without a name, that folder) was made; 0 where that is not known.

    A folder's number may be given to another one as soon as it is gone; the two are told apart by this. statx(2).
    """
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    flags = _AT_SYMLINK_NOFOLLOW if name else _AT_EMPTY_PATH
    if _libc().statx(folder, name, flags, _STATX_BTIME, buffer) < 0:
        return 0
    if not struct.unpack_from("=I", buffer)[0] & _STATX_BTIME:
        return 0
    seconds, nanoseconds = _BTIME.unpack_from(buffer, _BTIME_AT)
    return int(seconds * 1_000_000_000 + nanoseconds)


def system_limit(name: str) -> int:
    """A limit of the system (`max_user_watches`, `max_queued_events`); 0 where it cannot be read."""
    try:
        return int(Path("/proc/sys/fs/inotify", name).read_text())
    except (OSError, ValueError):
        return 0


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
