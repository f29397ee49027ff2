"""Copies of files and directories, which may replace the original.

A copy keeps modes, owners, times, extended attributes and hard links; it is discarded if the original changed
meanwhile. It is made under a temporary name next to its target and is durable before it gets its final name. A copy
that replaces the original is verified byte by byte, and the original is deleted only if it is unchanged; any earlier
failure leaves it untouched. Another copy shares the original's blocks if the file system can do that.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from services.files import paths
from services.files.changes import disk
from services.files.changes.disk import OpenPath, Refused

PREFIX = ".linckia-moving-"
"""Name prefix of unfinished copies, which a crash may leave behind."""

CHUNK = 1 << 20
SHARED_CHUNK = 1 << 24
"""Bytes that the system copies at once; a file system that shares blocks does so at no cost."""
MAX_DEPTH = 500
"""Deepest nesting of directories that can be copied."""

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _State(NamedTuple):
    """What must be unchanged in an original before it is deleted."""

    inode: int
    size: int
    mtime: int
    ctime: int

    @classmethod
    def of(cls, status: os.stat_result) -> _State:
        folder = stat.S_ISDIR(status.st_mode)
        # Directories are compared by their names instead.
        return cls(status.st_ino, 0 if folder else status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class Copy:
    """A copy in progress: call `make` and put the copy in its place. If it `replaces` the original, then call
    `delete_original`."""

    def __init__(self, source: OpenPath, target: OpenPath, go_on: Callable[[], None], *, replaces: bool = True) -> None:
        """`go_on` is called periodically and may raise to stop the copy."""
        self._replaces = replaces
        self._source = source
        self._target = target
        self._go_on = go_on
        self._states: dict[str, _State] = {}
        self._links: dict[tuple[int, int], str] = {}
        """The path, relative to the top of the copy, to which an inode with several links was copied."""
        self._top = -1

    def make(self) -> None:
        """Copy and verify. Raises Refused if it cannot be copied or changed meanwhile; no partial copy is left."""
        try:
            self._copy(self._source.folder, self._source.name, self._target.folder, self._target.name, "", 0)
            disk.sync(self._target.folder)
        except BaseException as error:
            with contextlib.suppress(FileNotFoundError):
                disk.remove(self._target, force=True)
            if isinstance(error, OSError):
                raise Refused(f"cannot copy: {disk.describe_error(self._source.path, error)}") from None
            raise

    def delete_original(self) -> None:
        """Delete the original. Raises Refused if anything in it has changed or cannot be deleted; that, and the
        directories that contain it, remain."""
        left = self._delete(self._source.folder, self._source.name, "")
        disk.sync(self._source.folder)
        if left:
            raise Refused(
                f"copied, but part of the original remains: {len(left)} entries changed meanwhile or cannot be"
                f" deleted, for example {paths.shown(paths.to_text(left[0]))}"
            )

    def _copy(self, from_: int, name: str, to: int, new: str, at: str, depth: int) -> None:
        self._go_on()
        status = os.stat(name, dir_fd=from_, follow_symlinks=False)
        self._states[at] = _State.of(status)
        kind = stat.S_IFMT(status.st_mode)
        linked = (status.st_dev, status.st_ino)
        if kind != stat.S_IFDIR and status.st_nlink > 1:
            if linked in self._links:
                os.link(self._links[linked], new, src_dir_fd=self._top, dst_dir_fd=to, follow_symlinks=False)
                return
            if self._top >= 0:
                self._links[linked] = at.removeprefix("/")
        if kind == stat.S_IFREG:
            self._copy_file(from_, name, to, new, status)
        elif kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=from_), new, dir_fd=to)
            _keep_owner(new, to, status)
            os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=to, follow_symlinks=False)
        elif kind == stat.S_IFDIR:
            self._copy_folder(from_, name, to, new, at, depth, status)
        elif kind == stat.S_IFIFO:
            os.mkfifo(new, stat.S_IMODE(status.st_mode), dir_fd=to)
        else:
            raise Refused(f"cannot copy {paths.shown(self._source.path + paths.to_text(at))}: it is a device or socket")

    def _copy_folder(
        self, from_: int, name: str, to: int, new: str, at: str, depth: int, status: os.stat_result
    ) -> None:
        if depth >= MAX_DEPTH:
            raise Refused(f"cannot copy: directories are nested more than {MAX_DEPTH} levels deep")
        os.mkdir(new, 0o700, dir_fd=to)
        with (
            disk.open_at(name, disk.O_READ_FOLDER, from_) as source,
            disk.open_at(new, disk.O_READ_FOLDER, to) as target,
        ):
            if self._top < 0:
                self._top = target
            for entry in sorted(os.listdir(source)):
                self._copy(source, entry, target, entry, f"{at}/{entry}", depth + 1)
            _keep(source, target, status)
            os.fsync(target)

    def _copy_file(self, from_: int, name: str, to: int, new: str, status: os.stat_result) -> None:
        with disk.open_at(name, _OLD, from_) as source, disk.open_at(new, _NEW, to, 0o600) as target:
            if self._replaces:
                self._copy_and_verify(source, target, status)
            else:
                self._share(source, target)
                self._read_into(source, target)
                _keep(source, target, status)
                os.fsync(target)
            if _State.of(os.fstat(source)) != _State.of(status):
                raise Refused(f"{paths.shown(self._source.path)} changed while it was being copied")

    def _share(self, source: int, target: int) -> None:
        """Have the system copy as much as it can, which shares blocks if the file system does."""
        with contextlib.suppress(OSError):
            while os.copy_file_range(source, target, SHARED_CHUNK):
                self._go_on()

    def _read_into(self, source: int, target: int, seen: Callable[[bytes], None] = lambda chunk: None) -> None:
        while chunk := os.read(source, CHUNK):
            self._go_on()
            seen(chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(target, rest) :]

    def _copy_and_verify(self, source: int, target: int, status: os.stat_result) -> None:
        read = hashlib.blake2b()
        self._read_into(source, target, read.update)
        _keep(source, target, status)
        os.fsync(target)
        # Verify the data on disk rather than in the page cache, if the system allows it.
        os.posix_fadvise(target, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(target, 0, os.SEEK_SET)
        written = hashlib.blake2b()
        while chunk := os.read(target, CHUNK):
            self._go_on()
            written.update(chunk)
        if read.digest() != written.digest():
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _delete(self, above: int, name: str, at: str) -> list[str]:
        """Delete the entries that are unchanged since they were copied. Returns the others."""
        try:
            status = os.stat(name, dir_fd=above, follow_symlinks=False)
            state = self._states.get(at)
            if not stat.S_ISDIR(status.st_mode):
                now = _State.of(status)
                # Deleting another name of the same inode has changed its ctime.
                if state is None or (now != state and not (status.st_nlink and now[:3] == state[:3] and self._links)):
                    return [name]
                os.unlink(name, dir_fd=above)
                return []
            if state is None or state.inode != status.st_ino:
                return [name]
            with disk.open_at(name, disk.O_READ_FOLDER, above) as folder:
                left = [each for entry in os.listdir(folder) for each in self._delete(folder, entry, f"{at}/{entry}")]
            if not left:
                os.rmdir(name, dir_fd=above)
            return left
        except FileNotFoundError:
            return []
        except OSError:
            # It remains, and is reported.
            return [name]


def _keep(source: int, target: int, status: os.stat_result) -> None:
    """Copy attributes, owner, mode and times, as far as permitted."""
    with contextlib.suppress(OSError):
        for name in os.listxattr(source):
            with contextlib.suppress(OSError):
                os.setxattr(target, name, os.getxattr(source, name))
    with contextlib.suppress(PermissionError):
        os.fchown(target, status.st_uid, status.st_gid)
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _keep_owner(name: str, folder: int, status: os.stat_result) -> None:
    with contextlib.suppress(PermissionError):
        os.chown(name, status.st_uid, status.st_gid, dir_fd=folder, follow_symlinks=False)
