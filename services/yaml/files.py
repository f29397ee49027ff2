"""Files on disk: read whole, replaced whole, one edit at a time.

A file is named by its real path, which must lie under a root. An edit is written to an unnamed file in the same
directory, made durable, given a name and renamed over the target: a crash leaves the old file or the new one. The
directory is locked for the edit, so that two processes cannot lose each other's, and the target too, for others that
lock it. A name left over from a crash between naming and renaming is removed by the next edit in that directory.
"""

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from services.yaml.errors import Code, YamlError

DEFAULT_MAX_BYTES: Final = 16 * 1024 * 1024
LOCK_TIMEOUT_SECONDS: Final = 30.0
_TEMPORARY: Final = ".linckia-yaml-"
_POLL_SECONDS: Final = 0.005


@dataclass(frozen=True, slots=True)
class Roots:
    """The real directories under which files may be read and written."""

    directories: tuple[Path, ...]

    @classmethod
    def of(cls, *paths: str | os.PathLike[str]) -> "Roots":
        """The roots at existing directories, symbolic links resolved. Raises YamlError (-32000)."""
        real = []
        for path in paths:
            try:
                directory = Path(path).resolve(strict=True)
            except OSError as fault:
                raise YamlError(Code.IO, f"the root {os.fspath(path)} cannot be used: {fault.strerror}") from None
            if not directory.is_dir():
                raise YamlError(Code.IO, f"the root {os.fspath(path)} is not a directory")
            real.append(directory)
        return cls(tuple(real))

    def resolve(self, file: str) -> Path:
        """The real path of a file under the roots; a relative one is looked for in each. Raises YamlError (-32000)."""
        if not file or "\0" in file:
            raise YamlError(Code.IO, f"{file!r} is no path of a file")
        candidates = [Path(file)] if os.path.isabs(file) else [root / file for root in self.directories]
        missing: OSError | RuntimeError | None = None
        for candidate in candidates:
            try:
                real = candidate.resolve(strict=True)
            except (OSError, RuntimeError) as fault:  # RuntimeError: a loop of symbolic links
                missing = fault
                continue
            if any(real.is_relative_to(root) for root in self.directories):
                return real
            raise YamlError(Code.IO, f"{file} is outside the roots: {self._shown()}")
        if missing is None:
            raise YamlError(Code.IO, f"{file} cannot be read: there are no roots")
        reason = missing.strerror if isinstance(missing, OSError) else "too many levels of symbolic links"
        raise YamlError(Code.IO, f"{file} cannot be read: {reason}")

    def _shown(self) -> str:
        return ", ".join(str(root) for root in self.directories) or "(none)"


