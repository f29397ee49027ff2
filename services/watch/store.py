"""The watcher's database: what every watched folder held when it was last looked at, the log of changes, and who reads
it.

The state and the log change in the same transactions, so after any death what differs between the state and the folders
is exactly what is not in the log. Names are kept as bytes, for a name need not be text. All of it follows from the
folders: a damaged file is begun again. Sequence numbers begin at the clock, in microseconds, so that those of a new
file are above all old ones and every reader is told to rescan.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from linckia.proto.errors import Unavailable
from linckia.proto.ops.watch import Change, ChangeKind, EntryKind
from linckia.services.runtime.database import Database, Kind, Schema
from linckia.services.watch.manifest import SCHEMA_VERSION

_TABLES = """
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
    """The database, and the frame of its transactions. Opening blocks."""

    db: apsw.Connection
    """The connection that writes, within `transaction`."""

    def __init__(self, path: Path, on_rebuilt: Callable[[], object]) -> None:
        """`on_rebuilt` is called on trio's thread when the database was found damaged and begun again."""
        self.sequence = 0
        """Of the latest change."""
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
        """Everything within is done, and on disk at the end, or nothing is.

        `generation` is of the database that the caller works with. Raises as `Database.transaction`.
        """
        before = self.sequence
        try:
            with self.database.transaction() as db:
                if self.database.generation != generation:
                    raise Unavailable("watch: the database was begun again", retry_after_ms=100)
                self.db = db
                self.sequence = before = stored_sequence(db)
                yield db
                if self.sequence != before:
                    db.execute("UPDATE meta SET value=? WHERE key='sequence'", (self.sequence,))
        except BaseException:
            self.sequence = before
            raise


def select(db: apsw.Connection, statement: str, bindings: Sequence[apsw.SQLiteValue] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query, each value of the type that its column has."""
    return db.execute(statement, bindings).fetchall()


def stored_sequence(db: apsw.Connection) -> int:
    """Of the latest change that is in the log, or was."""
    ((value,),) = select(db, "SELECT value FROM meta WHERE key='sequence'")
    return int(value)


# The log: written in the transaction that changes the state, read in order, cut where it was read.

CREATED, MODIFIED, DELETED, RENAMED = range(4)
_CHANGES = (ChangeKind.CREATED, ChangeKind.MODIFIED, ChangeKind.DELETED, ChangeKind.RENAMED)
_KINDS = (EntryKind.FILE, EntryKind.FOLDER, EntryKind.LINK, EntryKind.OTHER)


class Row(NamedTuple):
    """An entry as it was last seen, as the table `entry` holds it."""

    kind: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    child: int | None


def read(db: apsw.Connection, tree: int, after: int, limit: int) -> list[Change]:
    """The changes after a number, oldest first."""
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
    """A path as people read it."""
    return path.decode("utf-8", "replace")


def _raw(path: bytes) -> bytes | None:
    """The bytes of a path that is no text."""
    return None if text_of(path).encode() == path else path


def trim(db: apsw.Connection, tree: int, keep: int) -> None:
    """Cut what all readers have dealt with, and of the rest all but the newest `keep`; within a transaction."""
    ((read_to,),) = select(db, "SELECT coalesce(min(acknowledged), 0) FROM subscription WHERE tree=?", (tree,))
    oldest = select(
        db, "SELECT sequence FROM change WHERE tree=? ORDER BY sequence DESC LIMIT 1 OFFSET ?", (tree, keep)
    )
    upto = max(read_to, oldest[0][0] if oldest else 0)
    db.execute("UPDATE tree SET floor=max(floor, ?) WHERE tree=?", (upto, tree))
    db.execute("DELETE FROM change WHERE tree=? AND sequence<=?", (tree, upto))
