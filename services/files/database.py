"""The database of the index: one SQLite file in WAL mode, one writer and several readers, all in worker threads.

What a transaction returned is on disk (`synchronous=FULL`). Readers see one consistent state, and a reader whose call
is cancelled stops within milliseconds. A file that is damaged is put aside and begun anew, and `rebuilt` says so: the
tree can be scanned again; sets, plans and queries that were in it are in the file put aside.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import apsw
import trio

from services.files import functions, schema

T = TypeVar("T")

READERS = 4

_STEPS_BETWEEN_CHECKS = 50_000
"""Of SQLite's virtual machine: a fraction of a millisecond."""

_log = logging.getLogger("linckia.files")


class Database:
    """The open database; opening blocks."""

    def __init__(self, path: Path) -> None:
        """Open `path`, or begin it.

        Raises:
            apsw.Error, OSError: it can neither be opened nor begun.
        """
        self.path = path
        self.rebuilt = False
        try:
            self._writer = _open(path)
        except (apsw.CorruptError, apsw.NotADBError) as error:
            aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
            _log.error("%s is damaged (%s): put aside as %s and begun anew", path, error, aside.name)
            path.replace(aside)
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self.rebuilt = True
            self._writer = _open(path)
        self._turn = threading.Lock()
        self._idle: list[apsw.Connection] = []
        self._idle_lock = threading.Lock()
        self._read_limit = trio.CapacityLimiter(READERS)
        self._write_limit = trio.CapacityLimiter(8)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """One transaction, in a worker thread; it is on disk once the block is left. An exception undoes all of it."""
        with self._turn:
            connection = self._writer
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # Some errors (a full disk) have rolled back already.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    async def write(self, change: Callable[[apsw.Connection], T]) -> T:
        """Run `change` in one transaction. Not interrupted by cancellation once it has begun."""

        def run() -> T:
            with self.transaction() as connection:
                return change(connection)

        return await trio.to_thread.run_sync(run, limiter=self._write_limit)

    async def read(self, query: Callable[[apsw.Connection], T]) -> T:
        """Run `query` on one consistent state of the database; cancelling this interrupts it."""

        def run() -> T:
            with self.snapshot() as connection:
                connection.set_progress_handler(_check_cancelled, _STEPS_BETWEEN_CHECKS)
                try:
                    return query(connection)
                finally:
                    connection.set_progress_handler(None)

        return await trio.to_thread.run_sync(run, limiter=self._read_limit)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[apsw.Connection]:
        """A reader within one transaction, in a worker thread."""
        with self.reader() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def reader(self) -> Iterator[apsw.Connection]:
        """A connection that only reads, each statement the newest state."""
        with self._idle_lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or _connect(self.path, writes=False)
        try:
            yield connection
        finally:
            with self._idle_lock:
                self._idle.append(connection)

    def size_bytes(self) -> int:
        """Of the database with its log."""
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        """Close all connections; blocks for the last checkpoint."""
        for connection in (*self._idle, self._writer):
            connection.close()


def _check_cancelled() -> bool:
    trio.from_thread.check_cancelled()
    return False


def _connect(path: Path, *, writes: bool) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if writes else 0)
    connection = apsw.Connection(str(path), flags=flags)
    connection.set_busy_timeout(10_000)
    connection.execute("PRAGMA synchronous=FULL; PRAGMA cache_size=-65536; PRAGMA mmap_size=1073741824")
    connection.execute("PRAGMA temp_store=MEMORY; PRAGMA recursive_triggers=ON")
    if not writes:
        connection.execute("PRAGMA query_only=ON")
    functions.register(connection)
    return connection


def _open(path: Path) -> apsw.Connection:
    fresh = not path.exists()
    connection = _connect(path, writes=True)
    try:
        connection.execute(
            "PRAGMA journal_mode=WAL; PRAGMA journal_size_limit=67108864; PRAGMA wal_autocheckpoint=8000"
        )
        version = connection.execute("PRAGMA user_version").get
        if version not in (0, schema.VERSION):
            raise apsw.CantOpenError(f"{path} was written by another version of this program (schema {version})")
        connection.execute("BEGIN IMMEDIATE")
        try:
            for family in schema.FAMILIES:
                connection.execute(family)
            connection.execute(f"PRAGMA user_version={schema.VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if fresh:
            _sync_folder(path.parent)
    except BaseException:
        connection.close()
        raise
    return connection


def _sync_folder(folder: Path) -> None:
    # The file's name has to be on disk as well as its content.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
