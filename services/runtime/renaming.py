"""Renaming that never overwrites: it takes place only where there is nothing at the new name, decided by the operating
system in the same step."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from typing import Protocol

_LIBC = ctypes.CDLL(None, use_errno=True)
_RENAME_NOREPLACE = 1


class Entry(Protocol):
    """A name in an open directory."""

    @property
    def folder(self) -> int: ...
    @property
    def name(self) -> str: ...


def rename(source: Entry, target: Entry) -> None:
    """Rename `source` to `target`, where nothing may be; never overwrites.

    Raises:
        FileExistsError: something is there.
        OSError: with EXDEV, it is on another file system.
    """
    names = os.fsencode(source.name), os.fsencode(target.name)
    if _LIBC.renameat2(source.folder, names[0], target.folder, names[1], _RENAME_NOREPLACE) == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        raise OSError(code, os.strerror(code))
    rename_without_flag(source, target)


def rename_without_flag(source: Entry, target: Entry) -> None:
    """`rename` for file systems that cannot be asked not to replace: a second link, which cannot be made over anything,
    or for a directory an empty one in its place, which alone a directory may replace. Raises OSError."""
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
