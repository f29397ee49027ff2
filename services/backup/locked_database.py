"""Freezes a database while its service writes, using SQLite's own locks.

Writers are blocked only for a moment; after that, a reader lock pins the state of that moment: the log is not
restarted, and nothing newer is checkpointed into the file (https://www.sqlite.org/walformat.html). No rows are read:
the file and its log are copied byte by byte.

SQLite itself is not used. It opens files by name, maps the log's index, and trusts its content, which a compromised
service may have forged; a truncated index would crash the reader. Here files are opened relative to their folder's
descriptor, without following links, and the index only determines how much is copied.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import stat
import struct
import time
from collections.abc import Callable

from proto.stores import StoredFile, foreign
from services.backup.piece import Piece

POLL_S = 0.0005
"""A busy service leaves its lock free for some tenths of a millisecond between two commits."""

SPARE_FILES = 256
"""Number of open files reserved for everything but databases."""

_SHARED = (0x40000002, 510)
"""Bytes of the file that every connection locks."""

_WRITER, _READERS, _CLIENTS = (120, 1), 123, (128, 1)
"""Bytes of the index: the writer's, the first of five reader slots, and the one that all users of the index lock."""

_INDEX = struct.Struct("=14xHII72xI5I")
"""Page size, frames in the log, pages of the database, ...; frames already in the database, and readers' marks."""

_HEAD = 48
"""Size of the index header, of which there are two copies."""

_MARKS = 100
_LOG_HEAD, _FRAME_HEAD = 32, 24
_PAGE_SIZES = (1, *(1 << n for n in range(9, 16)))
_USER_VERSION = 60


class Unfit(Exception):
    """The database cannot be locked; the message completes "NAME ..."."""


