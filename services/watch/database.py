"""The watcher's database: the last known content of every watched folder, the log of changes, and its readers.

State and log change in the same transactions, so after any crash the difference between the state and the folders is
exactly what the log lacks. Names are stored as bytes, since they need not be text. Everything is derived from the
folders: a damaged file is recreated. Sequence numbers start at the clock, in microseconds, so that those of a new file
exceed all old ones and every reader has to rescan.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from proto.errors import Unavailable
from proto.ops.watch import Change, ChangeKind, EntryKind
from services.runtime.database import Database, Kind, Schema
from services.watch.manifest import SCHEMA_VERSION

_TABLES = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;

-- Paths and rules that one or more subscriptions share. The log no longer covers changes up to `floor`.
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

-- A watched folder has parent 0, and its path as name. `born` distinguishes it from another one with the same inode.
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

-- The content of a folder. `child` is set for followed folders. A negative ctime was seen so soon after the change that
-- another change may not show in it.
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


class WatchDatabase:
    """The database and its transactions. Opening blocks."""

    db: apsw.Connection
    """The connection used for writing, within `transaction`."""

    def __init__(self, path: Path, on_rebuilt: Callable[[], object]) -> None:
        """`on_rebuilt` is called on trio's thread if the database was damaged and has been recreated."""
        self.sequence = 0
        """Sequence number of the latest change."""
        self.database = Database(
            path,
            Schema(version=SCHEMA_VERSION, tables=_TABLES, begin=self._begin),
            kind=Kind.DERIVED,
            readers=2,
            pragmas={"cache_size": -32768},
            on_rebuilt=on_rebuilt,
        )

    def _begin(self, db: apsw.Connection) -> None:
        first = max(time.time_ns() // 1000, self.sequence + 1)
        db.execute("INSERT INTO meta VALUES('sequence', ?)", (first,))

    @contextlib.contextmanager
    def transaction(self, generation: int) -> Iterator[apsw.Connection]:
        """Run a transaction: everything within it is durable at the end, or nothing is.

        `generation` is that of the database that the caller works with. Raises the same errors as
        `Database.transaction`.
        """
        before = self.sequence
        try:
            with self.database.transaction() as db:
                if self.database.generation != generation:
                    raise Unavailable("watch: the database was recreated", retry_after_ms=100)
                self.db = db
                self.sequence = before = stored_sequence(db)
                yield db
                if self.sequence != before:
                    db.execute("UPDATE meta SET value=? WHERE key='sequence'", (self.sequence,))
        except BaseException:
            self.sequence = before
            raise


def select(db: apsw.Connection, statement: str, bindings: Sequence[apsw.SQLiteValue] = ()) -> list[tuple[Any, ...]]:
    """Return all rows of a query; each value has the type of its column."""
    return db.execute(statement, bindings).fetchall()


def stored_sequence(db: apsw.Connection) -> int:
    """Return the sequence number of the latest change that is, or was, in the log."""
    ((value,),) = select(db, "SELECT value FROM meta WHERE key='sequence'")
    return int(value)


# The log: written in the transaction that changes the state, read in order, trimmed once it was read.

CREATED, MODIFIED, DELETED, RENAMED = range(4)
_CHANGES = (ChangeKind.CREATED, ChangeKind.MODIFIED, ChangeKind.DELETED, ChangeKind.RENAMED)
_KINDS = (EntryKind.FILE, EntryKind.FOLDER, EntryKind.LINK, EntryKind.OTHER)


class Row(NamedTuple):
    """An entry as it was last seen, as stored in the table `entry`."""

    kind: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    child: int | None


def read(db: apsw.Connection, tree: int, after: int, limit: int) -> list[Change]:
    """Return the changes after a sequence number, oldest first."""
    rows = select(
        db,
        "SELECT sequence, change, kind, path, old_path, size, mtime_ns, inode FROM change"
        " WHERE tree=? AND sequence>? ORDER BY sequence LIMIT ?",
        (tree, after, limit),
    )
    return [
        Change(
            sequence=sequence,
            change=_CHANGES[change],
            path=text_of(path),
            kind=_KINDS[kind],
            size=size,
            mtime_ns=mtime_ns,
            inode=inode,
            old_path=None if old_path is None else text_of(old_path),
            raw_path=_raw(path),
            raw_old_path=None if old_path is None else _raw(old_path),
        )
        for sequence, change, kind, path, old_path, size, mtime_ns, inode in rows
    ]


def text_of(path: bytes) -> str:
    """Return a path in readable form."""
    return path.decode("utf-8", "replace")


def _raw(path: bytes) -> bytes | None:
    """Return the bytes of a path that is not valid text, otherwise None."""
    return None if text_of(path).encode() == path else path


def trim(db: apsw.Connection, tree: int, keep: int) -> None:
    """Delete changes that all readers have processed, and all but the newest `keep` of the others; requires a
    transaction."""
    ((read_to,),) = select(db, "SELECT coalesce(min(acknowledged), 0) FROM subscription WHERE tree=?", (tree,))
    oldest = select(
        db, "SELECT sequence FROM change WHERE tree=? ORDER BY sequence DESC LIMIT 1 OFFSET ?", (tree, keep)
    )
    upto = max(read_to, oldest[0][0] if oldest else 0)
    db.execute("UPDATE tree SET floor=max(floor, ?) WHERE tree=?", (upto, tree))
    db.execute("DELETE FROM change WHERE tree=? AND sequence<=?", (tree, upto))
