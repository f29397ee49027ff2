"""The database of the index: one SQLite file in WAL mode, one writer and several readers, all in worker threads.

What a transaction returned is on disk (`synchronous=FULL`). Readers see one consistent state, and a reader whose call
is cancelled stops within milliseconds. A file that is damaged is put aside and begun anew, and `rebuilt` says so: the
tree can be scanned again; sets, plans and queries that were in it are in the file put aside.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import apsw
import trio

from services.files.store import functions, schema
from services.files.store.dirty_rows import Written
from services.runtime.readers import Readers
from services.runtime.sqlite_files import put_aside, size_bytes, sync_folder

T = TypeVar("T")

READERS = 4

_STEPS_BETWEEN_CHECKS = 50_000
"""Of SQLite's virtual machine: a fraction of a millisecond."""


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
            put_aside(path, error)
            self.rebuilt = True
            self._writer = _open(path)
        self._turn = threading.Lock()
        self._written: Written | None = None
        self._state = threading.Lock()
        """Held while the state that readers begin with becomes another one."""
        self._readers = Readers(lambda: _connect(path, writes=False))
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
                with self._state:
                    connection.execute("COMMIT")
                    if self._written is not None:
                        self._written.committed()
            except BaseException:
                # Some errors (a full disk) have rolled back already.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if self._written is not None:
                    self._written.undone()
                raise

    def watch(self, written: Written | None) -> None:
        """Note from now on which rows are written, or note it no more; blocks until no transaction is under way."""
        with self._turn:
            self._writer.set_update_hook(None if written is None else written.note)
            self._written = written

    def begin_at(self, connection: apsw.Connection, written: Written) -> Written:
        """Have a reader that has read nothing yet see the newest state; answers what was written up to it, and makes
        `written` begin anew."""
        with self._state:
            connection.execute("SELECT 1 FROM entry LIMIT 1").get  # noqa: B018  # the first reading is what counts
            return written.taken()

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

    def reader(self) -> contextlib.AbstractContextManager[apsw.Connection]:
        """A connection that only reads, each statement the newest state."""
        return self._readers.one()

    def size_bytes(self) -> int:
        """Of the database with its log."""
        return size_bytes(self.path)

    def close(self) -> None:
        """Close all connections; blocks for the last checkpoint."""
        self._readers.close()
        self._writer.close()


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
        if connection.execute("PRAGMA application_id").get != schema.MARK:
            _make_tables(connection)
        # Reads the whole schema, and so finds one that is damaged.
        connection.execute("SELECT path FROM node LIMIT 1").get  # noqa: B018  # the reading is what counts
        if fresh:
            sync_folder(path.parent)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_tables(connection: apsw.Connection) -> None:
    """What is not there yet.  A commit waits for the disk: whoever starts on tables that are as they should be has
    none to wait for."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for family in schema.FAMILIES:
            connection.execute(family)
        connection.execute(f"PRAGMA user_version={schema.VERSION}; PRAGMA application_id={schema.MARK}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
