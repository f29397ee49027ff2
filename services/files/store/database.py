"""The service's database, `files.db`: the tree, and the objects that clients create.

The tree is derived from the disk; resource sets, plans, sources, queries and the trash are not. They share a file
because they change together: an entry leaves its sets in the transaction that removes it. So a damaged file is set
aside and recreated. The transaction that creates the new one copies everything readable from the old one, lists the
trash from its notes, and continues ids above any that an earlier database may have assigned.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import apsw
import msgspec
import trio

from proto.errors import Unavailable
from services.files import paths
from services.files.store import schema, sql
from services.files.store.sql import fetch_all
from services.runtime.database import Database, Kind, Schema, copies, sync_folder
from services.runtime.handlers import Environment
from services.runtime.storage import retry_when_full

PRAGMAS = {"cache_size": -65536, "mmap_size": 1 << 30, "wal_autocheckpoint": 8000, "recursive_triggers": 1}

RECENT_NS = 60_000_000_000
"""A file set aside longer ago than this has already been replaced by another one."""

TAKEN_OVER = (
    "resource_set", "edge", "session_preference", "saved_query", "follow", "source", "plan", "execution",
    "classifier_job", "intent", "trash", "trash_member", "history", "job",
)  # fmt: skip
"""Tables to copy: all but the tree, which the disk provides, and set members, which refer to it by id."""

_log = logging.getLogger("linckia.files")


def open_database(path: Path, on_rebuilt: Callable[[], object] | None = None) -> Database:
    """Open or create the database at `path`; blocks. `on_rebuilt` is called on trio's thread if the database is
    recreated while in use. Raises OSError or apsw.CantOpenError if it can be neither opened nor created."""
    tables = Schema(schema.VERSION, schema.TABLES, {1: _migrate_1, 2: _migrate_2}, begin=_begin, keeps=True)
    return Database(
        path, tables, kind=Kind.DERIVED, pragmas=PRAGMAS, setup=sql.register, on_rebuilt=on_rebuilt, keeps_keys=True
    )


async def steadily(env: Environment, name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Like `retry_when_full`, but if the database is damaged and recreated, run `work` again on the new one."""
    while True:
        try:
            await retry_when_full(env, name, work)
        except Unavailable as error:
            await trio.sleep((error.failure.retry_after_ms or 0) / 1000)
        else:
            return


def _migrate_1(db: apsw.Connection) -> None:
    """Migrate from version 1, which reused the ids of deleted sets and had no notes in the trash. Raises OSError."""
    path = Path(db.filename)
    _migrate_2(db)
    db.execute(
        "DROP VIEW node; CREATE TABLE old_set AS SELECT * FROM resource_set; DROP TABLE resource_set;"
        f"{schema.TABLES}"
        "INSERT INTO resource_set(id, name, description, created, updated)"
        " SELECT id, name, description, created, updated FROM old_set; DROP TABLE old_set"
    ).fetchall()
    _write_notes(db, path.parent / "trash")
    _mark_of(path).touch()


def _migrate_2(db: apsw.Connection) -> None:
    """Migrate from version 2, in which no directory was collapsed into one row; the rules apply from the next scan
    on."""
    for table, column in (
        ("folder", "rows INTEGER NOT NULL DEFAULT 0"),
        ("job", "rows INTEGER"),
        ("job", "wholes TEXT"),
    ):
        if column.partition(" ")[0] not in {row[1] for row in fetch_all(db, f"PRAGMA table_info({table})")}:
            db.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
    db.execute(schema.TABLES).fetchall()


# Recreating the database


def _begin(db: apsw.Connection) -> None:
    """Fill newly created tables, in the same transaction. Raises apsw.FullError if there is no room for the mark that a
    database was created here."""
    path = Path(db.filename)
    aside = copies.damaged_files(path)
    if aside and int(aside[-1].name.rpartition("-")[2]) > time.time_ns() - RECENT_NS:
        _take_over(db, aside[-1])
    _fill_trash(db, path.parent / "trash")
    mark = _mark_of(path)
    if mark.exists():
        # Ids continue from the clock in milliseconds, which is higher than any assigned before.
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


def _mark_of(path: Path) -> Path:
    """Return the path of the mark that a database was created at `path` before."""
    return path.with_name(f"{path.name}-begun")


def _take_over(db: apsw.Connection, aside: Path) -> None:
    lost = [*TAKEN_OVER]
    roots: list[tuple[str]] = []
    try:
        with copies.open_damaged(aside) as old:
            lost = [table for table in TAKEN_OVER if not _copy(db, old, table)]
            if not _copy_members(db, old):
                lost.append("member")
            roots, complete = copies.read_intact(old, "SELECT root FROM scan", "root")
            if not complete:
                lost.append("scan")
    except apsw.Error as error:
        _log.error("cannot read anything from %s: %s", aside, error)
    finally:
        if lost:
            _write_loss(Path(db.filename), aside, lost)
    _adapt(db, [str(root) for (root,) in roots])


