"""The database of the service, `files.db`: the tree, and what clients have stored beside it.

The tree is derived from the disk; resource sets, plans, sources, queries and the trash are not. They share a file
because they change together: an entry leaves its sets in the transaction that removes it. So a damaged file is put
aside and begun again. In the transaction that begins it, all that can be read of the old one is taken over, the trash
is listed from its notes, and numbers go on above those that an earlier database may have given.
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

from linckia.proto.errors import Unavailable
from linckia.services.files import paths
from linckia.services.files.store import schema, sql
from linckia.services.files.store.sql import fetch_all
from linckia.services.runtime.database import Database, Kind, Schema, beside, sync_folder
from linckia.services.runtime.handlers import Environment
from linckia.services.runtime.storage import patiently

PRAGMAS = {"cache_size": -65536, "mmap_size": 1 << 30, "wal_autocheckpoint": 8000, "recursive_triggers": 1}

RECENT_NS = 60_000_000_000
"""A file that was put aside longer ago was replaced by another one before this."""

TAKEN_OVER = (
    "resource_set", "edge", "session_preference", "saved_query", "follow", "source", "plan", "execution",
    "classifier_job", "intent", "trash", "trash_member", "history", "job",
)  # fmt: skip
"""All but the tree, which the disk says again, and the members of sets, which have it by its ids."""

_log = logging.getLogger("linckia.files")


def open_database(path: Path, on_rebuilt: Callable[[], object] | None = None) -> Database:
    """Open `path`, or begin it; blocks. `on_rebuilt` is called on trio's thread when it was begun again while in use.
    Raises OSError, apsw.CantOpenError where it can neither be opened nor begun."""
    tables = Schema(schema.VERSION, schema.TABLES, {1: _migrate_1, 2: _migrate_2}, begin=_begin, keeps=True)
    return Database(path, tables, kind=Kind.DERIVED, pragmas=PRAGMAS, setup=sql.register, on_rebuilt=on_rebuilt)


async def steadily(env: Environment, name: str, work: Callable[[], Awaitable[None]]) -> None:
    """As `patiently`; and where the database was damaged, and is begun again, run `work` again on the new one."""
    while True:
        try:
            await patiently(env, name, work)
        except Unavailable as error:
            await trio.sleep((error.failure.retry_after_ms or 0) / 1000)
        else:
            return


def _migrate_1(db: apsw.Connection) -> None:
    """Version 1 gave the numbers of deleted sets again, and had no notes in the trash. Raises OSError."""
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
    """In version 2 no directory stood for all that is in it; each does so by the rules once it is scanned again."""
    for table, column in (
        ("folder", "rows INTEGER NOT NULL DEFAULT 0"),
        ("job", "rows INTEGER"),
        ("job", "wholes TEXT"),
    ):
        if column.partition(" ")[0] not in {row[1] for row in fetch_all(db, f"PRAGMA table_info({table})")}:
            db.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
    db.execute(schema.TABLES).fetchall()


# A database that is begun


def _begin(db: apsw.Connection) -> None:
    """Fill tables that were just created, in their transaction. Raises apsw.FullError where there is no room for the
    mark that a database was begun here."""
    path = Path(db.filename)
    aside = beside.damaged_files(path)
    if aside and int(aside[-1].name.rpartition("-")[2]) > time.time_ns() - RECENT_NS:
        _take_over(db, aside[-1])
    _fill_trash(db, path.parent / "trash")
    mark = _mark_of(path)
    if mark.exists():
        # Numbers go on with the milliseconds of the clock, which are higher than any before.
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
    """The file that says that a database was begun at a path before."""
    return path.with_name(f"{path.name}-begun")


def _take_over(db: apsw.Connection, aside: Path) -> None:
    lost = [*TAKEN_OVER]
    roots: list[tuple[str]] = []
    try:
        with beside.opened(aside) as old:
            lost = [table for table in TAKEN_OVER if not _copy(db, old, table)]
            if not _copy_members(db, old):
                lost.append("member")
            roots, complete = beside.readable(old, "SELECT root FROM scan", "root")
            if not complete:
                lost.append("scan")
    except apsw.Error as error:
        _log.error("nothing can be read of %s: %s", aside, error)
    finally:
        if lost:
            _write_loss(Path(db.filename), aside, lost)
    _adapt(db, [str(root) for (root,) in roots])


def _write_loss(path: Path, aside: Path, lost: Sequence[str]) -> None:
    said = (
        f"{path} was damaged, and is begun again without all that was in its tables {', '.join(lost)}; what could be"
        f" read is served. For the rest: sqlite3 {aside} .recover; once {aside.name} is removed, this is not said again"
    )
    _log.error("%s", said)
    try:
        _loss_of(path).write_text(said)
    except OSError as error:
        raise apsw.FullError(f"{_loss_of(path)} cannot be written: {os.strerror(error.errno or 0)}") from error


def _loss_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-lost")


def loss(path: Path) -> str:
    """What a database that was damaged has lost, and what to do; empty where nothing was, or once the file that was put
    aside is removed; blocks."""
    if not beside.damaged_files(path):
        _loss_of(path).unlink(missing_ok=True)
        return ""
    return _loss_of(path).read_text() if _loss_of(path).exists() else ""


def _copy(db: apsw.Connection, old: apsw.Connection, table: str) -> bool:
    """Whether all rows could be read."""
    new = [column[1] for column in fetch_all(db, f"PRAGMA table_info({table})")]
    there = {column[1] for column in fetch_all(old, f"PRAGMA table_info({table})")}
    columns = [column for column in new if column in there]
    if not columns:
        return False
    names, marks = ", ".join(columns), ",".join("?" * len(columns))
    rows, complete = beside.readable(old, f"SELECT {names} FROM {table}", "1")
    db.executemany(f"INSERT OR IGNORE INTO {table}({names}) VALUES({marks})", rows)
    return complete


def _copy_members(db: apsw.Connection, old: apsw.Connection) -> bool:
    """Members of sets, by path: they join their sets again once they are in the index again."""
    query = (
        "SELECT f.path || e.name, m.set_id, m.added FROM member m JOIN entry e ON e.id = m.entry_id"
        " JOIN folder f ON f.id = e.parent"
    )
    rows, complete = beside.readable(old, query, "m.set_id DESC, m.entry_id")
    db.executemany("INSERT OR IGNORE INTO trash_member VALUES(0, ?, ?, ?, '')", rows)
    return complete


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
        if not paths.is_within(root, wanted):
            wanted.append(root)
    db.executemany(
        "INSERT INTO job(root, status, attempt, background, force, created, rows) VALUES(?, 'pending', 0, 1, 1, ?,"
        " (SELECT rows FROM job WHERE root = ? ORDER BY id DESC LIMIT 1))",
        ((root, now, root) for root in wanted),
    )


# What lies in the trash describes itself: beside the item `7` lies `7.json`, written before the item is moved there.
# The table `trash` answers clients; these notes are what it is made from again when the database is lost.


class Note(msgspec.Struct, frozen=True):
    """Of one item; as the columns of `trash`."""

    path: str
    kind: int
    size: int
    deleted: int


def write_note(trash: Path, id_: int, note: Note) -> None:
    """Write a note; its name is durable once the folder of the trash is synced. Raises OSError."""
    temporary = trash / f"{id_}.json.new"
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(note))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(trash / f"{id_}.json")


def remove_note(trash: Path, id_: int) -> None:
    """The item is not in the trash any more. A note without its item says nothing, so a failure does not matter."""
    for name in (f"{id_}.json", f"{id_}.json.new"):
        with contextlib.suppress(OSError):
            (trash / name).unlink()


def _fill_trash(db: apsw.Connection, trash: Path) -> None:
    """Put every item that lies in the trash with its note into the table."""
    for path in trash.glob("*.json"):
        if path.stem.isdecimal() and os.path.lexists(trash / path.stem):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                note = msgspec.json.decode(path.read_bytes(), type=Note)
                db.execute(
                    "INSERT OR REPLACE INTO trash(id, path, kind, size, deleted) VALUES(?,?,?,?,?)",
                    (int(path.stem), note.path, note.kind, note.size, note.deleted),
                )


def _write_notes(db: apsw.Connection, trash: Path) -> None:
    """Write the notes of all items in the table. Raises OSError."""
    rows = fetch_all(db, "SELECT id, path, kind, size, deleted FROM trash")
    for id_, path, kind, size, deleted in rows:
        if os.path.lexists(trash / str(id_)):
            write_note(trash, id_, Note(path, kind, size, deleted))
    if rows:
        sync_folder(trash)
