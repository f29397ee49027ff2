"""The beginning of a database: what can be read of a damaged one is taken over, the trash is listed from its notes, and
no number is given that an earlier database may have given.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

import apsw

from services.files.store import schema, trash_notes
from services.files.store.rows import Row, fetch_all
from services.runtime.database import sync_folder

RECENT_NS = 60_000_000_000
"""A file that was put aside longer ago was replaced by another one before this."""

TAKEN_OVER = (
    "resource_set", "edge", "session_preference", "saved_query", "follow", "source", "plan", "execution",
    "classifier_job", "intent", "trash", "trash_member", "history", "job",
)  # fmt: skip
"""All but the tree, which the disk says again, and the members of sets, which have it by its ids."""

_log = logging.getLogger("linckia.files")


def begin(db: apsw.Connection) -> None:
    """Fill tables that were just created, in their transaction.

    Raises:
        apsw.FullError: there is no room for the mark that a database was begun here.
    """
    path = Path(db.filename)
    aside = _put_aside(path)
    if aside is not None:
        _take_over(db, aside)
    trash_notes.fill(db, path.parent / "trash")
    _begin_numbers(db, path.with_name(f"{path.name}-begun"))


def _put_aside(path: Path) -> Path | None:
    """The damaged database in whose place this one is begun."""
    found = {int(each.name.rpartition("-")[2]): each for each in path.parent.glob(f"{path.name}.damaged-*")}
    newest = max(found, default=0)
    return found[newest] if newest > time.time_ns() - RECENT_NS else None


def _begin_numbers(db: apsw.Connection, mark: Path) -> None:
    """Where a database was begun before, numbers go on with the milliseconds of the clock, which are higher."""
    if mark.exists():
        first = time.time_ns() // 1_000_000
        for table in schema.NUMBERED:
            db.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
            db.execute("INSERT INTO sqlite_sequence VALUES(?,?)", (table, first))
        return
    try:
        mark.touch()
        sync_folder(mark.parent)
    except OSError as error:
        raise apsw.FullError(f"{mark} cannot be created: {os.strerror(error.errno or 0)}") from error


# What can be read of a damaged database


def _take_over(db: apsw.Connection, aside: Path) -> None:
    lost = [*schema.NUMBERED]
    try:
        # Without its log: SQLite must write nothing beside it.
        old = apsw.Connection(f"{aside.as_uri()}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            lost = [table for table in TAKEN_OVER if not _copy(db, old, table)]
            if not _copy_members(db, old):
                lost.append("member")
            roots, complete = _readable(old, "SELECT root FROM scan", "SELECT root FROM scan ORDER BY root DESC")
            if not complete:
                lost.append("scan")
        finally:
            old.close()
    except apsw.Error as error:
        _log.error("nothing can be read of %s: %s", aside, error)
        return
    finally:
        if lost:
            _log.error(
                "%s could not be read completely (%s); what could be is taken over. For the rest: sqlite3 %s .recover",
                aside, ", ".join(lost), aside,
            )  # fmt: skip
    _adapt(db, [str(root) for (root,) in roots])


def _copy(db: apsw.Connection, old: apsw.Connection, table: str) -> bool:
    """Whether all rows could be read."""
    new = [column[1] for column in fetch_all(db, f"PRAGMA table_info({table})")]
    there = {column[1] for column in fetch_all(old, f"PRAGMA table_info({table})")}
    columns = ", ".join(column for column in new if column in there)
    if not columns:
        return False
    query = f"SELECT {columns} FROM {table}"
    rows, complete = _readable(old, query, f"{query} ORDER BY 1 DESC")
    marks = ",".join("?" * len(columns.split(", ")))
    db.executemany(f"INSERT OR IGNORE INTO {table}({columns}) VALUES({marks})", rows)
    return complete


def _copy_members(db: apsw.Connection, old: apsw.Connection) -> bool:
    """Members of sets, by path: they join their sets again once they are in the index again."""
    query = (
        "SELECT f.path || e.name, m.set_id, m.added FROM member m JOIN entry e ON e.id = m.entry_id"
        " JOIN folder f ON f.id = e.parent"
    )
    rows, complete = _readable(old, query, f"{query} ORDER BY m.set_id DESC, m.entry_id DESC")
    db.executemany("INSERT OR IGNORE INTO trash_member VALUES(0, ?, ?, ?, '')", rows)
    return complete


def _readable(old: apsw.Connection, query: str, backwards: str) -> tuple[list[Row], bool]:
    """The rows up to the first page that is damaged, and from behind to the last; whether that is all."""
    rows: list[Row] = []
    for each in (query, backwards):
        try:
            _extend(rows, old.execute(each))
        except apsw.Error as error:
            _log.warning("damaged: %s: %s", query, error)
        else:
            return rows, each is query
    return rows, False


def _extend(rows: list[Row], found: Iterable[Row]) -> None:
    # Not `list.extend`: what was read before an error is kept.
    for row in found:
        rows.append(row)  # see above


def _adapt(db: apsw.Connection, roots: list[str]) -> None:
    """What refers to the tree begins again with it."""
    now = time.time_ns()
    db.execute("UPDATE follow SET sequence = NULL")
    db.execute("UPDATE execution SET after = 0 WHERE status = 'running'")
    active = fetch_all(db, "SELECT DISTINCT root FROM job WHERE status IN ('pending', 'running')")
    db.execute(
        "UPDATE job SET status = 'failed', finished = ?, error = 'the index was damaged, and is being rebuilt'"
        " WHERE status IN ('pending', 'running')",
        (now,),
    )
    wanted: list[str] = []
    for root in sorted({*roots, *(root for (root,) in active)}):
        if not any(root == above or root.startswith(above.rstrip("/") + "/") for above in wanted):
            wanted.append(root)
    db.executemany(
        "INSERT INTO job(root, status, attempt, background, force, created) VALUES(?, 'pending', 0, 1, 1, ?)",
        ((root, now) for root in wanted),
    )


def migrate_1(db: apsw.Connection) -> None:
    """Version 1 gave the numbers of deleted sets again, and had no notes in the trash. Raises OSError."""
    path = Path(db.filename)
    db.execute(
        "CREATE TABLE old_set AS SELECT * FROM resource_set; DROP TABLE resource_set;"
        f"{schema.TABLES}"
        "INSERT INTO resource_set(id, name, description, created, updated)"
        " SELECT id, name, description, created, updated FROM old_set; DROP TABLE old_set"
    ).fetchall()
    trash_notes.write_all(db, path.parent / "trash")
    path.with_name(f"{path.name}-begun").touch()
