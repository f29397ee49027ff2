"""Replaces, creates and renames whole files, one edit at a time: a crash leaves the old file or the new one.

The new content is written to an unnamed file in the same directory, synced, named, and renamed over the target, with
the target's mode and owner. If nothing is replaced, the file gets the target's name immediately. The directory is
locked during the edit, and so is the target, for other programs that lock it. A crash between naming and renaming
leaves a temporary name, which the next edit in that directory removes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol

from services.runtime.privileges import libc
from services.runtime.roots import real_path_of

LOCK_TIMEOUT_SECONDS = 30.0
NEW_MODE = 0o644
_TEMPORARY = ".linckia-new-"
_POLL_SECONDS = 0.005
_RENAME_NOREPLACE = 1
_CANNOT_NAME = (errno.ENOENT, errno.EXDEV, errno.EACCES, errno.EPERM, errno.EOPNOTSUPP)


class CannotReplace(Exception):
    """The file was not replaced and is unchanged; the message names it and gives the reason."""


class ChangedMeanwhile(CannotReplace):
    """Another program changed the file during the edit."""


@contextmanager
def hold(path: Path, timeout_seconds: float = LOCK_TIMEOUT_SECONDS, *, is_new: bool = False) -> Iterator[None]:
    """Lock a file, or the path of a new one, against edits from this and other processes.

    Raises CannotReplace at the timeout.
    """
    deadline = time.monotonic() + timeout_seconds
    with _flock(path.parent, os.O_DIRECTORY, deadline), nullcontext() if is_new else _flock(path, 0, deadline):
        _remove_leftovers(path.parent)
        yield


@contextmanager
def _flock(path: Path, flags: int, deadline: float) -> Iterator[None]:
    """Hold a flock, which belongs to its descriptor and so excludes other threads as well as other processes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except OSError as fault:
        raise CannotReplace(f"{path} cannot be locked: {fault.strerror}") from None
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CannotReplace(f"{path} is locked by another process: try again") from None
                time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _remove_leftovers(directory: Path) -> None:
    """Remove files that a crash left between naming and renaming. The directory is locked, so none is in use."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(_TEMPORARY)]
    for name in names:
        with suppress(FileNotFoundError):
            os.unlink(directory / name)


def replace_file(path: Path, before: bytes, after: bytes, *, written: Callable[[], None] = lambda: None) -> None:
    """Replace the content of a file, which must still be `before`. The caller holds its lock.

    `written` is called once the new content is on disk, and before it takes the file's place. Keeps mode and owner.
    Returns once the change is on disk. Raises CannotReplace if nothing was changed.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if real_path_of(directory, str(path.parent)) != str(path.parent):
            raise ChangedMeanwhile(f"{path.parent} was replaced by another folder: nothing was written")
        status = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise CannotReplace(f"{path} is not a regular file")
        if not os.access(path.name, os.W_OK, dir_fd=directory):
            raise CannotReplace(f"{path} is read-only")

        def check() -> None:
            written()
            if not _holds(directory, path.name, before):
                raise ChangedMeanwhile(f"{path} was changed by another program during the edit: nothing was written")

        _put(directory, path.name, after, status, check)
        os.fsync(directory)
    except OSError as fault:
        raise CannotReplace(f"{path} cannot be written: {fault.strerror}") from None
    finally:
        os.close(directory)


def create_file(directory: int, name: str, content: bytes, *, written: Callable[[], None] = lambda: None) -> None:
    """Create a file in an open directory, completely or not at all. Returns once it is on disk.

    `written` is called once the content is on disk, and before it gets its name. The caller holds its lock. Raises
    OSError, and in particular FileExistsError if the name is taken.
    """
    _put(directory, name, content, None, written)
    os.fsync(directory)


def _put(
    directory: int, name: str, content: bytes, replaced: os.stat_result | None, check: Callable[[], None], *,
    unnamed: bool = True,
) -> None:  # fmt: skip
    """Write the new content, under a temporary name if unnamed files are unsupported or cannot be named.

    `check` is called once the content is written. If nothing is `replaced`, the name must be free.
    """
    temporary = _TEMPORARY + secrets.token_hex(8)
    descriptor = _unnamed(directory) if unnamed else None
    named = descriptor is None
    if descriptor is None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        _fill(descriptor, content, replaced)
        check()
        if not named:
            try:
                to = name if replaced is None else temporary
                os.link(f"/proc/self/fd/{descriptor}", to, dst_dir_fd=directory, follow_symlinks=True)
            except OSError as fault:
                if fault.errno not in _CANNOT_NAME:
                    raise
                return _put(directory, name, content, replaced, check, unnamed=False)
            named = replaced is not None
        elif replaced is None:
            # Unlike a rename, this never replaces a file that was created a moment ago.
            os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        if replaced is not None:
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            named = False
    finally:
        if named:
            os.unlink(temporary, dir_fd=directory)
        os.close(descriptor)


def _unnamed(directory: int) -> int | None:
    """Create an unnamed file in the directory; None if the file system does not support it."""
    try:
        return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except OSError as fault:
        if fault.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            raise
        return None


def _holds(directory: int, name: str, content: bytes) -> bool:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    with open(descriptor, "rb") as file:
        return file.read(len(content) + 1) == content


def _fill(descriptor: int, content: bytes, like: os.stat_result | None) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
    mine = os.fstat(descriptor)
    if like is not None and (mine.st_uid, mine.st_gid) != (like.st_uid, like.st_gid):
        os.fchown(descriptor, like.st_uid, like.st_gid)
    os.fchmod(descriptor, NEW_MODE if like is None else stat.S_IMODE(like.st_mode))
    os.fsync(descriptor)


# Renaming


class DirectoryEntry(Protocol):
    """A name in an open directory."""

    @property
    def folder(self) -> int: ...
    @property
    def name(self) -> str: ...


def rename(source: DirectoryEntry, target: DirectoryEntry) -> None:
    """Rename `source` to `target`, which must not exist; never overwrites.

    Raises:
        FileExistsError: the target exists.
        OSError: with EXDEV, the target is on another file system.
    """
    names = os.fsencode(source.name), os.fsencode(target.name)
    if libc().renameat2(source.folder, names[0], target.folder, names[1], _RENAME_NOREPLACE) == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        raise OSError(code, os.strerror(code))
    rename_without_flag(source, target)


def rename_without_flag(source: DirectoryEntry, target: DirectoryEntry) -> None:
    """Implement `rename` for file systems without RENAME_NOREPLACE. Raises OSError.

    A file gets a second link, which cannot overwrite anything. A directory is renamed over a newly made empty one, the
    only thing that it may replace.
    """
    status = os.stat(source.name, dir_fd=source.folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        os.link(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder, follow_symlinks=False)
        os.unlink(source.name, dir_fd=source.folder)
        return
    os.mkdir(target.name, dir_fd=target.folder)
    try:
        os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            os.rmdir(target.name, dir_fd=target.folder)
            raise
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
