"""The journal of changes: what calls changed in files, and the former contents, each stored once and compressed."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec
import trio

from proto.errors import LinckiaError
from proto.ops.changes import ChangeRecord, TakeNoteChanges, TakeYamlChanges
from services.files.index.listing import MAX_INT
from services.files.manifest import JOURNAL_VERSION
from services.files.operations.undo import ChangeKind
from services.files.store.sql import fetch_all, fetch_one, fetch_value
from services.runtime.change_log import from_delta
from services.runtime.database import Database, Kind, Schema
from services.runtime.handlers import Environment

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DAY_NS = 86_400 * 10**9
TAKE_S = 10.0
"""How long another service may take to hand over its records."""

_TABLES = """
-- What a call did to one path; `number` is that of the service's log, and about the time in nanoseconds since 1970.
-- `undone_by` is the entry that undid it. Entries of a change have the same `change`.
CREATE TABLE entry(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    service TEXT NOT NULL,
    number INTEGER NOT NULL,
    change TEXT NOT NULL,
    operation TEXT NOT NULL,
    client TEXT NOT NULL,
    session TEXT NOT NULL,
    task TEXT NOT NULL,
    kind TEXT NOT NULL,
    path TEXT NOT NULL,
    target TEXT NOT NULL,
    before BLOB NOT NULL,
    after BLOB NOT NULL,
    mode INTEGER NOT NULL,
    size INTEGER NOT NULL,
    trash_id INTEGER,
    lost TEXT NOT NULL,
    undoes INTEGER,
    undone_by INTEGER,
    UNIQUE(service, number)
);
CREATE INDEX entry_change ON entry(change);
CREATE INDEX entry_number ON entry(number);
CREATE INDEX entry_path ON entry(path, number);
CREATE INDEX entry_before ON entry(before) WHERE lost = '';
CREATE INDEX entry_after ON entry(after) WHERE lost = '';
CREATE INDEX entry_trash ON entry(trash_id);

