"""A data directory as it is at one moment, while its services write.

Each database in it is locked for writing from here, as SQLite locks it between processes: a service waits as it would
for a writer of its own, and the system frees the locks of a process that dies.  While all of them are held, which takes
some milliseconds, each is given a reader, which keeps the state of that moment for as long as it lives, and all other
files are linked into a staging folder.  Nothing is asked of the services, so one that rests or is dead makes no
difference, nor does a kernel that dies meanwhile.

No row is read: the file and its log are copied as they are.  A reader keeps both in place (https://www.sqlite.org/wal.html):
the log is not begun again, and nothing from beyond the reader's end is moved into the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import signal
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import apsw

from linckia.proto.backup import STAGING, BackupFailed
from linckia.proto.manifest import Keep
from linckia.proto.stores import LOGS, Stores

HOLD_S = 0.5
"""How long writers are held at most, for all of it to be taken."""

OR_DIE_S = 5.0
"""After which a process that holds writers is killed by the system, because it was stopped or its disk hangs: half the
time that a service waits for a lock."""

PATIENCE_S = 60.0
"""For a database that is written to without a pause, as in a long transaction."""

POLL_S = 0.0005
"""A busy service leaves its lock free for some tenths of a millisecond between two commits."""

_INDEX = struct.Struct("=14xHII72xI")
"""Of the log's index: the page's size, frames, pages of the database, ...; frames that are in the database already.
https://www.sqlite.org/walformat.html#the_wal_index_file_format"""

_LOG_HEAD, _FRAME_HEAD = 32, 24

_MAGIC = b"SQLite format 3\0"
_IN_WAL_MODE = b"\x02\x02"

_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP)


class _TooLong(Exception):
    """Not all could be taken within HOLD_S."""


class Piece(NamedTuple):
    """A file of the moment: `size` bytes from the start of `source`.  A folder and a link have no source."""

    path: str
    status: os.stat_result
    size: int = 0
    source: int | Path | None = None
    target: str = ""
    """Of a link."""

    def blocks(self, size: int) -> Iterator[bytes]:
        """Its content in pieces of `size`.  Raises OSError; BackupFailed: there is less than there was."""
        if self.source is None:
            return
        own = None if isinstance(self.source, int) else os.open(self.source, os.O_RDONLY | os.O_CLOEXEC)
        descriptor = self.source if isinstance(self.source, int) else own
        assert descriptor is not None
        try:
            for at in range(0, self.size, size):
                block = os.pread(descriptor, min(size, self.size - at), at)
                if len(block) < min(size, self.size - at):
                    raise BackupFailed(f"{self.path} became shorter while it was copied")
                yield block
        finally:
            if own is not None:
                os.close(own)


class _Store:
    """One database: the lock on its writers, and the state that is kept."""

    def __init__(self, data_dir: Path, path: str) -> None:
        """Raises apsw.Error, OSError."""
        self.path = path
        self._file = data_dir / path
        self._descriptors: list[int] = []
        self._connections: list[apsw.Connection] = []
        try:
            self._writer, self._reader = self._connect(), self._connect()
            # Kept to the end: to close a file drops all locks that a process has on it, fcntl(2).
            for end in ("", "-wal", "-shm"):
                self._descriptors.append(os.open(f"{self._file}{end}", os.O_RDONLY | os.O_CLOEXEC))
        except BaseException:
            self.close()
            raise
        self.schema = 0
        self.pieces: list[Piece] = []

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self._file), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=0)
        self._connections.append(connection)
        # What is in the log is for the service to move.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_busy_timeout(5000)
        connection.pragma("user_version")
        connection.set_busy_timeout(0)
        return connection

    def hold(self, until: float) -> bool:
        """Lock writers out; False where that takes longer than `until` (time.monotonic)."""
        while True:
            with contextlib.suppress(apsw.BusyError):
                self._writer.execute("BEGIN IMMEDIATE")
                return True
            if time.monotonic() > until:
                return False
            time.sleep(POLL_S)

    def release(self) -> None:
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    def keep(self) -> None:
        """Keep the state of now, while writers are held.  Raises apsw.Error, OSError."""
        if self._reader.in_transaction:
            self._reader.execute("ROLLBACK")
        self._reader.execute("BEGIN")
        self.schema = int(self._reader.pragma("user_version"))
        file, log, index = self._descriptors
        status = os.fstat(file)
        page, frames, pages, moved = _INDEX.unpack(os.pread(index, _INDEX.size, 0))
        page = 65536 if page == 1 else page
        if moved < frames:
            # The file may be in the middle of a checkpoint; the log has all that it may lack.
            self.pieces = [
                Piece(self.path, status, status.st_size, file),
                Piece(f"{self.path}-wal", status, _LOG_HEAD + frames * (_FRAME_HEAD + page), log),
            ]
        else:
            # All is in the file, to which nothing more is moved while the reader is there.
            self.pieces = [Piece(self.path, status, min(status.st_size, pages * page or status.st_size), file)]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        while self._descriptors:
            os.close(self._descriptors.pop())