def _write_loss(path: Path, aside: Path, lost: Sequence[str]) -> None:
    said = (
        f"{path} was damaged and has been recreated with incomplete tables: {', '.join(lost)}. Whatever could be read"
        f" is available. To recover the rest: sqlite3 {aside} .recover; remove {aside.name} to dismiss this message"
    )
    _log.error("%s", said)
    try:
        _loss_of(path).write_text(said)
    except OSError as error:
        raise apsw.FullError(f"{_loss_of(path)} cannot be written: {os.strerror(error.errno or 0)}") from error


def _loss_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-lost")


def loss(path: Path) -> str:
    """Describe what a damaged database lost and what to do about it; blocks. Empty if nothing was lost, or once the
    file set aside has been removed."""
    if not copies.damaged_files(path):
        _loss_of(path).unlink(missing_ok=True)
        return ""
    return _loss_of(path).read_text() if _loss_of(path).exists() else ""


def _copy(db: apsw.Connection, old: apsw.Connection, table: str) -> bool:
    """Copy a table. Returns True if all rows could be read."""
    new = [column[1] for column in fetch_all(db, f"PRAGMA table_info({table})")]
    there = {column[1] for column in fetch_all(old, f"PRAGMA table_info({table})")}
    columns = [column for column in new if column in there]
    if not columns:
        return False
    names, marks = ", ".join(columns), ",".join("?" * len(columns))
    rows, complete = copies.read_intact(old, f"SELECT {names} FROM {table}", "1")
    db.executemany(f"INSERT OR IGNORE INTO {table}({names}) VALUES({marks})", rows)
    return complete


def _copy_members(db: apsw.Connection, old: apsw.Connection) -> bool:
    """Copy set members by path; they rejoin their sets once they are indexed again."""
    query = (
        "SELECT f.path || e.name, m.set_id, m.added FROM member m JOIN entry e ON e.id = m.entry_id"
        " JOIN folder f ON f.id = e.parent"
    )
    rows, complete = copies.read_intact(old, query, "m.set_id DESC, m.entry_id")
    db.executemany("INSERT OR IGNORE INTO trash_member VALUES(0, ?, ?, ?, '')", rows)
    return complete


def _adapt(db: apsw.Connection, roots: list[str]) -> None:
    """Reset everything that refers to the old tree."""
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
        if not paths.is_within(root, wanted):
            wanted.append(root)
    db.executemany(
        "INSERT INTO job(root, status, attempt, background, force, created, rows) VALUES(?, 'pending', 0, 1, 1, ?,"
        " (SELECT rows FROM job WHERE root = ? ORDER BY id DESC LIMIT 1))",
        ((root, now, root) for root in wanted),
    )


# Trash items describe themselves: next to the item `7` is `7.json`, written before the item is moved there. The table
# `trash` serves clients; it is rebuilt from these notes if the database is lost.


class Note(msgspec.Struct, frozen=True):
    """The note of one trash item; its fields are columns of `trash`."""

    path: str
    kind: int
    size: int
    deleted: int


def write_note(trash: Path, id_: int, note: Note) -> None:
    """Write a note; its name is durable once the trash folder is synced. Raises OSError."""
    temporary = trash / f"{id_}.json.new"
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(note))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(trash / f"{id_}.json")


def remove_note(trash: Path, id_: int) -> None:
    """Remove the note of an item that has left the trash. Notes without an item are ignored, so failures do not
    matter."""
    for name in (f"{id_}.json", f"{id_}.json.new"):
        with contextlib.suppress(OSError):
            (trash / name).unlink()


def _fill_trash(db: apsw.Connection, trash: Path) -> None:
    """Add every trash item that has a note to the table."""
    for path in trash.glob("*.json"):
        if path.stem.isdecimal() and os.path.lexists(trash / path.stem):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                note = msgspec.json.decode(path.read_bytes(), type=Note)
                db.execute(
                    "INSERT OR REPLACE INTO trash(id, path, kind, size, deleted) VALUES(?,?,?,?,?)",
                    (int(path.stem), note.path, note.kind, note.size, note.deleted),
                )


def _write_notes(db: apsw.Connection, trash: Path) -> None:
    """Write notes for all items in the table. Raises OSError."""
    rows = fetch_all(db, "SELECT id, path, kind, size, deleted FROM trash")
    for id_, path, kind, size, deleted in rows:
        if os.path.lexists(trash / str(id_)):
            write_note(trash, id_, Note(path, kind, size, deleted))
    if rows:
        sync_folder(trash)
