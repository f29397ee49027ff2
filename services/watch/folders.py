"""Looking at folders on disk: open them, and tell one from another. A link is never followed."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from services.watch.inotify import born_ns
from services.watch.snapshot import FILE, Identity, Seen, Stored

GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What the system answers where a folder is not there, or something else is."""

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LONG_PATH: Final = 3500
_AT_FDCWD: Final = -100


def is_as_stored(status: os.stat_result, row: Stored) -> bool:
    """Whether a file is the version that is known."""
    return row[:5] == (FILE, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino) and stat.S_ISREG(
        status.st_mode
    )


def open_folder(path: bytes) -> int:
    """Open a folder, however long its path is. Raises OSError."""
    if len(path) <= _LONG_PATH:
        return os.open(path, _OPEN)
    above, name = path.rsplit(b"/", 1)
    descriptor = open_folder(above)
    try:
        return os.open(name, _OPEN, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def identity_of(descriptor: int) -> Identity:
    seen = Seen.of(os.fstat(descriptor))
    return Identity(seen.device, seen.inode, born_ns(descriptor))


def identity_at(path: bytes) -> Identity | None:
    """Of the folder at a path, if there is one. Raises OSError where that cannot be told."""
    try:
        status = os.lstat(path)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
    if not stat.S_ISDIR(status.st_mode):
        return None
    seen = Seen.of(status)
    return Identity(seen.device, seen.inode, born_ns(_AT_FDCWD, path))


def is_at(path: bytes, identity: Identity) -> bool:
    """Whether a folder is to be found at a path."""
    try:
        return identity_at(path) == identity
    except OSError:
        return False
