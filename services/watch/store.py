"""The watcher's database: what every watched folder held when it was last looked at, the log of changes, and who reads
it.

One SQLite file in WAL mode, one writer. The state and the log change in the same transactions, and what `commit`
returned is on disk (`synchronous=FULL`): so after any death, what differs between the state and the folders is exactly
what is not in the log. Names are kept as bytes, for a name need not be text. Sequence numbers begin at the clock, in
microseconds: should the file be lost, new numbers are above all old ones and every reader is told to begin again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from services.runtime.sqlite_files import put_aside, size_bytes, sync_folder

SCHEMA_VERSION = 1

_SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;

-- Paths and rules that one or more subscriptions share. Up to `floor`, the log says nothing any more.
CREATE TABLE tree(
    tree INTEGER PRIMARY KEY AUTOINCREMENT,
    spec TEXT NOT NULL UNIQUE,
    complete INTEGER NOT NULL DEFAULT 0,
    floor INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE subscription(
    caller TEXT NOT NULL,
    name TEXT NOT NULL,
    tree INTEGER NOT NULL,
    since INTEGER NOT NULL,
    acknowledged INTEGER NOT NULL,
    PRIMARY KEY(caller, name)
) WITHOUT ROWID;

-- A watched folder has parent 0, and its path for a name. `born` tells it from another one of the same number.
CREATE TABLE folder(
    folder INTEGER PRIMARY KEY AUTOINCREMENT,
    tree INTEGER NOT NULL,
    parent INTEGER NOT NULL,
    name BLOB NOT NULL,
    device INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    born INTEGER NOT NULL
);
CREATE INDEX folder_parent ON folder(parent);
CREATE INDEX folder_identity ON folder(inode, device);
CREATE INDEX folder_tree ON folder(tree, folder);

-- What a folder held. `child` is set of folders that are followed. A negative ctime was seen so shortly after the
-- change that a further one may not show in it.
CREATE TABLE entry(
    folder INTEGER NOT NULL,
    name BLOB NOT NULL,
    kind INTEGER NOT NULL,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    ctime_ns INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    child INTEGER,
    PRIMARY KEY(folder, name)
) WITHOUT ROWID;

CREATE TABLE change(
    tree INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    change INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    path BLOB NOT NULL,
    old_path BLOB,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    PRIMARY KEY(tree, sequence)
) WITHOUT ROWID;
"""


class Store:
    """The open database. `db` is the one connection that writes; `reader` opens others. All of it blocks."""

    def __init__(self, path: Path) -> None:
        """Open `path`, or begin it.

        Raises:
            apsw.Error, OSError: it can neither be opened nor begun.
        """
        self.path = path
        self.rebuilt = False
        try:
            self.db = _open(path)
        except (apsw.CorruptError, apsw.NotADBError) as error:
            put_aside(path, error)
            self.rebuilt = True
            self.db = _open(path)
        self.sequence = self._stored_sequence()
        """Of the latest change."""

    def _stored_sequence(self) -> int:
        ((value,),) = select(self.db, "SELECT value FROM meta WHERE key='sequence'")
        return int(value)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """Everything within is done, and on disk at the end, or nothing is."""
        self.db.execute("BEGIN IMMEDIATE")
        before = self.sequence
        try:
            yield self.db
            if self.sequence != before:
                self.db.execute("UPDATE meta SET value=? WHERE key='sequence'", (self.sequence,))
            self.db.execute("COMMIT")
        except BaseException:
            self.sequence = before
            # Some errors (a full disk) have rolled back already.
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise

    def reader(self) -> apsw.Connection:
        """A connection of its own for reading; the caller closes it."""
        return _connect(self.path, apsw.SQLITE_OPEN_READONLY)

    def size_bytes(self) -> int:
        """Of the database with its log."""
        return size_bytes(self.path)

    def close(self) -> None:
        """Blocks for the last checkpoint."""
        self.db.close()


def select(db: apsw.Connection, statement: str, bindings: Sequence[apsw.SQLiteValue] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query, each value of the type that its column has."""
    return db.execute(statement, bindings).fetchall()


def _connect(path: Path, flags: int) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=flags, statementcachesize=200)
    connection.set_busy_timeout(10_000)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA cache_size=-32768")
    return connection


def _open(path: Path) -> apsw.Connection:
    fresh = not path.exists()
    connection = _connect(path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA journal_size_limit=67108864")
        ((version,),) = select(connection, "PRAGMA user_version")
        if version == 0:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_SCHEMA)
            connection.execute("INSERT INTO meta VALUES('sequence', ?)", (time.time_ns() // 1000,))
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            connection.execute("COMMIT")
        elif version != SCHEMA_VERSION:
            raise apsw.SchemaChangeError(f"{path} was written by another version of this program (schema {version})")
        if fresh:
            sync_folder(path.parent)
    except BaseException:
        connection.close()
        raise
    return connection


CREATED, MODIFIED, DELETED, RENAMED = range(4)

_INSERT: Final = "INSERT INTO change VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)"


class Row(NamedTuple):
    """An entry as it was last seen; `child` is the number of a folder that is followed.

    A negative `ctime_ns` was seen so shortly after the change that a further one may not show in it.
    """

    kind: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    child: int | None


class Logged(NamedTuple):
    """A change as it is stored."""

    sequence: int
    change: int
    kind: int
    path: bytes
    old_path: bytes | None
    size: int
    mtime_ns: int
    inode: int


def append(store: Store, tree: int, change: int, row: Row, path: bytes, old_path: bytes | None = None) -> None:
    """Add a change; within a transaction."""
    store.sequence += 1
    size, mtime_ns = (0, 0) if change == DELETED else (row.size, row.mtime_ns)
    store.db.execute(_INSERT, (tree, store.sequence, change, row.kind, path, old_path, size, mtime_ns, row.inode))


def read(db: apsw.Connection, tree: int, after: int, limit: int) -> list[Logged]:
    """The changes after a number, oldest first."""
    rows = select(
        db,
        "SELECT sequence, change, kind, path, old_path, size, mtime_ns, inode FROM change"
        " WHERE tree=? AND sequence>? ORDER BY sequence LIMIT ?",
        (tree, after, limit),
    )
    return [Logged(*row) for row in rows]


def trim(db: apsw.Connection, tree: int, keep: int) -> None:
    """Cut what all readers have dealt with, and of the rest all but the newest `keep`; within a transaction."""
    ((read_to,),) = select(db, "SELECT coalesce(min(acknowledged), 0) FROM subscription WHERE tree=?", (tree,))
    oldest = select(
        db, "SELECT sequence FROM change WHERE tree=? ORDER BY sequence DESC LIMIT 1 OFFSET ?", (tree, keep)
    )
    upto = max(read_to, oldest[0][0] if oldest else 0)
    db.execute("UPDATE tree SET floor=max(floor, ?) WHERE tree=?", (upto, tree))
    db.execute("DELETE FROM change WHERE tree=? AND sequence<=?", (tree, upto))