-- Former contents, as Zstandard frames, by SHA-256.
CREATE TABLE content(hash BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
"""

_COLUMNS = (
    "id, service, number, change, operation, client, session, task, kind, path, target, before, after, mode, size, "
    "trash_id, lost, undoes, undone_by"
)


_ORPHANS = (
    "DELETE FROM content WHERE hash NOT IN (SELECT before FROM entry WHERE lost = '')"
    " AND hash NOT IN (SELECT after FROM entry WHERE lost = '')"
)


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A row of the table `entry`."""

    id: int
    service: str
    number: int
    change: str
    operation: str
    client: str
    session: str
    task: str
    kind: ChangeKind
    path: str
    target: str
    before: bytes
    after: bytes
    mode: int
    size: int
    trash_id: int | None
    lost: str
    undoes: int | None
    undone_by: int | None


Trashed = tuple[int, str, int, int]
"""Id, path, size and time of an item in the trash."""


def open_journal(path: Path, trashed: Iterable[Trashed] = ()) -> Database:
    """Open the journal. A new one gets an entry for each item of the trash."""

    def begin(db: apsw.Connection) -> None:
        _add_trash(db, trashed)

    return Database(path, Schema(JOURNAL_VERSION, _TABLES, begin=begin), kind=Kind.SOURCE)


class Journal:
    """The journal, and the logs that it takes records from."""

    def __init__(self, env: Environment, index: Database, max_bytes: int, days: float) -> None:
        self._env = env
        self._index = index
        self._database: Database | None = None
        self._turn = trio.Lock()
        self._opening = trio.Lock()
        self._log = env.keeps_changes(self.collect)
        self._roots = env.roots
        self._max_bytes = max_bytes
        self._days = days
        self._trash = env.data_dir / "trash"
        self._first = MAX_INT
        """The first record that was taken, at the earliest."""

    async def database(self) -> Database:
        """Return the database, which is opened when it is needed."""
        async with self._opening:
            if self._database is None:
                self._database = await self._open()
            return self._database

    async def _open(self) -> Database:
        # Later items have records of their own, or were left by writes that a death of the process interrupted.
        query = "SELECT id, path, size, deleted FROM trash WHERE deleted < ?"
        trashed = await self._index.read(lambda db: fetch_all(db, query, (self._first,)))
        database = await self._env.opened(open_journal, self._env.data_dir / "changes.db", trashed)
        self._env.at_rest(database.give_back)
        return database

    async def collect(self) -> list[str]:
        """Take over the records of all services. Returns which of them could not be asked, and why."""
        async with self._turn:
            return await self._collect()

    async def _collect(self) -> list[str]:
        await self._take("files", self._own)
        degraded = []
        for service, ask in (("yaml", self._of_yaml), ("knowledge", self._of_knowledge)):
            try:
                await self._take(service, ask)
            except LinckiaError as error:
                degraded.append(f"{service}: {error}")
        return degraded

    async def collect_own(self) -> None:
        """Take over the records of this service."""
        async with self._turn:
            await self._take("files", self._own)

    async def _of_yaml(self, stored: list[int]) -> list[ChangeRecord]:
        return await self._env.call(TakeYamlChanges(stored=stored), timeout_s=TAKE_S)

    async def _of_knowledge(self, stored: list[int]) -> list[ChangeRecord]:
        return await self._env.call(TakeNoteChanges(stored=stored), timeout_s=TAKE_S)

    async def _own(self, stored: list[int]) -> list[ChangeRecord]:
        return await trio.to_thread.run_sync(self._log.take, stored)

    async def _take(self, service: str, ask: Callable[[list[int]], Awaitable[list[ChangeRecord]]]) -> None:
        stored: list[int] = []
        while True:
            records = await ask(stored)
            if not records:
                return
            self._first = min(self._first, records[0].number)
            made = [record for record in records if record.is_done]
            await (await self.database()).write(partial(self._store, service=service, records=made))
            stored = [record.number for record in records]

    def _store(self, db: apsw.Connection, service: str, records: Iterable[ChangeRecord]) -> None:
        for record in records:
            if record.content:
                db.execute("INSERT OR IGNORE INTO content VALUES(?, ?)", (record.before, record.content))
            if record.delta and self.content(db, record.after) is None:
                after = from_delta(zstd.decompress(record.content), record.delta)
                db.execute("INSERT INTO content VALUES(?, ?)", (record.after, zstd.compress(after)))
            if record.trash_id is not None:
                # The journal may have been made after it was put there.
                db.execute("DELETE FROM entry WHERE service = 'trash' AND trash_id = ?", (record.trash_id,))
            db.execute(
                "INSERT OR IGNORE INTO entry(service, number, change, operation, client, session, task, kind, path, "
                "target, before, after, mode, size, trash_id, lost, undoes) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (
                    service, record.number, record.change, record.operation, record.client, record.session,
                    record.task, record.kind, record.path, record.target, record.before, record.after, record.mode,
                    record.size, record.trash_id, record.lost, record.undoes,
                ),
            )  # fmt: skip
            if db.changes() and record.undoes is not None:
                self._undone(db, record.undoes, db.last_insert_rowid(), record)
        self._bound(db)

    def _undone(self, db: apsw.Connection, undone: int, by: int, record: ChangeRecord) -> None:
        """Note that an entry is undone. What it had undone itself is in force again, and so on."""
        row = fetch_one(db, "SELECT kind, trash_id FROM entry WHERE id = ?", (undone,))
        if row is not None and record.kind == "trash" and row[0] == "restore" and row[1] is not None:
            # What was in the trash is there again, under another id.
            db.execute("UPDATE entry SET trash_id = ? WHERE trash_id = ? AND id <> ?", (record.trash_id, row[1], by))
        each: int | None = undone
        is_undone, cause = True, by
        while each is not None:
            db.execute("UPDATE entry SET undone_by = ? WHERE id = ?", (cause if is_undone else None, each))
            cause, is_undone = each, not is_undone
            each = fetch_value(db, "SELECT undoes FROM entry WHERE id = ?", (each,))

    # Bounds

    def _bound(self, db: apsw.Connection) -> None:
        """Forget what is older than the settings say, or has no room."""
        db.execute("DELETE FROM entry WHERE number < ?", (time.time_ns() - int(self._days * DAY_NS),))
        if db.changes():
            db.execute(_ORPHANS)
        while fetch_value(db, "SELECT coalesce(sum(length(data)), 0) FROM content") > self._max_bytes:
            oldest = fetch_value(
                db, "SELECT min(number) FROM entry WHERE lost = '' AND before IN (SELECT hash FROM content)"
            )
            if oldest is None:
                db.execute(_ORPHANS)
                return
            why = "its former content is no longer kept: there was no room for it (`undo_max_mb`)"
            db.execute("UPDATE entry SET lost = ? WHERE number <= ? AND kind = 'write'", (why, oldest))
            db.execute(_ORPHANS)

    async def purge_trash(self, trash_ids: Sequence[int]) -> None:
        """Forget the former contents of what was deleted from the trash for good."""

        def change(db: apsw.Connection) -> None:
            for trash_id in trash_ids:
                db.execute(
                    "UPDATE entry SET lost = 'it was deleted from the trash for good' WHERE trash_id = ?", (trash_id,)
                )
            db.execute(_ORPHANS)

        if trash_ids:
            await self.collect()
            await (await self.database()).write(change)

    # Reading

    @staticmethod
    def content(db: apsw.Connection, digest: bytes) -> bytes | None:
        """Return a former content; None if it is not kept."""
        data = fetch_value(db, "SELECT data FROM content WHERE hash = ?", (digest,))
        return None if data is None else zstd.decompress(data)

    @staticmethod
    def entries(db: apsw.Connection, where: str, values: Sequence[Any]) -> list[Entry]:
        """Return entries that match a condition, the latest first."""
        rows = fetch_all(db, f"SELECT {_COLUMNS} FROM entry WHERE {where} ORDER BY number DESC, id DESC", tuple(values))
        return [Entry(*row) for row in rows]

    @staticmethod
    def change_of(db: apsw.Connection, entry: int) -> str:
        """Return the id of the change that an entry belongs to."""
        return str(fetch_value(db, "SELECT change FROM entry WHERE id = ?", (entry,)) or "")


def _add_trash(db: apsw.Connection, trashed: Iterable[Trashed]) -> None:
    """Add what was in the trash before there was a journal."""
    for trash_id, path, size, deleted in trashed:
        db.execute(
            "INSERT OR IGNORE INTO entry(service, number, change, operation, client, session, task, kind, path, target,"
            " before, after, mode, size, trash_id, lost) VALUES('trash',?,?,'files_delete','','','','trash',?,'',"
            "x'',x'',0,?,?,'')",
            (deleted, f"trash{trash_id}", path, size, trash_id),
        )
