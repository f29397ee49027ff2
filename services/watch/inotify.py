"""Change events from the operating system: inotify(7), called through the C library.

A watch is placed on an open folder, never on a path, so it is on exactly the folder that is then examined. Events are
read without blocking and are only hints: which entry of which folder to examine again. Queue overflow is also an event;
everything must then be examined.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from services.runtime.privileges import checked, libc

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

_log = logging.getLogger("linckia.watch")

_HEAD = struct.Struct("=iIII")
READ_BYTES: Final = 256 * 1024
"""About 8,000 events at once: a few milliseconds of work."""


class Event(NamedTuple):
    """An inotify event. `watch` is -1 if the queue overflowed; `name` is empty if the event concerns the folder
    itself."""

    watch: int
    mask: int
    name: bytes


class Inotify:
    """An open event queue; pass `fd` to `trio.lowlevel.wait_readable`."""

    def __init__(self) -> None:
        """Raises OSError if the user has too many queues (`fs.inotify.max_user_instances`)."""
        self.fd = checked(libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")

    def add(self, folder: int) -> int:
        """Watch an open folder. The same folder always gets the same number. Raises OSError (ENOSPC: over the
        limit)."""
        path = b"/proc/self/fd/%d" % folder
        return checked(libc().inotify_add_watch(self.fd, path, ctypes.c_uint32(_MASK)), "inotify_add_watch")

    def remove(self, watch: int) -> None:
        """Remove a watch, unless it ended on its own along with its folder."""
        if libc().inotify_rm_watch(self.fd, watch) < 0 and ctypes.get_errno() != errno.EINVAL:
            raise OSError(ctypes.get_errno(), f"inotify_rm_watch: {os.strerror(ctypes.get_errno())}")

    def read(self) -> bytes:
        """Return as many whole events as the queue has; empty if it has none."""
        try:
            return os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        os.close(self.fd)


class Watches:
    """Maps watches to folders, and records which folders have no watch because the limit is reached.

    The event loop reads it while the worker thread writes: each step is a single operation on a dict.

    Args:
        limit: most watches to use; 0 means only the operating system's limit applies.
    """

    def __init__(self, inotify: Inotify, limit: int = 0) -> None:
        self._inotify = inotify
        self._limit = limit
        self._folders: dict[int, tuple[int, ...]] = {}
        self._watch_of: dict[int, int] = {}
        self.without: set[int] = set()
        """Folders without a watch, which are polled."""

    def __len__(self) -> int:
        return len(self._folders)

    def __contains__(self, folder: int) -> bool:
        return folder in self._watch_of

    def folders(self, watch: int) -> tuple[int, ...]:
        """Return the folders that an event concerns; several if a folder is in more than one tree."""
        return self._folders.get(watch, ())

    def add(self, folder: int, descriptor: int) -> None:
        """Watch an open folder. Must be called before the folder is examined."""
        known = self._watch_of.get(folder)
        if known is None and self._limit and len(self._folders) >= self._limit:
            self.without.add(folder)
            return
        try:
            watch = self._inotify.add(descriptor)
        except OSError as error:
            # ENOSPC is the user's limit, ENOMEM the kernel's; either way, the folder is polled.
            if not self.without:
                _log.warning("no more folders can be watched (%s): polling the others", error)
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EACCES, errno.ENOENT):
                raise
            self.without.add(folder)
            return
        if known is not None and known != watch:
            self._unlink(folder, known)
        self._watch_of[folder] = watch
        others = self._folders.get(watch, ())
        if folder not in others:
            self._folders[watch] = (*others, folder)
        self.without.discard(folder)

    def drop(self, folder: int) -> None:
        """Stop watching a folder."""
        self.without.discard(folder)
        watch = self._watch_of.pop(folder, None)
        if watch is not None and self._unlink(folder, watch):
            self._inotify.remove(watch)

    def ended(self, watch: int) -> None:
        """Record that the operating system ended a watch."""
        for folder in self._folders.pop(watch, ()):
            self._watch_of.pop(folder, None)

    def _unlink(self, folder: int, watch: int) -> bool:
        """Detach a folder from a watch. Returns True if it was the last one."""
        left = tuple(other for other in self._folders.get(watch, ()) if other != folder)
        if left:
            self._folders[watch] = left
            return False
        return self._folders.pop(watch, None) is not None


def parse(data: bytes) -> Iterator[Event]:
    """Yield the events in data returned by `read`."""
    at, end = 0, len(data)
    while at < end:
        watch, mask, _, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield Event(watch, mask, data[at : at + length].rstrip(b"\0"))
        at += length


def system_limit(name: str) -> int:
    """Return a system limit (`max_user_watches`, `max_queued_events`); 0 if it cannot be read."""
    try:
        return int(Path("/proc/sys/fs/inotify", name).read_text())
    except (OSError, ValueError):
        return 0
