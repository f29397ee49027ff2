"""One SQLite database of a service: one writer and several readers, all in worker threads.

When `write` returns, the change is on disk (WAL, `synchronous=FULL`). Changes that arrive during a commit share the
next one, so many small writes pay for one fsync; a change that fails is rolled back alone. A full disk raises
`DiskFull`: the transaction is rolled back, reads continue, and the next write may succeed. For damage, see `file`.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import apsw
import trio

from proto.errors import LinckiaError
from services.runtime import keyed
from services.runtime.database.file import BUSY_TIMEOUT_MS, DAMAGE, DISK, DatabaseFile

T = TypeVar("T")
Change = Callable[[apsw.Connection], T]
Query = Callable[[apsw.Connection], T]

STEPS_BETWEEN_CHECKS = 50_000
"""SQLite virtual machine steps between checks for cancellation of a read: a fraction of a millisecond."""

MAX_SHARED = 512
"""Most changes in one transaction; with more, the first change would wait too long."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A change that is queued for a transaction."""

    change: Change[Any]
    after: Callable[[Any], object] | None
    answer: Callable[[Any], object] | None
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """The caller's context. Another caller's thread may run the change, and the client's grant must still apply."""
    woken: trio.Event = field(default_factory=trio.Event)
    settled: bool = False
    # The result has the type that the change returns; `Database.write` restores it.
    result: Any = None
    error: BaseException | None = None


class _GroupCommit:
    """Group commit: changes that arrive during a transaction share the next one."""

    def __init__(self, database: Database) -> None:
        self.limit = trio.CapacityLimiter(1)
        self._database = database
        self._queue: list[_Waiting] = []
        self._committing = False

    async def write(self, mine: _Waiting) -> Any:
        await trio.lowlevel.checkpoint_if_cancelled()
        self._queue.append(mine)
        with trio.CancelScope(shield=True):
            if self._committing:
                await mine.woken.wait()
            if not mine.settled:
                await self._lead()
        if mine.error is not None:
            raise mine.error
        return mine.result

    async def _lead(self) -> None:
        """Commit the queued changes, then hand leadership to the first change that arrived meanwhile."""
        self._committing = True
        batch, self._queue = self._queue[:MAX_SHARED], self._queue[MAX_SHARED:]
        try:
            await trio.to_thread.run_sync(self._commit, batch, limiter=self.limit)
        finally:
            for each in batch:
                each.settled = True
                each.woken.set()
            if self._queue:
                self._queue[0].woken.set()
            else:
                self._committing = False

    def _commit(self, batch: list[_Waiting]) -> None:
        def committed() -> None:
            for each in batch:
                if each.error is None and each.after is not None:
                    each.context.run(each.after, each.result)

        try:
            with self._database.transaction(committed) as connection:
                if len(batch) == 1:
                    self._run(connection, batch[0])
                else:
                    for each in batch:
                        self._apply(connection, each)
        except Exception as error:  # noqa: BLE001  # raised again for the caller of each change
            for each in batch:
                each.error = each.error or (error if each is batch[0] else _copied(error))

    def _run(self, connection: apsw.Connection, each: _Waiting) -> None:
        each.result = each.context.run(each.change, connection)
        if self._database.keeps_keys:
            each.context.run(keyed.mark, connection, each.result, each.answer)

    def _apply(self, connection: apsw.Connection, each: _Waiting) -> None:
        connection.execute("SAVEPOINT one")
        try:
            self._run(connection, each)
        except Exception as error:
            if not connection.in_transaction or isinstance(error, (*DISK, *DAMAGE)):
                # The disk failed, or SQLite rolled back the whole transaction: every change fails.
                raise
            each.error = error
            connection.execute("ROLLBACK TO one")
        connection.execute("RELEASE one")


class Database(DatabaseFile):
    """An open database."""

    version = 0
    """Increases with each commit."""

    @functools.cached_property
    def _writes(self) -> _GroupCommit:
        return _GroupCommit(self)

    # Methods for tasks

    async def write(self, change: Change[T], after: Callable[[T], object] | None = None) -> T:
        """Run `change` in a transaction, possibly shared with other changes; once this returns, it is on disk.

        An exception raised by `change` rolls back its own work and no other change. `after` is called with the result,
        in the same thread, right after the commit and before the next transaction begins.

        Cancellation: before the change is queued, nothing is done; after that, the change completes and this returns.

        Raises:
            DiskFull: nothing was changed.
            Damaged, Unavailable: see `transaction`.
            Whatever `change` raises.
        """
        result: T = await self._writes.write(_Waiting(change, after, None))
        return result

    async def answer(
        self, change: Change[T], shape: Callable[[T], object] | None = None, after: Callable[[T], object] | None = None
    ) -> T:
        """Like `write`, for the one transaction in which a handler takes effect: if the call being served has an
        idempotency key, its answer is stored with the effect.

        Args:
            shape: makes the handler's answer of the result, which otherwise is the answer. It runs in the transaction,
                so the answer may lack what only becomes known later; the handler's own answer then replaces it.
        """
        result: T = await self._writes.write(_Waiting(change, after, shape or _itself))
        return result

    async def read(self, query: Query[T]) -> T:
        """Run `query` on one consistent state of the database; cancelling this interrupts its statement.

        Raises Damaged, Unavailable, DiskFull: see `reader`.
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
        """Run `work` with the writer's connection, outside any transaction, while all other writes wait."""

        def run() -> T:
            with self._turn, self._failures():
                return work(self._opened())

        return await trio.to_thread.run_sync(run, limiter=self._writes.limit)

    async def checkpoint(self) -> bool:
        """Move the log into the database and truncate it. Returns False if a reader still needs the log."""

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
        await trio.to_thread.run_sync(self._close_idle, limiter=self._read_limit)
        await self.exclusive(lambda connection: connection.execute("PRAGMA shrink_memory").fetchall())

    # Methods for worker threads

    @contextlib.contextmanager
    def transaction(self, committed: Callable[[], object] | None = None) -> Iterator[apsw.Connection]:
        """Run a transaction, which is on disk once the block is left. An exception rolls it back.

        `committed` is called right after the commit, before the next transaction begins.

        Raises:
            DiskFull: there was no room for a statement or the commit; nothing was changed.
            Damaged, Unavailable: see `reader`.
        """
        with self._failures(), self._turn:
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # After some errors (such as a full disk), SQLite has already rolled back.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            self.version += 1
            if committed is not None:
                committed()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[apsw.Connection]:
        """Provide a connection that reads one consistent state. Raises the same errors as `reader`."""
        with self.reader() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")


def _itself(result: object) -> object:
    return result


def _copied(error: Exception) -> Exception:
    """Copy an exception for another task, since an exception object has only one traceback."""
    if not isinstance(error, LinckiaError):
        return error
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


def _check_cancelled() -> bool:
    trio.from_thread.check_cancelled()
    return False
