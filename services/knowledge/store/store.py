"""The database of notes: one SQLite file in WAL mode, one writer, two readers.

What `write` returned is on disk (`synchronous=FULL`).  The file can be rebuilt from the notes themselves, all but the
ids that were given; one that is damaged is put aside and begun anew, and `rebuilt` says so.
"""

from __future__ import annotations

import apsw
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio

from services.runtime.readers import Readers
from services.runtime.sqlite_files import let_pages_go, put_aside, size_bytes

T = TypeVar("T")

SCHEMA_VERSION = 2
READERS = 2

_SCHEMA = """
CREATE TABLE setting(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- A note.  Without a hash it was only found yet, or must be put again; the stamp (size to inode) is then of no account.
CREATE TABLE node(
    id TEXT PRIMARY KEY,
    root TEXT NOT NULL,
    path TEXT NOT NULL,
    hash TEXT,
    lead INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL DEFAULT 0,
    mtime_ns INTEGER NOT NULL DEFAULT 0,
    ctime_ns INTEGER NOT NULL DEFAULT 0,
    inode INTEGER NOT NULL DEFAULT 0,
    title TEXT NOT NULL DEFAULT '',
    date REAL,
    tags TEXT NOT NULL DEFAULT '[]',
    problem TEXT,
    UNIQUE(root, path)
);

-- Ids whose text is still to be taken out of the search.
CREATE TABLE leaving(id TEXT PRIMARY KEY) WITHOUT ROWID;

-- Ids that were notes once, so that asking for one says which file is gone.
CREATE TABLE departed(id TEXT PRIMARY KEY, path TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;

-- What a note answers to; the lower rank comes first.
CREATE TABLE name(key TEXT NOT NULL, rank INTEGER NOT NULL, id TEXT NOT NULL, PRIMARY KEY(key, rank, id)) WITHOUT ROWID;
CREATE INDEX name_id ON name(id);

-- A reference; an edge where dst is known.  A fixed one points to a bare name, be there such a note or not.
CREATE TABLE edge(
    src TEXT NOT NULL,
    position INTEGER NOT NULL,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    other_key TEXT NOT NULL,
    fixed INTEGER NOT NULL,
    dst TEXT,
    PRIMARY KEY(src, position)
) WITHOUT ROWID;
CREATE INDEX edge_key ON edge(key);
CREATE INDEX edge_other_key ON edge(other_key) WHERE other_key <> '';
CREATE INDEX edge_dst ON edge(dst) WHERE dst IS NOT NULL;
"""

# Of version 2.  Triggers, so that no way to change a note or an edge can forget to tell.
_GRAPH_OUTBOX = """
-- Notes whose state the graph has still to be told.  A note that changes meanwhile gets a new number.
CREATE TABLE graph_outbox(number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE);

CREATE TRIGGER node_arrives AFTER INSERT ON node BEGIN
    INSERT OR REPLACE INTO graph_outbox(id) VALUES(NEW.id);
END;
CREATE TRIGGER node_departs AFTER DELETE ON node BEGIN
    INSERT OR REPLACE INTO graph_outbox(id) VALUES(OLD.id);
END;
CREATE TRIGGER node_changes AFTER UPDATE OF title, root, path ON node
WHEN (OLD.title, OLD.root, OLD.path) IS NOT (NEW.title, NEW.root, NEW.path) BEGIN
    INSERT OR REPLACE INTO graph_outbox(id) VALUES(NEW.id);
END;
CREATE TRIGGER edge_arrives AFTER INSERT ON edge WHEN NEW.dst IS NOT NULL BEGIN
    INSERT OR REPLACE INTO graph_outbox(id) VALUES(NEW.src);
END;
CREATE TRIGGER edge_departs AFTER DELETE ON edge WHEN OLD.dst IS NOT NULL BEGIN
    INSERT OR REPLACE INTO graph_outbox(id) VALUES(OLD.src);
END;
CREATE TRIGGER edge_changes AFTER UPDATE OF dst ON edge WHEN OLD.dst IS NOT NEW.dst BEGIN
    INSERT OR REPLACE INTO graph_outbox(id) VALUES(NEW.src);
END;

INSERT INTO graph_outbox(id) SELECT id FROM node;
"""


class Store:
    """The open database."""

    def __init__(self, path: Path) -> None:
        """Open `path`, or begin it.

        Raises:
            sqlite3.Error, OSError: it can neither be opened nor begun.
        """
        self.path = path
        self.rebuilt = False
        try:
            self._writer = _open(path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and path.exists() and not _is_damaged(error):
                raise
            put_aside(path, error)
            self.rebuilt = True
            self._writer = _open(path)
        self._readers = Readers(lambda: _connect(path))
        self._write_turn = trio.CapacityLimiter(1)
        self._read_turn = trio.CapacityLimiter(READERS)

    async def write(self, change: Callable[[apsw.Connection], T]) -> T:
        """Run `change` in one transaction; once this returns, it is on disk.

        An exception out of `change` undoes all of it.  Not interrupted by cancellation once it has begun.
        """

        def transaction() -> T:
            connection = self._writer
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = change(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return result

        return await trio.to_thread.run_sync(transaction, limiter=self._write_turn)

    async def read(self, query: Callable[[apsw.Connection], T]) -> T:
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
        self._readers.close()
        self._writer.close()


def _is_damaged(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _connect(path: Path) -> apsw.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA cache_size=-16384")
    return connection


def _open(path: Path) -> apsw.Connection:
    connection = _connect(path)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript(
                f"BEGIN IMMEDIATE;{_SCHEMA}{_GRAPH_OUTBOX}PRAGMA user_version={SCHEMA_VERSION};COMMIT"
            )
        elif version == 1:
            connection.executescript(f"BEGIN IMMEDIATE;{_GRAPH_OUTBOX}PRAGMA user_version={SCHEMA_VERSION};COMMIT")
        elif version != SCHEMA_VERSION:
            raise sqlite3.NotSupportedError(f"{path} was written by another version of this program (schema {version})")
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
    except BaseException:
        connection.close()
        raise
    return connection
