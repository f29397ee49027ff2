"""The database of conversations: one SQLite file in WAL mode, one writer that commits for many, several readers.

What `write` returned is on disk (`synchronous=FULL`). Changes that arrive while a commit is under way share the next
one: an fsync costs milliseconds, and a hundred clients need not pay for a hundred. This is the only copy of what was
said, so a damaged file is never put aside: the service says what is wrong with it and does not start.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import trio

from proto.errors import OperationError, Unavailable
from services.runtime.readers import Readers
from services.runtime.sqlite_files import size_bytes, sync_folder

T = TypeVar("T")

VERSION = 1
READERS = 4

MAX_SHARED = 512
"""Changes in one transaction; more would make the first of them wait."""

_SCHEMA = """
-- A message. One that is gone has lost its content and keeps its place, because others follow it.
CREATE TABLE node(
    node_id INTEGER PRIMARY KEY AUTOINCREMENT,
    hash BLOB NOT NULL UNIQUE,
    parent INTEGER REFERENCES node(node_id),
    root INTEGER,
    depth INTEGER NOT NULL,
    -- See hashing.projection.
    projection BLOB NOT NULL,
    -- Whether a model said it, as against a client that repeats what it said.
    reply INTEGER NOT NULL DEFAULT 0,
    gone INTEGER NOT NULL DEFAULT 0,
    -- Whether there is any text to find it by.
    found INTEGER NOT NULL DEFAULT 0,
    role TEXT NOT NULL,
    content BLOB NOT NULL,
    model TEXT NOT NULL,
    provider TEXT NOT NULL,
    agent TEXT NOT NULL,
    project TEXT NOT NULL,
    at REAL NOT NULL,
    stop_reason TEXT NOT NULL DEFAULT '',
    usage TEXT NOT NULL DEFAULT '',
    thinking TEXT NOT NULL DEFAULT '',
    prompt_id INTEGER
);
CREATE INDEX node_parent ON node(parent);
CREATE INDEX node_projection ON node(projection);
CREATE INDEX node_found ON node(found) WHERE found;
CREATE INDEX node_prompt ON node(prompt_id) WHERE prompt_id IS NOT NULL;

CREATE TABLE prompt(prompt_id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, text TEXT NOT NULL);

-- Hashes whose content is not to come back.
CREATE TABLE barred(projection BLOB PRIMARY KEY) WITHOUT ROWID;

-- What the search has still to be told: a node to put, or, without one, a hash to drop.
CREATE TABLE outbox(
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    node_id INTEGER,
    hash BLOB NOT NULL
);

