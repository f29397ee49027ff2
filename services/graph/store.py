"""The graph's database: one SQLite file in WAL mode, one writer and several readers, all in worker threads.

What `write` returned is on disk (`synchronous=FULL`). Names become small numbers once, so that an edge is three of
them: `edge` is a B-tree by source and its index one by target, and a step in either direction is one look-up. The file
follows from what the corpora state: one that is damaged is put aside and begun anew under another epoch, which tells
them to feed it from the beginning.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio

from services.runtime.readers import Readers
from services.runtime.sqlite_files import let_pages_go, put_aside, size_bytes, sync_folder

T = TypeVar("T")

VERSION = 1
READERS = 4

_SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE corpus(corpus_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, behind INTEGER NOT NULL DEFAULT 0);
CREATE TABLE kind(kind_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);

-- One that is not known is only pointed to.
CREATE TABLE node(
    node_id INTEGER PRIMARY KEY,
    corpus_id INTEGER NOT NULL,
    id TEXT NOT NULL,
    known INTEGER NOT NULL DEFAULT 0,
    label TEXT NOT NULL DEFAULT '',
    source TEXT NOT NULL DEFAULT '',
    UNIQUE(corpus_id, id)
);

CREATE TABLE edge(
    src INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    dst INTEGER NOT NULL,
    PRIMARY KEY(src, kind, dst)
) WITHOUT ROWID;
CREATE INDEX edge_reverse ON edge(dst, kind, src);
"""

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Store:
    """The open database; opening blocks."""

    def __init__(self, path: Path) -> None:
        """Open `path`, or begin it.

        Raises:
            sqlite3.Error, OSError: it can neither be opened nor begun.
        """
        self.path = path
        self.rebuilt = False
        self.version = 0
        """Rises with each commit."""
        try:
            self._writer = _open(path)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGE:
                raise
            put_aside(path, error)
            self.rebuilt = True
            self._writer = _open(path)
        self.epoch = str(self._writer.execute("SELECT value FROM meta WHERE key='epoch'").fetchone()[0])
        self._readers = Readers(lambda: _connect(path))
        self._write_turn = trio.CapacityLimiter(1)
        self._read_turn = trio.CapacityLimiter(READERS)

    async def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run `change` in one transaction; once this returns, it is on disk.

        An exception out of `change` undoes all of it. Not interrupted by cancellation once it has begun.
        """

        def transaction() -> T:
            connection = self._writer
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = change(connection)
                connection.execute("COMMIT")
            except BaseException:
                # Some errors (a full disk) have rolled back already.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            self.version += 1
            return result

        return await trio.to_thread.run_sync(transaction, limiter=self._write_turn)

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run `query` on one consistent state of the database."""

        def snapshot() -> T:
            with self._readers.one() as connection:
                connection.execute("BEGIN")
                try:
                    return query(connection)
                finally:
                    connection.execute("ROLLBACK")

        return await trio.to_thread.run_sync(snapshot, limiter=self._read_turn)

    async def give_back(self) -> None:
        """Let the pages go that the connections keep, and all connections that are there to read at the same time."""
        await trio.to_thread.run_sync(self._readers.give_back, limiter=self._read_turn)
        await trio.to_thread.run_sync(let_pages_go, self._writer, limiter=self._write_turn)

    def size_bytes(self) -> int:
        """Of the database with its log."""
        return size_bytes(self.path)

    def close(self) -> None:
        """Close all connections; blocks for the last checkpoint."""
        self._readers.close()
        self._writer.close()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=10)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA cache_size=-65536")
    connection.execute("PRAGMA mmap_size=1073741824")
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
            connection.execute("INSERT INTO meta VALUES('epoch', ?)", (uuid.uuid4().hex,))
        elif version != VERSION:
            raise sqlite3.NotSupportedError(f"{path} was written by another version of this program (schema {version})")
        if connection.execute("SELECT 1 FROM meta WHERE key='epoch'").fetchone() is None:
            # Killed between the tables and their first row.
            connection.execute("INSERT INTO meta VALUES('epoch', ?)", (uuid.uuid4().hex,))
        if fresh:
            sync_folder(path.parent)
    except BaseException:
        connection.close()
        raise
    return connection