class Moment:
    """A context manager; inside, `pieces` is all that is to be backed up, and `problems` what is wrong with it.

    Raises BackupFailed: another backup is under way, or a store is never free; OSError.
    """

    def __init__(self, data_dir: Path, stores: Stores) -> None:
        self.at = 0.0
        """When it was (time.time)."""
        self.held_s = 0.0
        self.schemas: dict[str, int] = {}
        self.problems: list[str] = []
        self._data_dir = data_dir
        self._declared = stores
        self._staging = data_dir / STAGING
        self._stores: list[_Store] = []
        self._plain: dict[str, Piece] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Moment:
        try:
            self._stage()
            self._open()
            self._take()
        except apsw.Error as error:
            self._stack.close()
            raise BackupFailed(f"the databases in {self._data_dir} cannot be held: {error}") from error
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    @property
    def pieces(self) -> Iterator[Piece]:
        """Folders before what is in them."""
        yield from self._plain.values()
        for found in self._items():
            for folder, folders, files in os.walk(self._staging / found):
                for name in (*folders, *files):
                    path = os.path.join(folder, name)
                    yield _piece(os.path.relpath(path, self._staging), Path(path))
        for store in self._stores:
            yield from store.pieces

    def _stage(self) -> None:
        """An empty staging folder, which is this process's alone."""
        self._staging.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(self._staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupFailed(f"another backup of {self._data_dir} is under way") from None
        # Also what one that was killed has left.
        empty(self._staging)
        self._stack.callback(empty, self._staging)

    def _open(self) -> None:
        for found in self._declared.walk(self._data_dir):
            if found.keep in (None, Keep.SOURCE) and found.path.endswith(".db") and found.entry.is_file():
                try:
                    if is_database(self._data_dir / found.path):
                        store = _Store(self._data_dir, found.path)
                        self._stack.callback(store.close)
                        self._stores.append(store)
                        continue
                    why = "it is no database"
                except apsw.Error as error:
                    why = str(error)
                self.problems.append(f"{found.path} is damaged ({why}), and copied as it is")

    def _take(self) -> None:
        give_up = time.monotonic() + PATIENCE_S
        order = [*self._stores]
        while (busy := self._attempt(order, give_up)) is not None:
            if time.monotonic() > give_up:
                raise BackupFailed(
                    f"{busy} was written to for {PATIENCE_S:.0f} s without a pause; try again when there is less to do"
                )
            # The one that was not free is waited for first, while nothing else is held.
            order.sort(key=lambda store: store.path != busy)
        self.schemas = {store.path: store.schema for store in self._stores}

    def _attempt(self, order: list[_Store], give_up: float) -> str | None:
        """The path of what kept it from succeeding."""
        # Most of it beforehand, since writers do not wait for that.
        self._link_items(give_up)
        began = time.monotonic()
        timer = _Timer()
        try:
            for store in order:
                first = store is order[0]
                if not store.hold(give_up if first else began + HOLD_S):
                    return store.path
                if first:
                    began = time.monotonic()
                    timer.kill_after(OR_DIE_S)
            self.at = time.time()
            for store in order:
                store.keep()
            self._link_items(began + HOLD_S)
            self._link_plain(began + HOLD_S)
        except _TooLong as slow:
            return str(slow)
        finally:
            for store in order:
                store.release()
            timer.close()
        self.held_s = time.monotonic() - began
        return None

    def _link_plain(self, until: float) -> None:
        self._plain.clear()
        databases = {f"{store.path}{end}" for store in self._stores for end in ("", *LOGS)}
        for found in self._declared.walk(self._data_dir):
            if found.keep in (None, Keep.SOURCE, Keep.ITEMS) and found.path not in databases:
                staged = self._staging / found.path
                if found.keep is not Keep.ITEMS and not found.entry.is_dir(follow_symlinks=False):
                    staged.unlink(missing_ok=True)
                if _link(self._data_dir / found.path, staged, until):
                    self._plain[found.path] = _piece(found.path, staged)

    def _items(self) -> list[str]:
        return [found.path for found in self._declared.walk(self._data_dir) if found.keep is Keep.ITEMS]

    def _link_items(self, until: float) -> None:
        for path in self._items():
            staged, there = self._staging / path, set(os.listdir(self._data_dir / path))
            staged.mkdir(parents=True, exist_ok=True)
            for name in set(os.listdir(staged)) - there:
                remove(staged / name)
            for name in there - set(os.listdir(staged)):
                try:
                    self._link_tree(self._data_dir / path / name, staged / name, until)
                except BaseException:
                    remove(staged / name)
                    raise

    def _link_tree(self, source: Path, staged: Path, until: float) -> None:
        if not _link(source, staged, until) or source.is_symlink() or not source.is_dir():
            return
        for name in os.listdir(source):
            self._link_tree(source / name, staged / name, until)


class _Timer:
    """Kills this process, stopped or not, unless it is closed in time; timer_create(2).  Raises OSError."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._id = ctypes.c_void_p()
        # struct sigevent: a value, the signal, SIGEV_SIGNAL.
        event = struct.pack("Qii48x", 0, signal.SIGKILL, 0)
        if self._libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(self._id)):
            raise OSError(ctypes.get_errno(), "timer_create")

    def kill_after(self, seconds: float) -> None:
        # struct itimerspec: no interval, seconds and nanoseconds.
        when = struct.pack("qqqq", 0, 0, int(seconds), int(seconds % 1 * 1e9))
        if self._libc.timer_settime(self._id, 0, when, None):
            raise OSError(ctypes.get_errno(), "timer_settime")

    def close(self) -> None:
        self._libc.timer_delete(self._id)


def _link(source: Path, staged: Path, until: float) -> bool:
    """Another name for a file, or another folder; False where it is gone, or is something else.  Raises _TooLong."""
    if time.monotonic() > until:
        raise _TooLong(str(source))
    try:
        mode = os.lstat(source).st_mode
        if stat.S_ISDIR(mode):
            staged.mkdir(parents=True, exist_ok=True)
            staged.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            try:
                os.link(source, staged, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                shutil.copy2(source, staged, follow_symlinks=False)
        else:
            return False
    except FileNotFoundError:
        return False
    return True


def _piece(path: str, staged: Path) -> Piece:
    status = os.lstat(staged)
    if stat.S_ISLNK(status.st_mode):
        return Piece(path, status, target=os.readlink(staged))
    return Piece(path, status, status.st_size, staged) if stat.S_ISREG(status.st_mode) else Piece(path, status)


def is_database(file: Path) -> bool:
    """Whether it is one in WAL mode, as all services' are, with a readable head.  Raises OSError."""
    with file.open("rb") as stream:
        head = stream.read(20)
    return head[:16] == _MAGIC and head[18:20] == _IN_WAL_MODE


def empty(folder: Path) -> None:
    """Remove all that is in a folder."""
    for name in os.listdir(folder):
        remove(folder / name)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
