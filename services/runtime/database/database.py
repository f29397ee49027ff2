"""One SQLite database of a service: one writer, several readers, all in worker threads.

What `write` returned is on disk (WAL, `synchronous=FULL`). Changes that arrive while a commit is under way share the
next one, each undone alone if it fails: many small writes pay for one fsync.

A full disk is the typed failure `DiskFull`: the transaction is undone, reads go on, and the next write may succeed. A
damaged page is noticed at whichever statement reads it. A *derived* database is then put aside and begun again, and
`rebuilt` says so until the service has refilled it; a *source* database is kept, serves what can be read, and answers
`Damaged`, with the file and the remedy, for the rest.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import apsw
import trio

from proto.errors import OperationError, Unavailable
from services.runtime.database import files
from services.runtime.database.readers import Readers
from services.runtime.database.schema import Kind, Schema, UnknownVersion
from services.runtime.storage import Damaged, disk_full

T = TypeVar("T")
Change = Callable[[apsw.Connection], T]
Query = Callable[[apsw.Connection], T]

BUSY_TIMEOUT_MS = 10_000
LOG_BYTES = 64 * 1024 * 1024
"""Of the log, what is kept on disk for the next changes after a checkpoint."""

STEPS_BETWEEN_CHECKS = 50_000
"""Of SQLite's virtual machine, between two looks at whether a read was cancelled: a fraction of a millisecond."""

MAX_SHARED = 512
"""Changes in one transaction; more would make the first of them wait."""

RETRY_MS = 100

_DAMAGE = (apsw.CorruptError, apsw.NotADBError)
_DISK = (apsw.FullError, apsw.IOError, apsw.ReadOnlyError)
_VIRTUAL_TABLE = apsw.SQLITE_CORRUPT_VTAB
"""The result code of a damaged full-text index: its owner rebuilds it from the tables."""

_log = logging.getLogger("linckia.service")


@dataclass(slots=True, eq=False)
class _Waiting(Generic[T]):
    """A change that waits for its transaction."""

    change: Change[T]
    after: Callable[[T], object] | None
    woken: trio.Event = field(default_factory=trio.Event)
    settled: bool = False
    result: list[T] = field(default_factory=list)
    error: BaseException | None = None