class LockedDatabase:
    """A database: the lock against writers, and the pinned state."""

    def __init__(self, found: StoredFile, owner: int, wait_s: float) -> None:
        """Open the database, waiting up to `wait_s` for a lock. Raises Unfit or OSError."""
        self.path = found.path
        self._name = found.name
        self._owner = owner
        self._made_index = False
        self._log: int | None = None
        self.unfit: Unfit | OSError | None = None
        """Why it can no longer be locked."""
        self.pieces: list[Piece] = []
        self._stack = contextlib.ExitStack()
        self._folder = self._own(os.dup(found.folder))
        try:
            self._file = self._opened("")
            if not is_database(os.pread(self._file, 20, 0)):
                raise Unfit("is damaged (not a database)")
            # Nobody removes the log or its index from here on.
            self._wait(lambda: _lock(self._file, fcntl.F_RDLCK, *_SHARED), wait_s)
            self._index = self._index_opened()
            self._wait(self._join, wait_s)
            self._log_bytes()
        except BaseException:
            self.close()
            raise

    def _own(self, descriptor: int) -> int:
        self._stack.callback(os.close, descriptor)
        return descriptor

    def _opened(self, end: str, flags: int = 0) -> int:
        """Open one of the database's files. Raises Unfit or OSError."""
        # Do not block if it is a FIFO.
        flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = self._own(os.open(self._name + end, flags, 0o600, dir_fd=self._folder))
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY and descriptor > most - min(SPARE_FILES, most // 2):
            raise Unfit("exceeds the number of databases that can be locked at once")
        if flags & os.O_CREAT:
            status = os.fstat(self._file)
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
            if os.geteuid() == 0:
                os.fchown(descriptor, status.st_uid, status.st_gid)
        if why := foreign(os.fstat(descriptor), self._owner):
            raise Unfit(f"cannot be locked (its {end.removeprefix('-') or 'file'} {why})")
        return descriptor

    def _index_opened(self) -> int:
        try:
            return self._opened("-shm")
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                descriptor = self._opened("-shm", os.O_CREAT | os.O_EXCL)
                self._made_index = True
                return descriptor
            # Its service has just started to use it.
            return self._opened("-shm")

    def _wait(self, locked: Callable[[], bool], wait_s: float) -> None:
        give_up = time.monotonic() + wait_s
        while not locked():
            if time.monotonic() > give_up:
                raise Unfit(f"cannot be locked (another process held the lock for {wait_s:g} s)")
            time.sleep(POLL_S)

    def _join(self) -> bool:
        """Become a user of the index; if there are no other users, its content is invalid and is reset."""
        if _lock(self._index, fcntl.F_WRLCK, *_CLIENTS):
            os.ftruncate(self._index, 0)
        return _lock(self._index, fcntl.F_RDLCK, *_CLIENTS)

    def lock(self, until: float) -> bool:
        """Block writers; False if that takes longer than `until` (time.monotonic)."""
        while not _lock(self._index, fcntl.F_WRLCK, *_WRITER):
            if time.monotonic() > until:
                return False
            time.sleep(POLL_S)
        return True

    def release(self) -> None:
        _lock(self._index, fcntl.F_UNLCK, *_WRITER)

    def pin(self) -> bool:
        """Pin the current state, while writers are blocked; False if another process has the required lock, or it is
        unfit."""
        try:
            return self._pin()
        except (Unfit, OSError) as error:
            self.unfit = error
            return False

    def _pin(self) -> bool:
        _lock(self._index, fcntl.F_UNLCK, _READERS, 5)
        status, log_bytes = os.fstat(self._file), self._log_bytes()
        size, index = status.st_size, os.pread(self._index, _INDEX.size, 0)
        if len(index) < _INDEX.size or index[:_HEAD] != index[_HEAD : 2 * _HEAD] or not index[12]:
            # Nobody has used it since the log was written, so as much of the log counts as is intact.
            kept = _lock(self._index, fcntl.F_RDLCK, _READERS, 2)
        else:
            page, frames, pages, moved, *marks = _INDEX.unpack(index)
            page = 65536 if page == 1 else page
            if moved < frames:
                # A checkpoint of the file may be in progress; the log contains everything that the file may lack.
                log_bytes = min(log_bytes, _LOG_HEAD + frames * (_FRAME_HEAD + page))
                kept = self._mark(frames, marks)
            else:
                # The file is complete, and nothing more is checkpointed into it while the reader lock is held.
                size, log_bytes = min(size, pages * page or size), 0
                kept = _lock(self._index, fcntl.F_RDLCK, _READERS, 1)
        self.pieces = [Piece(self.path, status, size, self._file)]
        if log_bytes:
            self.pieces.append(Piece(f"{self.path}-wal", status, log_bytes, self._log))
        return kept

    def _log_bytes(self) -> int:
        if self._log is None:
            try:
                self._log = self._opened("-wal")
            except FileNotFoundError:
                return 0
        return os.fstat(self._log).st_size

    def _mark(self, frames: int, marks: list[int]) -> bool:
        """Take a reader slot whose mark keeps anything beyond `frames` from being checkpointed."""
        for place in range(1, 5):
            byte = (_READERS + place, 1)
            if marks[place] <= frames and _lock(self._index, fcntl.F_RDLCK, *byte):
                (mark,) = struct.unpack("=I", os.pread(self._index, 4, _MARKS + 4 * place))
                if mark <= frames:
                    return True
            if _lock(self._index, fcntl.F_WRLCK, *byte):
                os.pwrite(self._index, struct.pack("=I", frames), _MARKS + 4 * place)
                return _lock(self._index, fcntl.F_RDLCK, *byte)
            _lock(self._index, fcntl.F_UNLCK, *byte)
        return False

    def schema(self) -> int:
        """Return `PRAGMA user_version` of the pinned state, from the newest version of the first page. Raises
        OSError."""
        descriptor, at = self._file, 0
        if len(self.pieces) > 1 and self._log is not None:
            (page,) = struct.unpack(">I", os.pread(self._log, 4, 8).ljust(4, b"\0"))
            frame = _FRAME_HEAD + page
            for begin in reversed(range(_LOG_HEAD, self.pieces[1].size - frame + 1, frame)):
                if os.pread(self._log, 4, begin) == b"\0\0\0\1":
                    descriptor, at = self._log, begin + _FRAME_HEAD
                    break
        return int.from_bytes(os.pread(descriptor, 4, at + _USER_VERSION), "big")

    def close(self) -> None:
        if self._made_index and _lock(self._file, fcntl.F_WRLCK, *_SHARED):
            # As the last connection does.
            with contextlib.suppress(OSError):
                os.unlink(f"{self._name}-shm", dir_fd=self._folder)
        self._stack.close()


def _lock(descriptor: int, kind: int, at: int, length: int) -> bool:
    """Set an open file description lock, which works between processes and is not released by closing another
    descriptor."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqq", kind, os.SEEK_SET, at, length, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_database(head: bytes) -> bool:
    """True if the first 20 bytes are those of a database in WAL mode, as all services' databases are."""
    is_whole = len(head) == 20 and head[:16] == b"SQLite format 3\0"
    return is_whole and int.from_bytes(head[16:18], "big") in _PAGE_SIZES and head[18:] == b"\x02\x02"
