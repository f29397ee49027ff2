"""The log of changes: written in the transaction that changes the state, read in order, cut where it was read."""

from __future__ import annotations

from typing import Final, NamedTuple

import apsw

from services.watch.snapshot import Row
from services.watch.store import Store, select

CREATED, MODIFIED, DELETED, RENAMED = range(4)

_INSERT: Final = "INSERT INTO change VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)"


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