-- Files that were imported: how far, what their layout has in hand, and which part came last with its answer.
CREATE TABLE source(
    source TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    tail TEXT NOT NULL,
    layout TEXT NOT NULL,
    state BLOB NOT NULL,
    part TEXT NOT NULL,
    answer BLOB NOT NULL,
    -- Nodes of messages that may still grow.
    growing BLOB NOT NULL
) WITHOUT ROWID;
-- Which node a record of a file became, by a digest of the record's own id; 0 where it begins a conversation.
CREATE TABLE record(key BLOB PRIMARY KEY, node_id INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX record_node ON record(node_id);

CREATE TABLE setting(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

Change = Callable[[sqlite3.Connection], Any]


class _Waiting:
    """A change that waits for its transaction."""

    __slots__ = ("change", "done", "error", "result")

    def __init__(self, change: Change) -> None:
        self.change = change
        self.done = trio.Event()
        self.result: object = None
        self.error: BaseException | None = None


class Store:
    """The open database; opening blocks. `begin` before the first `write`."""

    def __init__(self, path: Path) -> None:
        """Open `path`, or begin it.

        Raises:
            OperationError: it is damaged, or was written by a newer version.
            sqlite3.Error, OSError: it can neither be opened nor begun.
        """
        self.path = path
        self._writer = _open(path)
        self._readers = Readers(lambda: _connect(path))
        self._read_turn = trio.CapacityLimiter(READERS)
        self._write_turn = trio.CapacityLimiter(1)
        self._queue: list[_Waiting] = []
        self._has_work = trio.Event()
        self._closing = False
        self._running = False
        self._ended = trio.Event()
        self.commits = 0
        """Transactions so far; fewer than changes, where changes shared one."""
        self.outbox_filled = trio.Event()

    def begin(self, nursery: trio.Nursery) -> None:
        """Let `nursery` run the task that commits.

        Not by `nursery.start`: cancelled in the middle of that, it would wait for the end of a task that only `close`
        ends.
        """
        self._running = True
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        """Commit what `write` hands in, until `close`."""
        try:
            # What was handed in is carried out, also where the service is told to end.
            with trio.CancelScope(shield=True):
                while not (self._closing and not self._queue):
                    if not self._queue:
                        self._has_work = trio.Event()
                        await self._has_work.wait()
                        continue
                    batch, self._queue = self._queue[:MAX_SHARED], self._queue[MAX_SHARED:]
                    await trio.to_thread.run_sync(self._commit, batch, limiter=self._write_turn)
                    self.outbox_filled.set()
                    for waiting in batch:
                        waiting.done.set()
        finally:
            self._ended.set()

    async def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run `change` in a transaction, perhaps with others; once this returns, it is on disk.

        An exception out of `change` undoes what it did, and nothing of the others'. Not taken back by cancellation.

        Raises:
            OperationError: the disk is full or failing; nothing was changed.
            Whatever `change` raises.
        """
        if self._closing:
            raise Unavailable("transcripts: the service is ending", retry_after_ms=1000)
        waiting = _Waiting(change)
        self._queue.append(waiting)
        self._has_work.set()
        await waiting.done.wait()
        if waiting.error is not None:
            raise waiting.error
        return cast("T", waiting.result)

    def _commit(self, batch: list[_Waiting]) -> None:
        db = self._writer
        try:
            db.execute("BEGIN IMMEDIATE")
            for waiting in batch:
                db.execute("SAVEPOINT one")
                try:
                    waiting.result = waiting.change(db)
                except sqlite3.OperationalError:
                    # The disk's fault, not this change's: it is everybody's.
                    raise
                except Exception as error:
                    waiting.error = error
                    db.execute("ROLLBACK TO one")
                db.execute("RELEASE one")
            db.execute("COMMIT")
            self.commits += 1
        except sqlite3.Error as error:
            # Some errors (a full disk) have rolled back already.
            if db.in_transaction:
                db.execute("ROLLBACK")
            failed = OperationError(f"the database of transcripts cannot be written ({error}); nothing was changed")
            failed.__cause__ = error
            for waiting in batch:
                waiting.error = failed

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run `query` on one consistent state of the database.

        Raises:
            OperationError: the database cannot be read.
        """

        def snapshot() -> T:
            with self._readers.one() as db:
                db.execute("BEGIN")
                try:
                    return query(db)
                finally:
                    db.execute("ROLLBACK")

        try:
            return await trio.to_thread.run_sync(snapshot, limiter=self._read_turn)
        except sqlite3.Error as error:
            raise OperationError(f"the database of transcripts cannot be read: {error}") from error

    async def scrub(self) -> bool:
        """Leave nothing of what was deleted in the log: the pages themselves are overwritten as they are freed.

        False where somebody still reads a state of before, and the log has to stay for that.
        """

        def checkpoint() -> bool:
            return not self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]

        return await trio.to_thread.run_sync(checkpoint, limiter=self._write_turn)

    def size_bytes(self) -> int:
        """Of the database with its log."""
        return size_bytes(self.path)

    async def close(self) -> None:
        """Carry out what was handed in, and close."""
        self._closing = True
        self._has_work.set()
        with trio.CancelScope(shield=True):
            if self._running:
                await self._ended.wait()
            await trio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        self._readers.close()
        self._writer.close()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=10)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")
    connection.execute("PRAGMA cache_size=-32768")
    return connection


def _open(path: Path) -> sqlite3.Connection:
    fresh = not path.exists()
    connection = _connect(path)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA journal_size_limit=67108864")
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version == 0:
            connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version={VERSION};COMMIT")
        elif version != VERSION:
            raise OperationError(f"{path} was written by another version of this program (schema {version})")
        if fresh:
            os.chmod(path, 0o600)
            sync_folder(path.parent)
    except BaseException:
        connection.close()
        raise
    return connection
