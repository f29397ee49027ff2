"""The file of one database: its connections, and recovery from damaged pages and full disks.

A damaged page is noticed by the first statement that reads it. A *derived* database is then set aside and recreated,
and `rebuilt` gives the reason until the service has refilled it. A *source* database stays in place and serves what can
be read; the rest raises `Damaged`, which names the file and the remedy.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import apsw
import trio

from proto.errors import OperationError, Unavailable
from proto.host.durable import sync_folder
from services.runtime import keyed
from services.runtime.database import copies, elsewhere
from services.runtime.database.schema import Kind, Schema, UnknownVersion
from services.runtime.storage import Damaged, disk_full

BUSY_TIMEOUT_MS = 10_000
LOG_BYTES = 64 * 1024 * 1024
"""Size at which the log stays on disk after a checkpoint, ready for the next changes."""

KEPT_ASIDE = 3
"""Damaged files kept, so that a disk which keeps damaging files does not fill up with copies."""

RETRY_MS = 100

DAMAGE = (apsw.CorruptError, apsw.NotADBError)
DISK = (apsw.FullError, apsw.IOError, apsw.ReadOnlyError)

_log = logging.getLogger("linckia.service")


class DatabaseFile:
    """An open database file: one connection that writes, and as many readers as are in use at the same time.

    Opening blocks. It succeeds even if the file is damaged or the disk is full.
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
        keeps_keys: bool = False,
    ) -> None:
        """Open the file, creating it if necessary.

        Args:
            readers: how many threads read at the same time, or a limiter shared by several databases.
            pragmas: set on every connection, such as `cache_size`.
            setup: called with every new connection.
            attached: databases that readers see under these names.
            on_rebuilt: called on trio's thread when a derived database was recreated while in use.
            on_damage: called on trio's thread with the text of `damage` when a source database is found damaged.
            keeps_keys: whether changes of calls with idempotency keys store these here (`keyed`).

        Raises:
            UnknownVersion: a source database, or one that keeps users' data, has a version that cannot be migrated.
            OSError, apsw.CantOpenError: the file cannot be opened, or a damaged one cannot be set aside.
        """
        self.path = path
        self.elsewhere = elsewhere.files.get(path)
        """Where the pages are, if they are not in the file."""
        self.kind = kind
        self.keeps_keys = keeps_keys
        self.rebuilt = ""
        """Why the file was recreated; the service clears this once it has refilled the database."""
        self.damage = ""
        """Known damage in a source database, with the remedy."""
        self.generation = 0
        """Increases each time the file is recreated."""
        self._schema = schema
        self._pragmas = dict(pragmas or {})
        self._setup = setup
        self._attached = dict(attached or {})
        self._on_rebuilt = on_rebuilt
        self._on_damage = on_damage
        self._read_limit = trio.CapacityLimiter(readers) if isinstance(readers, int) else readers
        self._turn = threading.RLock()
        """Held by the thread that uses the writer connection."""
        self._swap = threading.RLock()
        """Held while the file is set aside and recreated, and while a reader opens it."""
        self._writer: apsw.Connection | None = None
        self._idle: list[tuple[tuple[int, ...], apsw.Connection]] = []
        """Idle readers, each with the generations of the files that it has open."""
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
        """Return the size of the database including its log."""
        if self.elsewhere is not None:
            return self.elsewhere.size
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
        """Provide a read-only connection for a worker thread; each statement sees the newest state.

        Raises:
            Damaged: data needed from a source database cannot be read.
            Unavailable: a derived database was damaged and has just been recreated.
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
        """Check every page of a derived database, and recreate it if it is damaged."""
        if self.kind is Kind.SOURCE:
            return False
        generation = self.generation
        try:
            # Use a new connection: the pooled ones have pages in their caches from before the damage.
            with self._failures(), contextlib.closing(self._open_reader()) as connection:
                ((verdict,),) = connection.execute("PRAGMA quick_check(1)").fetchall()
        except Unavailable:
            return True
        if verdict != "ok":
            self.begin_again(str(verdict), generation)
        return verdict != "ok"

    def begin_again(self, reason: str, generation: int | None = None) -> None:
        """Set aside a damaged or useless derived database and create an empty one; blocks.

        If `generation` is given and another thread has recreated the file since then, this does nothing.
        Otherwise the database was in use, and `on_rebuilt` is called.
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
                # If this fails, the next call tries again.
                self._open()
        if generation is not None and self._on_rebuilt is not None:
            trio.from_thread.run_sync(self._on_rebuilt)

    def _put_aside(self, reason: str) -> None:
        """Rename the file so that it can be examined, and remove its log, which does not belong to the next file."""
        before = copies.damaged_files(self.path)
        # Make the name sort last even if the clock was set back.
        stamp = max([time.time_ns(), *(int(file.name.rpartition("-")[2]) + 1 for file in before[-1:])])
        new = self.path.with_name(f"{self.path.name}.damaged-{stamp}")
        _log.error("%s cannot be used (%s): set aside as %s and rebuilt", self.path, reason, new.name)
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
            with contextlib.suppress(IndexError):  # Another thread took the last one.
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
        """Return the writer connection."""
        if self._writer is None:
            with self._turn:
                if self._writer is None:
                    self._open()
        assert self._writer is not None
        return self._writer

    def _open(self) -> None:
        fresh = self.elsewhere is None and not self.path.exists()
        if fresh:
            # Create it readable by its owner only; SQLite gives its logs the same mode.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        connection = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        try:
            connection.pragma("journal_mode", "wal" if self.elsewhere is None else "memory")
            connection.pragma("journal_size_limit", LOG_BYTES)
            if self.kind is Kind.SOURCE or self._schema.keeps:
                if self._schema.is_behind(connection):
                    copies.copy_before_migration(connection, self.path, self._schema.version)
                else:
                    copies.remove_expired(self.path)
            self._schema.apply(connection)
            if self.keeps_keys:
                connection.execute(keyed.TABLES).fetchall()
            if fresh:
                sync_folder(self.path.parent)
        except BaseException:
            connection.close()
            raise
        self._writer = connection

    def _open_reader(self) -> apsw.Connection:
        # The first statement opens the log by name, so the file must not be replaced before that.
        with self._swap:
            connection = self._connect(apsw.SQLITE_OPEN_READWRITE)
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        for name, file in self._attached.items():
            file._opened()
            with file._swap:
                place = str(file.path) if self.elsewhere is None else f"{file.path.as_uri()}?vfs=unix"
                connection.execute(f"ATTACH ? AS {name}", (place,))
                connection.execute(f"SELECT 1 FROM {name}.sqlite_schema LIMIT 1").fetchall()
        connection.pragma("query_only", True)
        return connection

    def _connect(self, flags: int) -> apsw.Connection:
        vfs = None
        if self.elsewhere is not None:
            # Others are attached by their addresses.
            vfs, flags = elsewhere.VFS, flags | apsw.SQLITE_OPEN_URI
        connection = apsw.Connection(str(self.path), flags=flags, vfs=vfs, statementcachesize=256)
        try:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            connection.pragma("synchronous", "full")
            # Sorting must not need disk space.
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
        """Turn disk errors and damaged pages into failures that a caller can act on."""
        generation = self.generation
        try:
            if self.elsewhere is not None:
                self.elsewhere.check()
            yield
            if self.elsewhere is not None:
                # Another machine may have changed it meanwhile.
                self.elsewhere.check()
        except DAMAGE as error:
            if getattr(error, "extendedresult", 0) == apsw.SQLITE_CORRUPT_VTAB:
                # A full-text index is damaged: its owner rebuilds it from the tables.
                raise
            raise self._damaged(error, generation) from error
        except DISK as error:
            if self.elsewhere is not None and self.elsewhere.failure is not None:
                raise copy.copy(self.elsewhere.failure) from error
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
            f"backup (linckia restore SOURCE --replace), or save what can be read: sqlite3 {self.path} .recover "
            "| sqlite3 recovered.db, and put recovered.db in its place"
        )
        _log.error("%s", self.damage)
        if self._on_damage is not None:
            trio.from_thread.run_sync(self._on_damage, self.damage)
        return Damaged(self.damage, data={"file": str(self.path)})
