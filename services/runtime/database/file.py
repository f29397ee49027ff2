"""The file of one database: its connections, and what becomes of it when a page of it is damaged or the disk is full.

A damaged page is noticed at whichever statement reads it. A *derived* database is then put aside and begun again, and
`rebuilt` says so until the service has refilled it; a *source* database is kept, serves what can be read, and answers
`Damaged`, with the file and the remedy, for the rest.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import apsw
import trio

from linckia.proto.durable import sync_folder
from linckia.proto.errors import OperationError, Unavailable
from linckia.services.runtime.database import beside
from linckia.services.runtime.database.schema import Kind, Schema, UnknownVersion
from linckia.services.runtime.storage import Damaged, disk_full

BUSY_TIMEOUT_MS = 10_000
LOG_BYTES = 64 * 1024 * 1024
"""Of the log, what is kept on disk for the next changes after a checkpoint."""

KEPT_ASIDE = 3
"""Of what was put aside as damaged: a disk that damages files again and again must not be filled by that."""

RETRY_MS = 100

DAMAGE = (apsw.CorruptError, apsw.NotADBError)
DISK = (apsw.FullError, apsw.IOError, apsw.ReadOnlyError)

_log = logging.getLogger("linckia.service")


class DatabaseFile:
    """The open file: one connection that writes, and as many that read as are used at the same time.

    Opening blocks; a damaged file or a full disk does not keep it from opening.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        *,
        kind: Kind,
        readers: int | trio.CapacityLimiter = 4,
        pragmas: Mapping[str, int] | None = None,
        setup: Callable[[apsw.Connection], object] | None = None,
        attached: Mapping[str, DatabaseFile] | None = None,
        on_rebuilt: Callable[[], object] | None = None,
        on_damage: Callable[[str], object] | None = None,
    ) -> None:
        """
        Args:
            readers: how many threads read at the same time, or a limiter that several databases share.
            pragmas: for every connection, such as `cache_size`.
            setup: called with every new connection.
            attached: databases that readers see under these names.
            on_rebuilt: called on trio's thread when a derived database was begun again while it was in use.
            on_damage: called there when a source database is found damaged, with what `damage` says.

        Raises:
            UnknownVersion: a source database, or one that keeps what users made, of a version that cannot be migrated.
            OSError, apsw.CantOpenError: the file cannot be opened, or a damaged one not put aside.
        """
        self.path = path
        self.kind = kind
        self.rebuilt = ""
        """Why the file was begun again; the service clears it once it has refilled it."""
        self.damage = ""
        """What is known to be damaged in a source database, with the remedy."""
        self.generation = 0
        """Rises each time the file is begun again."""
        self._schema = schema
        self._pragmas = dict(pragmas or {})
        self._setup = setup
        self._attached = dict(attached or {})
        self._on_rebuilt = on_rebuilt
        self._on_damage = on_damage
        self._read_limit = trio.CapacityLimiter(readers) if isinstance(readers, int) else readers
        self._turn = threading.RLock()
        """Held by the thread that uses the writer."""
        self._swap = threading.RLock()
        """Held while the file is put aside and begun again, and while a reader opens it."""
        self._writer: apsw.Connection | None = None
        self._idle: list[tuple[tuple[int, ...], apsw.Connection]] = []
        """Readers that are not in use, each with the generations of the files that it reads."""
        self._closed = False
        try:
            self._open()
        except (*DAMAGE, UnknownVersion) as error:
            is_unknown = isinstance(error, UnknownVersion)
            if kind is Kind.DERIVED and not (is_unknown and schema.keeps):
                self.begin_again(str(error))
            elif is_unknown:
                raise
            else:
                self._note_damage(error)
        except DISK as error:
            # The next call tries again.
            _log.error("%s cannot be opened yet: %s", path, error)

    def size_bytes(self) -> int:
        """Of the database with its log."""
        files = [self.path, self._beside("-wal")]
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        """Close all connections; blocks for the last checkpoint."""
        self._closed = True
        with self._turn:
            self._close_idle()
            if self._writer is not None:
                self._writer.close()

    @contextlib.contextmanager
    def reader(self) -> Iterator[apsw.Connection]:
        """A connection that only reads, each statement the newest state, for a worker thread.

        Raises:
            Damaged: what it needs of a source database cannot be read.
            Unavailable: a derived database was damaged, and has just been begun again.
            DiskFull: the file cannot be opened.
        """
        with self._failures():
            self._opened()
            of, connection = self._idle_reader() or (self._generations(), self._open_reader())
            try:
                yield connection
            finally:
                if of == self._generations() and not self._closed:
                    self._idle.append((of, connection))
                else:
                    connection.close()

    def is_damaged(self) -> bool:
        """Check every page, for a derived database; one that is damaged is begun again."""
        if self.kind is Kind.SOURCE:
            return False
        generation = self.generation
        try:
            # A connection of its own: the pool's have pages in their caches as they were before.
            with self._failures(), contextlib.closing(self._open_reader()) as connection:
                ((verdict,),) = connection.execute("PRAGMA quick_check(1)").fetchall()
        except Unavailable:
            return True
        if verdict != "ok":
            self.begin_again(str(verdict), generation)
        return verdict != "ok"

    def begin_again(self, reason: str, generation: int | None = None) -> None:
        """Put a derived database aside, damaged or useless as it is, and begin an empty one; blocks.

        With the `generation` in which it was found so, nothing where another thread has done it since, and
        `on_rebuilt` is called, as it was in use.
        """
        with self._turn, self._swap:
            if generation is not None and generation != self.generation:
                return
            self._close_idle()
            if self._writer is not None:
                with contextlib.suppress(apsw.Error):
                    self._writer.close()
                self._writer = None
            self._put_aside(reason)
            self.rebuilt = reason
            self.generation += 1
            with contextlib.suppress(*DISK):
                # Otherwise the next call tries again.
                self._open()
        if generation is not None and self._on_rebuilt is not None:
            trio.from_thread.run_sync(self._on_rebuilt)

    def _put_aside(self, reason: str) -> None:
        """Rename the file, so that it can be examined. Its log is removed: it would be a stranger's to the next one."""
        before = beside.damaged_files(self.path)
        # The newest by its name, also where the clock was put back.
        stamp = max([time.time_ns(), *(int(file.name.rpartition("-")[2]) + 1 for file in before[-1:])])
        new = self.path.with_name(f"{self.path.name}.damaged-{stamp}")
        _log.error("%s cannot be used (%s): put aside as %s and rebuilt", self.path, reason, new.name)
        self.path.replace(new)
        for suffix in ("-wal", "-shm"):
            self._beside(suffix).unlink(missing_ok=True)
        for file in before[: -KEPT_ASIDE + 1]:
            file.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _generations(self) -> tuple[int, ...]:
        return (self.generation, *(each.generation for each in self._attached.values()))

    def _idle_reader(self) -> tuple[tuple[int, ...], apsw.Connection] | None:
        while self._idle:
            with contextlib.suppress(IndexError):  # Another thread took the last.
                of, connection = self._idle.pop()
                if of == self._generations():
                    return of, connection
                connection.close()
        return None

    def _close_idle(self) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop()[1].close()

    def _opened(self) -> apsw.Connection:
        """The writer."""
        if self._writer is None:
            with self._turn:
                if self._writer is None:
                    self._open()
        assert self._writer is not None
        return self._writer

    def _open(self) -> None:
        fresh = not self.path.exists()
        if fresh:
            # Nobody else may read it; SQLite gives its logs the same mode.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        connection = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        try:
            connection.pragma("journal_mode", "wal")
            connection.pragma("journal_size_limit", LOG_BYTES)
            if self.kind is Kind.SOURCE or self._schema.keeps:
                if self._schema.is_behind(connection):
                    beside.keep(connection, self.path, self._schema.version)
                else:
                    beside.forget(self.path)
            self._schema.apply(connection)
            if fresh:
                sync_folder(self.path.parent)
        except BaseException:
            connection.close()
            raise
        self._writer = connection

    def _open_reader(self) -> apsw.Connection:
        # The first statement opens the log, by its name: it must be that of this file, and not of the next one.
        with self._swap:
            connection = self._connect(apsw.SQLITE_OPEN_READWRITE)
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        for name, file in self._attached.items():
            file._opened()
            with file._swap:
                connection.execute(f"ATTACH ? AS {name}", (str(file.path),))
                connection.execute(f"SELECT 1 FROM {name}.sqlite_schema LIMIT 1").fetchall()
        connection.pragma("query_only", True)
        return connection

    def _connect(self, flags: int) -> apsw.Connection:
        connection = apsw.Connection(str(self.path), flags=flags, statementcachesize=256)
        try:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            connection.pragma("synchronous", "full")
            # A sort must not need room on the disk.
            connection.pragma("temp_store", "memory")
            for name, value in self._pragmas.items():
                connection.pragma(name, value)
            if self._setup is not None:
                self._setup(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn errors of the disk and of damaged pages into failures that a caller can act on."""
        generation = self.generation
        try:
            yield
        except DAMAGE as error:
            if getattr(error, "extendedresult", 0) == apsw.SQLITE_CORRUPT_VTAB:
                # A damaged full-text index: its owner rebuilds it from the tables.
                raise
            raise self._damaged(error, generation) from error
        except DISK as error:
            raise disk_full(error, self.path) or error from error

    def _damaged(self, error: Exception, generation: int) -> OperationError | Unavailable:
        if not any(each.is_damaged() for each in self._attached.values()):
            if self.kind is Kind.SOURCE:
                return self._note_damage(error)
            self.begin_again(str(error), generation)
        return Unavailable(f"{self.path.stem}: damaged data was found and is being rebuilt", retry_after_ms=RETRY_MS)

    def _note_damage(self, error: Exception) -> Damaged:
        self.damage = (
            f"{self.path} is damaged ({error}). What can be read is served. Stop Linckia, then restore the newest "
            f"backup (linckia restore-backup SOURCE --replace), or save what can be read: sqlite3 {self.path} .recover "
            "| sqlite3 recovered.db, and put recovered.db in its place"
        )
        _log.error("%s", self.damage)
        if self._on_damage is not None:
            trio.from_thread.run_sync(self._on_damage, self.damage)
        return Damaged(self.damage, data={"file": str(self.path)})
