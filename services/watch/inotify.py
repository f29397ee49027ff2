"""Events of changed folders from the operating system: inotify(7) by way of the C library.

A watch is put on an open folder, never on a path, so that it is on the very folder that was looked at. Events are read
without blocking and are hints: which entry of which folder to look at again. An overflow of the queue is an event as
well; then everything has to be looked at.
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

from linckia.services.runtime.privileges import checked, libc

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
"""Some 8,000 events at once: a few milliseconds of work."""


class Event(NamedTuple):
    """`watch` is -1 where the queue overflowed; `name` is empty where the folder itself is meant."""

    watch: int
    mask: int
    name: bytes


class Inotify:
    """An open queue of events; `fd` is for `trio.lowlevel.wait_readable`."""

    def __init__(self) -> None:
        """Raises OSError where the user has too many of them already (`fs.inotify.max_user_instances`)."""
        self.fd = checked(libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")

    def add(self, folder: int) -> int:
        """Watch an open folder; the same folder always has the same number. Raises OSError (ENOSPC: past the limit)."""
        path = b"/proc/self/fd/%d" % folder
        return checked(libc().inotify_add_watch(self.fd, path, ctypes.c_uint32(_MASK)), "inotify_add_watch")

    def remove(self, watch: int) -> None:
        """End a watch; one that ended by itself, with its folder, is passed over."""
        if libc().inotify_rm_watch(self.fd, watch) < 0 and ctypes.get_errno() != errno.EINVAL:
            raise OSError(ctypes.get_errno(), f"inotify_rm_watch: {os.strerror(ctypes.get_errno())}")

    def read(self) -> bytes:
        """Whole events, as many as the queue has; empty where it has none."""
        try:
            return os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        os.close(self.fd)


class Watches:
    """Which folder each watch is on, and which folders have none because there are no more.

    The event loop reads from here while the worker thread writes: each step is one operation on a dict.

    Args:
        limit: how many it may have at most; 0 leaves that to the operating system.
    """

    def __init__(self, inotify: Inotify, limit: int = 0) -> None:
        self._inotify = inotify
        self._limit = limit
        self._folders: dict[int, tuple[int, ...]] = {}
        self._watch_of: dict[int, int] = {}
        self.without: set[int] = set()
        """Folders that have none and are to be looked at now and then."""

    def __len__(self) -> int:
        return len(self._folders)

    def __contains__(self, folder: int) -> bool:
        return folder in self._watch_of

    def folders(self, watch: int) -> tuple[int, ...]:
        """The folders that an event is about: several where one is in several trees."""
        return self._folders.get(watch, ())

    def add(self, folder: int, descriptor: int) -> None:
        """Watch an open folder. To be called before it is looked into."""
        known = self._watch_of.get(folder)
        if known is None and self._limit and len(self._folders) >= self._limit:
            self.without.add(folder)
            return
        try:
            watch = self._inotify.add(descriptor)
        except OSError as error:
            # ENOSPC is the limit, ENOMEM the kernel's own; whatever it is, the folder is polled.
            if not self.without:
                _log.warning("no more folders can be watched (%s): the others are polled", error)
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
        """The operating system ended a watch."""
        for folder in self._folders.pop(watch, ()):
            self._watch_of.pop(folder, None)

    def _unlink(self, folder: int, watch: int) -> bool:
        """Take the folder off the watch; answers whether that was the last one."""
        left = tuple(other for other in self._folders.get(watch, ()) if other != folder)
        if left:
            self._folders[watch] = left
            return False
        return self._folders.pop(watch, None) is not None


def parse(data: bytes) -> Iterator[Event]:
    """The events in what `read` gave."""
    at, end = 0, len(data)
    while at < end:
        watch, mask, _, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield Event(watch, mask, data[at : at + length].rstrip(b"\0"))
        at += length


def system_limit(name: str) -> int:
    """A limit of the system (`max_user_watches`, `max_queued_events`); 0 where it cannot be read."""
    try:
        return int(Path("/proc/sys/fs/inotify", name).read_text())
    except (OSError, ValueError):
        return 0