class Database:
    """The open database. Opening blocks; a damaged file or a full disk does not keep it from opening."""

    def __init__(
        self,
        path: Path,
        schema: Schema,
        *,
        kind: Kind,
        readers: int | trio.CapacityLimiter = 4,
        pragmas: Mapping[str, int] | None = None,
        setup: Callable[[apsw.Connection], object] | None = None,
        attached: Mapping[str, Database] | None = None,
        private: bool = False,
        on_rebuilt: Callable[[], object] | None = None,
    ) -> None:
        """
        Args:
            readers: how many threads read at the same time, or a limiter that several databases share.
            pragmas: for every connection, such as `cache_size`.
            setup: called with every new connection.
            attached: databases that readers see under these names.
            private: nobody but the owner of the process may read the file.
            on_rebuilt: called on trio's thread when a derived database was begun again while it was in use.

        Raises:
            UnknownVersion: a source database of a version that cannot be migrated.
            OSError, apsw.CantOpenError: the file cannot be opened, or a damaged one not put aside.
        """
        self.path = path
        self.kind = kind
        self.rebuilt = ""
        """Why the file was begun again; the service clears it once it has refilled it."""
        self.damage = ""
        """What is known to be damaged in a source database, with the remedy."""
        self.version = 0
        """Rises with each commit."""
        self.generation = 0
        """Rises each time the file is begun again."""
        self._schema = schema
        self._pragmas = dict(pragmas or {})
        self._setup = setup
        self._attached = dict(attached or {})
        self._private = private
        self._on_rebuilt = on_rebuilt
        self._turn = threading.RLock()
        """Held by the thread that uses the writer."""
        self._swap = threading.RLock()
        """Held while the file is put aside and begun again, and while a reader opens it."""
        self._writer: apsw.Connection | None = None
        self._readers = Readers(self._open_reader)
        self._readers_of = self._generations()
        self._read_limit = trio.CapacityLimiter(readers) if isinstance(readers, int) else readers
        self._write_limit = trio.CapacityLimiter(1)
        self._queue: list[_Waiting[object]] = []
        self._committing = False
        self._closed = False
        try:
            self._open()
        except (*_DAMAGE, UnknownVersion) as error:
            if kind is Kind.SOURCE:
                if isinstance(error, UnknownVersion):
                    raise
                self._note_damage(error)
            else:
                self._begin_again(str(error))
        except _DISK as error:
            # The next call tries again.
            _log.error("%s cannot be opened yet: %s", path, error)

    # For tasks

    async def write(self, change: Change[T], after: Callable[[T], object] | None = None) -> T:
        """Run `change` in a transaction, perhaps with others; once this returns, it is on disk.

        An exception out of `change` undoes what it did, and nothing of the others'. `after` is called with its result
        in the same thread right after the commit, before the next transaction begins.

        Cancellation: before the change is queued nothing is done; after that it is done, and this returns.

        Raises:
            DiskFull: nothing was changed.
            Damaged, Unavailable: see `transaction`.
            Whatever `change` raises.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        mine: _Waiting[T] = _Waiting(change, after)
        # Each task takes the result of its own entry only.
        self._queue.append(mine)  # type: ignore[arg-type]  # invariant in the type of the result
        with trio.CancelScope(shield=True):
            if self._committing:
                await mine.woken.wait()
            if not mine.settled:
                await self._lead()
        if mine.error is not None:
            raise mine.error
        return mine.result[0]

    async def _lead(self) -> None:
        """Commit what is queued, then hand over to the first of those that came meanwhile."""
        self._committing = True
        batch, self._queue = self._queue[:MAX_SHARED], self._queue[MAX_SHARED:]
        try:
            await trio.to_thread.run_sync(self._commit, batch, limiter=self._write_limit)
        finally:
            for each in batch:
                each.settled = True
                each.woken.set()
            if self._queue:
                self._queue[0].woken.set()
            else:
                self._committing = False

    def _commit(self, batch: list[_Waiting[object]]) -> None:
        def committed() -> None:
            for each in batch:
                if each.error is None and each.after is not None:
                    each.after(each.result[0])

        try:
            with self.transaction(committed) as connection:
                for each in batch:
                    self._apply(connection, each, alone=len(batch) == 1)
                if all(each.error is not None for each in batch):
                    raise _NothingToCommit
        except _NothingToCommit:
            return
        except Exception as error:  # noqa: BLE001  # raised again where each change was asked for
            for each in batch:
                each.error = each.error or _again(error)

    def _apply(self, connection: apsw.Connection, each: _Waiting[object], *, alone: bool) -> None:
        if not alone:
            connection.execute("SAVEPOINT one")
        try:
            each.result.append(each.change(connection))
        except Exception as error:
            if not connection.in_transaction or isinstance(error, (*_DISK, *_DAMAGE)):
                # The disk's fault, or SQLite has undone all of it: it fails for every change.
                raise
            each.error = error
            if not alone:
                connection.execute("ROLLBACK TO one")
        if not alone:
            connection.execute("RELEASE one")

    async def read(self, query: Query[T]) -> T:
        """Run `query` on one consistent state of the database; cancelling this interrupts its statement.

        Raises:
            Damaged, Unavailable, DiskFull: see `snapshot`.
        """

        def run() -> T:
            with self.snapshot() as connection:
                connection.set_progress_handler(_check_cancelled, STEPS_BETWEEN_CHECKS)
                try:
                    return query(connection)
                finally:
                    connection.set_progress_handler(None)

        return await trio.to_thread.run_sync(run, limiter=self._read_limit)

    async def exclusive(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` with the writer's connection, outside of a transaction, while nothing else is written."""

        def run() -> T:
            with self._turn, self._failures():
                return work(self._opened())

        return await trio.to_thread.run_sync(run, limiter=self._write_limit)

    async def checkpoint(self) -> bool:
        """Move the log into the database and truncate it; False where a reader still needs it."""

        def truncate(connection: apsw.Connection) -> bool:
            connection.set_busy_timeout(0)
            try:
                ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except apsw.BusyError:
                return False
            finally:
                connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            return not busy

        return await self.exclusive(truncate)

    async def give_back(self) -> None:
        """Release cached pages and idle connections; for `Environment.at_rest`."""
        if self._closed or self._writer is None:
            return
        await trio.to_thread.run_sync(self._readers.give_back, limiter=self._read_limit)
        await self.exclusive(lambda connection: connection.execute("PRAGMA shrink_memory").fetchall())

    def size_bytes(self) -> int:
        """Of the database with its log."""
        return files.size_bytes(self.path)

    def close(self) -> None:
        """Close all connections; blocks for the last checkpoint."""
        self._closed = True
        with self._turn:
            self._readers.close()
            if self._writer is not None:
                self._writer.close()

    # For worker threads

    @contextlib.contextmanager
    def transaction(self, committed: Callable[[], object] | None = None) -> Iterator[apsw.Connection]:
        """One transaction; it is on disk once the block is left. An exception undoes all of it.

        `committed` is called right after the commit, before the next transaction begins.

        Raises:
            DiskFull: a statement or the commit found no room; nothing was changed.
            Damaged: what it needs of a source database cannot be read.
            Unavailable: a derived database was damaged, and has just been begun again.
        """
        with self._failures(), self._turn:
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # After some errors (a full disk) SQLite has rolled back already.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            self.version += 1
            if committed is not None:
                committed()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[apsw.Connection]:
        """A connection that reads one consistent state.  Raises as `transaction` does."""
        with self.reader() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def reader(self) -> Iterator[apsw.Connection]:
        """A connection that only reads, each statement the newest state.  Raises as `transaction` does."""
        with self._failures():
            with self._turn if self._writer is None else contextlib.nullcontext():
                self._opened()
            if self._readers_of != (current := self._generations()):
                # An attached database was begun again: these connections still read its old file.
                self._readers.close()
                self._readers, self._readers_of = Readers(self._open_reader), current
            with self._readers.one() as connection:
                yield connection

    # Opening, and what goes wrong

    def _generations(self) -> tuple[int, ...]:
        return tuple(each.generation for each in self._attached.values())

    def _opened(self) -> apsw.Connection:
        if self._writer is None:
            self._open()
        assert self._writer is not None
        return self._writer

    def _open(self) -> None:
        fresh = not self.path.exists()
        if fresh and self._private:
            files.create_private(self.path)
        connection = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        try:
            connection.pragma("journal_mode", "wal")
            connection.pragma("journal_size_limit", LOG_BYTES)
            self._schema.apply(connection)
            if fresh:
                files.sync_folder(self.path.parent)
        except BaseException:
            connection.close()
            raise
        self._writer = connection

    def _open_reader(self) -> apsw.Connection:
        # The first statement opens the log, by its name: it must be that of this file, and not of the next one.
        with self._swap:
            connection = self._connect(apsw.SQLITE_OPEN_READWRITE)
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        for name, database in self._attached.items():
            if database._writer is None:
                with database._turn:
                    database._opened()
            with database._swap:
                connection.execute(f"ATTACH ? AS {name}", (str(database.path),))
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
        except _DAMAGE as error:
            if getattr(error, "extendedresult", 0) == _VIRTUAL_TABLE:
                raise
            raise self._damaged(error, generation) from error
        except _DISK as error:
            failure = disk_full(error, self.path)
            assert failure is not None
            raise failure from error

    def _damaged(self, error: Exception, generation: int) -> OperationError | Unavailable:
        if any(each.is_damaged() for each in self._attached.values()):
            pass
        elif self.kind is Kind.SOURCE:
            return self._note_damage(error)
        else:
            self._begin_again(str(error), generation)
        return Unavailable(f"{self.path.stem}: damaged data was found and is being rebuilt", retry_after_ms=RETRY_MS)

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
        if verdict == "ok":
            return False
        self._begin_again(str(verdict), generation)
        return True

    def begin_again(self, reason: str, generation: int | None = None) -> None:
        """Put a derived database aside that its owner found useless, and begin an empty one; blocks.

        With the `generation` in which it was found so, only if that is still the present one, and as at any damage
        that is found while it is in use `on_rebuilt` is called; without, it is not.
        """
        self._begin_again(reason, generation)

    def _note_damage(self, error: Exception) -> Damaged:
        self.damage = (
            f"{self.path} is damaged ({error}). What can be read is served. Stop Linckia, then put a copy of the file "
            f"back, or save what can be read: sqlite3 {self.path} .recover | sqlite3 recovered.db, and put recovered.db"
            " in its place"
        )
        _log.error("%s", self.damage)
        return Damaged(self.damage, data={"file": str(self.path)})

    def _begin_again(self, reason: str, generation: int | None = None) -> None:
        """Put the file aside and begin an empty one; nothing where another thread has done so since `generation`."""
        with self._turn, self._swap:
            if generation is not None and generation != self.generation:
                return
            self._readers.close()
            if self._writer is not None:
                with contextlib.suppress(apsw.Error):
                    self._writer.close()
                self._writer = None
            files.put_aside(self.path, reason)
            self.rebuilt = reason
            self.generation += 1
            self._readers = Readers(self._open_reader)
            with contextlib.suppress(*_DISK):
                # Otherwise the next call tries again.
                self._open()
        if generation is not None and self._on_rebuilt is not None:
            trio.from_thread.run_sync(self._on_rebuilt)


class _NothingToCommit(Exception):
    """Every change of a batch has failed on its own account."""


def _again(error: Exception) -> Exception:
    """The same error for one more task: an exception object belongs to one traceback."""
    if isinstance(error, OperationError | Unavailable):
        copied = type(error)(
            error.failure.message, retry_after_ms=error.failure.retry_after_ms, data=error.failure.data
        )
        copied.__cause__ = error.__cause__
        return copied
    return error


def _check_cancelled() -> bool:
    trio.from_thread.check_cancelled()
    return False