def read_file(path: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """The bytes of a regular file at a real path. Raises YamlError: -32000, or -32001 for one over the cap."""
    try:
        # Not following a link and not blocking on a FIFO: the path was resolved, so either means a change since then.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as fault:
        raise YamlError(Code.IO, f"{path} cannot be read: {fault.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise YamlError(Code.IO, f"{path} is not a regular file")
    with os.fdopen(descriptor, "rb") as stream:
        if os.path.realpath(f"/proc/self/fd/{descriptor}") != str(path) and os.path.exists("/proc/self/fd"):
            raise YamlError(Code.IO, f"{path} moved while it was opened: try again")
        if status.st_size <= max_bytes:
            try:
                raw = stream.read(status.st_size + 1)
                if len(raw) > status.st_size:  # it grew meanwhile
                    raw += stream.read(max_bytes + 1 - len(raw))
            except OSError as fault:
                raise YamlError(Code.IO, f"{path} cannot be read: {fault.strerror}") from None
            if len(raw) <= max_bytes:
                return raw
    raise YamlError(Code.PARSE, f"{path} is larger than {max_bytes} bytes, the most that is parsed")


class FileLocks:
    """One lock per real path within this process."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._locks: WeakValueDictionary[str, _PathLock] = WeakValueDictionary()

    @contextmanager
    def hold(self, path: Path, timeout_seconds: float = LOCK_TIMEOUT_SECONDS) -> Iterator[None]:
        """Hold a file against every other edit, of this process or another. Raises YamlError (-32000) at the
        timeout."""
        deadline = time.monotonic() + timeout_seconds
        with self._guard:
            lock = self._locks.get(str(path))
            if lock is None:
                lock = self._locks[str(path)] = _PathLock()
        if not lock.lock.acquire(timeout=timeout_seconds):
            raise YamlError(Code.IO, f"{path} is being edited by another call: try again")
        try:
            with _flock(path.parent, os.O_DIRECTORY, deadline), _flock(path, 0, deadline):
                _remove_leftovers(path.parent)
                yield
        finally:
            lock.lock.release()


class _PathLock:
    def __init__(self) -> None:
        self.lock = Lock()


@contextmanager
def _flock(path: Path, flags: int, deadline: float) -> Iterator[None]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except OSError as fault:
        raise YamlError(Code.IO, f"{path} cannot be locked: {fault.strerror}") from None
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise YamlError(Code.IO, f"{path} is locked by another process: try again") from None
                time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _remove_leftovers(directory: Path) -> None:
    """Remove what a crash between naming and renaming left: with the directory locked, nobody else's can be there."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(_TEMPORARY)]
    for name in names:
        with suppress(FileNotFoundError):
            os.unlink(directory / name)


def replace_file(path: Path, before: bytes, after: bytes) -> None:
    """Replace the content of a file, which must still be `before`. The caller holds its lock.

    Keeps mode and owner. Returns once the new content is on disk. Raises YamlError (-32000), having changed nothing.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise YamlError(Code.IO, f"{path} is not a regular file")
        if not os.access(path.name, os.W_OK, dir_fd=directory):
            raise YamlError(Code.IO, f"{path} is read-only")
        _write_and_rename(directory, path, before, after, status)
        os.fsync(directory)
    except YamlError as fault:
        if fault.code == Code.PARSE:  # the file has grown since it was read
            raise _changed(path) from None
        raise
    except OSError as fault:
        raise YamlError(Code.IO, f"{path} cannot be written: {fault.strerror}") from None
    finally:
        os.close(directory)


def _changed(path: Path) -> YamlError:
    return YamlError(Code.IO, f"{path} was changed by another program during the edit: nothing was written")


def _write_and_rename(directory: int, path: Path, before: bytes, after: bytes, status: os.stat_result) -> None:
    name = _TEMPORARY + secrets.token_hex(8)
    descriptor = _unnamed(directory)
    if descriptor is not None:
        try:
            _fill(descriptor, after, status)
            if read_file(path, len(before)) != before:
                raise _changed(path)
            try:
                # The name exists from here to the rename only.
                os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=directory, follow_symlinks=True)
            except OSError as fault:
                if fault.errno not in (errno.ENOENT, errno.EXDEV, errno.EACCES, errno.EPERM, errno.EOPNOTSUPP):
                    raise
            else:
                _rename(directory, name, path.name)
                return
        finally:
            os.close(descriptor)
    # No unnamed files here, or no way to name one: the new content has a name from the beginning.
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        _fill(descriptor, after, status)
        if read_file(path, len(before)) != before:
            raise _changed(path)
    except BaseException:
        os.unlink(name, dir_fd=directory)
        raise
    finally:
        os.close(descriptor)
    _rename(directory, name, path.name)


def _rename(directory: int, name: str, target: str) -> None:
    try:
        os.rename(name, target, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(name, dir_fd=directory)
        raise


def _unnamed(directory: int) -> int | None:
    """A new file in the directory that has no name yet, or None where the file system cannot make one."""
    flags = getattr(os, "O_TMPFILE", 0)
    if not flags or not os.path.exists("/proc/self/fd"):
        return None
    try:
        return os.open(".", flags | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except OSError as fault:
        if fault.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            raise
        return None


def _fill(descriptor: int, content: bytes, status: os.stat_result) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
    mine = os.fstat(descriptor)
    if (mine.st_uid, mine.st_gid) != (status.st_uid, status.st_gid):
        os.fchown(descriptor, status.st_uid, status.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
    os.fsync(descriptor)
