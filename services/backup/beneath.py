"""Creates files below a folder by paths that somebody else wrote, such as those in a backup.

The kernel resolves each path with openat2(2), which refuses one that leaves the folder or passes a link. Without that
system call (Linux before 5.6), each folder on the way is opened without following links.
"""

from __future__ import annotations

import ctypes
import errno
import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_OPENAT2: Final = 437
"""Number of the system call, the same on every architecture."""

_RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x04, 0x08
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_AGAIN: Final = (errno.EINTR, errno.EAGAIN)
_WITHOUT: Final = (errno.ENOSYS, errno.EPERM)
"""The system call is missing, or a filter of the container does not know it."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)


def is_normal(path: str) -> bool:
    """Return whether a path is relative, stays below its folder, and is spelled in the only way that names its file."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return (
        path not in ("", ".", "..")
        and "\0" not in path
        and not path.startswith(("/", "../"))
        and posixpath.normpath(path) == path
    )


def open_beneath(folder: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a file or folder below the open `folder`. Raises OSError, also for a link anywhere in the path."""
    how = _OpenHow(flags, mode, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS)
    while True:
        found = int(_libc.syscall(_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)))
        if found >= 0:
            return found
        number = ctypes.get_errno()
        if number in _WITHOUT:
            return _walked(folder, path, flags, mode)
        if number not in _AGAIN:
            raise OSError(number, os.strerror(number), path)


def _walked(folder: int, path: str, flags: int, mode: int) -> int:
    """Like `open_beneath`, with one openat(2) for each part."""
    *parents, name = path.split("/")
    if ".." in (*parents, name) or path.startswith("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    at = os.dup(folder)
    try:
        for parent in parents:
            within = os.open(parent or ".", _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = within
        return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=at)
    finally:
        os.close(at)


class Tree:
    """A folder that is filled; a context manager. All paths must be normal. Every method raises OSError."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, _FOLDER | os.O_NOFOLLOW)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield the folder that a file is in, which is made if needed, and the file's name there."""
        parent, _, name = path.rpartition("/")
        if not parent:
            yield self._root, name
            return
        try:
            folder = open_beneath(self._root, parent, _FOLDER)
        except FileNotFoundError:
            self.make_folder(parent)
            folder = open_beneath(self._root, parent, _FOLDER)
        try:
            yield folder, name
        finally:
            os.close(folder)

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it, for their owner only; no-op if it exists."""
        with self._parent(path) as (folder, name):
            try:
                os.mkdir(name, 0o700, dir_fd=folder)
            except FileExistsError:
                os.close(open_beneath(folder, name, _FOLDER))

    def make_link(self, path: str, target: str) -> None:
        with self._parent(path) as (folder, name):
            os.symlink(target, name, dir_fd=folder)

    def create(self, path: str) -> int:
        """Create a file and return its descriptor, for writing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._parent(path) as (folder, name):
            return open_beneath(folder, name, flags, 0o600)

    def change_owner(self, path: str, owner: tuple[int, int]) -> None:
        with self._parent(path) as (folder, name):
            os.chown(name, *owner, dir_fd=folder, follow_symlinks=False)

    def finish_folder(self, path: str, mode: int) -> None:
        """Set a folder's mode, and flush it to disk."""
        folder = open_beneath(self._root, path, _FOLDER)
        try:
            os.fchmod(folder, mode)
            os.fsync(folder)
        finally:
            os.close(folder)
