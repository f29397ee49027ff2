"""The open databases: one writer, a few readers, each used by one thread at a time.

What `write` returned is on disk (`synchronous=FULL`).  Changes that wait while another is being written go into one
transaction, each undone alone if it fails, so that many small writes share one fsync.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import apsw
import trio

from proto.memory import give_memory_back
from services.documents.store import globs, schema
from services.runtime.readers import Readers
from services.runtime.sqlite_files import let_pages_go, size_bytes

T = TypeVar("T")
Change = Callable[[apsw.Connection], T]

READERS = 4
BUSY_TIMEOUT_MS = 10_000
CHECKPOINT_PAGES = 65_536
"""256 MB of log: what a bulk add writes is moved into the database after it (`tidy`), each page once."""

TIDY_FROM_BYTES = 4 * 1024 * 1024

_log = logging.getLogger("linckia.documents")


@dataclass(slots=True)
class _Waiting(Generic[T]):
    change: Change[T]
    done: trio.Event = field(default_factory=trio.Event)
    result: list[T] = field(default_factory=list)
    error: BaseException | None = None


class Store:
    """The packs, and beside them the index."""

    def __init__(self, folder: Path) -> None:
        """Open the databases in `folder`, or begin them.

        Raises:
            apsw.Error, OSError: the packs can neither be opened nor begun.
        """
        self.packs_path = folder / "packs.db"
        self.index_path = folder / "index.db"
        self.indexing_anew = False
        self._writer = _open_packs(self.packs_path)
        self.epoch = str(_one(self._writer, "SELECT value FROM setting WHERE name='epoch'"))
        self._index_writer = self._open_index()
        self._readers = Readers(self._reader)
        self._write_turn = trio.CapacityLimiter(1)
        self._read_turn = trio.CapacityLimiter(READERS)
        self._index_turn = trio.CapacityLimiter(1)
        self._queue: list[_Waiting[object]] = []
        self._writing = False

    async def write(self, change: Change[T]) -> T:
        """Run `change` in a transaction; once this returns, it is on disk.

        An exception out of `change` undoes all of it.  Not interrupted by cancellation once it has begun.
        """
        await trio.lowlevel.checkpoint()
        waiting: _Waiting[T] = _Waiting(change)
        # A list of one type of result each: whoever waits takes out what it put in.
        self._queue.append(waiting)  # type: ignore[arg-type]  # Waiting is invariant, and each is read by its own only
        if self._writing:
            with trio.CancelScope(shield=True):
                await waiting.done.wait()
        else:
            self._writing = True
            try:
                with trio.CancelScope(shield=True):
                    while self._queue:
                        batch, self._queue = self._queue, []
                        await trio.to_thread.run_sync(self._run, batch, limiter=self._write_turn)
                        for one in batch:
                            one.done.set()
            finally:
                self._writing = False
        if waiting.error is not None:
            raise waiting.error
        return waiting.result[0]

    def _run(self, batch: list[_Waiting[object]]) -> None:
        connection = self._writer
        try:
            connection.execute("BEGIN IMMEDIATE")
            for one in batch:
                connection.execute("SAVEPOINT one")
                try:
                    one.result.append(one.change(connection))
                except Exception as error:
                    connection.execute("ROLLBACK TO one")
                    one.error = error
                connection.execute("RELEASE one")
            connection.execute("COMMIT")
        except Exception as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            for one in batch:
                one.error = one.error or error

    async def read(self, query: Callable[[apsw.Connection], T]) -> T:
        """Run `query` on one consistent state of the packs, with the index attached as `idx`."""

        def snapshot() -> T:
            with self._readers.one() as connection:
                connection.execute("BEGIN")
                try:
                    return query(connection)
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")

        return await trio.to_thread.run_sync(snapshot, limiter=self._read_turn)

    async def write_index(self, change: Change[T]) -> T:
        """Run `change` in a transaction of the index; once this returns it is on disk, so that an outbox may be
        struck: what was lost of the index after that would never be missed."""

        def run() -> T:
            connection = self._index_writer
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = change(connection)
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            return result

        return await trio.to_thread.run_sync(run, limiter=self._index_turn)

    async def tidy(self) -> None:
        """Move long logs into the databases, so that they take no room twice; passed over while somebody reads.

        After so much work the memory that it took is given back as well.
        """

        def truncate(connection: apsw.Connection) -> None:
            connection.set_busy_timeout(0)
            try:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                connection.execute("PRAGMA shrink_memory").fetchall()
            except apsw.BusyError:
                return
            finally:
                connection.set_busy_timeout(BUSY_TIMEOUT_MS)

        worked = False
        for path, connection, turn in (
            (self.packs_path, self._writer, self._write_turn),
            (self.index_path, self._index_writer, self._index_turn),
        ):
            log = path.with_name(path.name + "-wal")
            if log.exists() and log.stat().st_size > TIDY_FROM_BYTES:
                await trio.to_thread.run_sync(truncate, connection, limiter=turn)
                worked = True
        if worked:
            # The reader that is used the most: it is the last that was put back.
            await self.read(lambda db: db.execute("PRAGMA shrink_memory").fetchall())
            await trio.to_thread.run_sync(give_memory_back)

    async def give_back(self) -> None:
        """Let the pages go that the connections keep, and all connections that are there to read at the same time."""
        await trio.to_thread.run_sync(self._readers.give_back, limiter=self._read_turn)
        await trio.to_thread.run_sync(let_pages_go, self._writer, limiter=self._write_turn)
        await trio.to_thread.run_sync(let_pages_go, self._index_writer, limiter=self._index_turn)

    def size_bytes(self) -> int:
        """Of the databases with their logs."""
        return size_bytes(self.packs_path, self.index_path)

    def close(self) -> None:
        self._readers.close()
        self._index_writer.close()
        self._writer.close()

    def _reader(self) -> apsw.Connection:
        connection = _connect(self.packs_path)
        connection.execute("ATTACH ? AS idx", (str(self.index_path),))
        return connection

    def _open_index(self) -> apsw.Connection:
        """The index of these packs; one that is damaged, or of others, is begun anew."""
        for attempt in range(2):
            try:
                connection = _connect(self.index_path)
                try:
                    if _one(connection, "PRAGMA user_version") == 0:
                        # First what is to come into it, then the index itself: killed between the two, the next start
                        # finds none and does both again.
                        self._writer.execute(
                            "INSERT OR IGNORE INTO graph_outbox(document) SELECT id FROM document ORDER BY id"
                        )
                        self._writer.execute(
                            "INSERT OR IGNORE INTO index_outbox(object)"
                            " SELECT id FROM object WHERE text_state IN (1, 2)"
                        )
                        _create(
                            connection,
                            f"{schema.INDEX}; INSERT INTO setting VALUES('epoch', '{self.epoch}')",
                            schema.INDEX_VERSION,
                        )
                        self.indexing_anew = attempt > 0
                    mine = _one(connection, "SELECT (SELECT value FROM setting WHERE name='epoch')") == self.epoch
                    version = _one(connection, "PRAGMA user_version") == schema.INDEX_VERSION
                    if mine and version:
                        return connection
                    reason = "of another store" if not mine else "of another version of this program"
                except BaseException:
                    connection.close()
                    raise
                connection.close()
            except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError) as error:
                reason = str(error)
            _log.error("%s: %s; it is built anew", self.index_path, reason)
            for suffix in ("", "-wal", "-shm"):
                self.index_path.with_name(self.index_path.name + suffix).unlink(missing_ok=True)
        raise apsw.CorruptError(f"{self.index_path} can neither be opened nor begun anew")


def _one(connection: apsw.Connection, query: str) -> object:
    return connection.execute(query).fetchall()[0][0]


def _connect(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA cache_size=-16384")
    connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}").fetchall()
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.create_scalar_function("path_matches", _path_matches, 2, deterministic=True)
    return connection


def _path_matches(*values: apsw.SQLiteValue) -> int:
    patterns, path = values
    return int(globs.matcher_of(str(patterns))(str(path)))


def _create(connection: apsw.Connection, tables: str, version: int) -> None:
    connection.execute(f"BEGIN IMMEDIATE;{tables};PRAGMA user_version={version};COMMIT").fetchall()


def _open_packs(path: Path) -> apsw.Connection:
    connection = _connect(path)
    try:
        version = _one(connection, "PRAGMA user_version")
        if version == 0:
            epoch = f"{time.time_ns():x}-{secrets.token_hex(8)}"
            _create(
                connection, f"{schema.PACKS}; INSERT INTO setting VALUES('epoch', '{epoch}')", schema.SCHEMA_VERSION
            )
        elif version in schema.UPGRADES:
            _create(connection, schema.UPGRADES[version], schema.SCHEMA_VERSION)
        elif version != schema.SCHEMA_VERSION:
            raise apsw.SQLError(f"{path} was written by another version of this program (schema {version})")
    except BaseException:
        connection.close()
        raise
    return connection
