"""The database of memories: its tables, and its queries on one connection.

It is the only copy of the memories. Forgotten memories are in no file any more: freed pages are overwritten, and
`Database.checkpoint` truncates the log. `place` is a memory's scope, combined with the MCP session's name if the memory
belongs to one session only. Each statement exists once per place.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import apsw
from msgspec.structs import astuple

from services.memory import operations as ops
from services.memory.comparison import fold
from services.memory.manifest import SCHEMA_VERSION
from services.memory.operations import CarriedSaid as Said
from services.runtime.database import Schema
from services.shared import times

SHOWN_SAYINGS = 20
SHOWN_LINKS = 100
"""Most links of each kind shown for one memory."""

_TABLES = """
CREATE TABLE memory(
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    scope TEXT NOT NULL,
    owner TEXT NOT NULL,
    place TEXT NOT NULL,
    text TEXT NOT NULL,
    folded TEXT NOT NULL,
    tags TEXT NOT NULL,
    at_ns INTEGER NOT NULL,
    expires_ns INTEGER,
    UNIQUE(place, folded)
);
CREATE INDEX memory_expires ON memory(expires_ns) WHERE expires_ns IS NOT NULL;
-- Each time that it was said, with the wording used.
CREATE TABLE said(
    memory INTEGER NOT NULL, at_ns INTEGER NOT NULL, text TEXT NOT NULL,
    source TEXT NOT NULL, session TEXT NOT NULL, client TEXT NOT NULL
);
CREATE INDEX said_memory ON said(memory, at_ns);
CREATE INDEX said_session ON said(session) WHERE session <> '';

CREATE TABLE outbox(number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE);
CREATE TABLE setting(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TRIGGER memory_arrives AFTER INSERT ON memory BEGIN
    INSERT OR REPLACE INTO outbox(id) VALUES(NEW.id);
END;
CREATE TRIGGER memory_changes AFTER UPDATE ON memory BEGIN
    INSERT OR REPLACE INTO outbox(id) VALUES(NEW.id);
END;
CREATE TRIGGER memory_departs AFTER DELETE ON memory BEGIN
    INSERT OR REPLACE INTO outbox(id) VALUES(OLD.id);
    DELETE FROM said WHERE memory=OLD.number;
    DELETE FROM link WHERE one=OLD.number OR other=OLD.number;
END;
"""

# Each link is stored in both directions.
_LINKS = """
CREATE TABLE link(
    one INTEGER NOT NULL, other INTEGER NOT NULL, is_conflict INTEGER NOT NULL, PRIMARY KEY(one, other)
) WITHOUT ROWID;
CREATE INDEX link_other ON link(other);
"""


def _migrate_1(db: apsw.Connection) -> None:
    """Give links a kind, and split statements that version 1 merged because they were similar.

    Version 1 kept the older text and stored the newer one as a saying of it. A saying from after the text's own time is
    such a statement; one from before that is an earlier text, which `update_memory` replaced.
    """
    for step in (
        "DROP TRIGGER memory_departs",
        _LINKS,
        "INSERT INTO link SELECT one, other, 1 FROM conflict",
        "DROP TABLE conflict",
        "CREATE TRIGGER memory_departs" + _TABLES.partition("CREATE TRIGGER memory_departs")[2],
    ):
        db.execute(step).fetchall()
    for row in select(db, "1 ORDER BY number"):
        others: dict[str, list[Said]] = {}
        is_own = False
        for said in sayings(db, row.number)[::-1]:
            folded = fold(said.text)
            is_own = is_own or folded == fold(row.text)
            if is_own and folded != fold(row.text):
                others.setdefault(folded, []).append(said)
        for split in others.values():
            _take_apart(db, row, split)
        # The rules of `fold` have changed too.
        last_ns = max((said.at_ns for said in sayings(db, row.number)), default=row.at_ns)
        set_ = "UPDATE OR IGNORE memory SET folded=?, at_ns=? WHERE number=?"
        db.execute(set_, (fold(row.text), last_ns if others else row.at_ns, row.number))


def _take_apart(db: apsw.Connection, row: Row, split: Sequence[Said]) -> None:
    """Move sayings of `row` that say something else to a separate memory."""
    for said in split:
        db.execute("DELETE FROM said WHERE memory=? AND at_ns=? AND text=?", (row.number, said.at_ns, said.text))
    place = Place(row.scope, row.owner)
    if same := select(db, "place=? AND folded=?", (place.key, fold(split[-1].text))):
        for said in split:
            note_said(db, same[0].number, said)
        db.execute("UPDATE memory SET at_ns=max(at_ns, ?) WHERE number=?", (split[-1].at_ns, same[0].number))
    else:
        made = insert(db, place, split[-1].text, split, row.tags, row.expires_ns)
        add_links(db, made.number, conflicts=[], similar=[row.number])


SCHEMA = Schema(version=SCHEMA_VERSION, tables=_LINKS + _TABLES, migrations={1: _migrate_1})

_COLUMNS = "tags, number, id, scope, owner, place, text, at_ns, expires_ns"


def instant(at_ns: int) -> str:
    """Format as RFC 3339, in seconds."""
    return times.rfc3339(at_ns // times.NS * times.NS)


@dataclass(frozen=True, slots=True)
class Row:
    """A stored memory."""

    tags: list[str]
    number: int
    id: str
    scope: str
    owner: str
    place: str
    text: str
    at_ns: int
    expires_ns: int | None

    def has_expired(self, now_ns: int) -> bool:
        return self.expires_ns is not None and self.expires_ns <= now_ns

    @property
    def other(self) -> ops.Other:
        return ops.Other(id=self.id, text=self.text, at=instant(self.at_ns))


@dataclass(frozen=True, slots=True)
class Place:
    """A scope from one client's point of view; `owner` is the MCP session it belongs to, or empty if it is shared."""

    scope: str
    owner: str = ""

    @property
    def key(self) -> str:
        return f"{self.scope} {self.owner}" if self.scope == ops.SESSION else self.scope


def select(db: apsw.Connection, condition: str, arguments: Sequence[apsw.SQLiteValue] = ()) -> list[Row]:
    """Return the memories that match `condition`, which may end with an order and a limit."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM memory WHERE {condition}", tuple(arguments))
    return [Row(json.loads(tags), *rest) for tags, *rest in rows]


def of_ids(db: apsw.Connection, ids: Sequence[str]) -> dict[str, Row]:
    found = select(db, "id IN (SELECT value FROM json_each(?))", (json.dumps(ids),))
    return {row.id: row for row in found}


def insert(
    db: apsw.Connection,
    place: Place,
    text: str,
    said: Sequence[Said],
    tags: Sequence[str],
    expires_ns: int | None,
    id_: str = "",
) -> Row:
    """Insert a new memory."""
    id_ = id_ or secrets.token_hex(6)
    tagged, at_ns = json.dumps(list(dict.fromkeys(tags))), max(one.at_ns for one in said)
    db.execute(
        "INSERT INTO memory(id, scope, owner, place, text, folded, tags, at_ns, expires_ns)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (id_, place.scope, place.owner, place.key, text, fold(text), tagged, at_ns, expires_ns),
    )
    number = db.last_insert_rowid()
    for one in said:
        note_said(db, number, one)
    return of_ids(db, [id_])[id_]


def note_said(db: apsw.Connection, number: int, said: Said) -> None:
    db.execute("INSERT INTO said VALUES(?, ?, ?, ?, ?, ?)", (number, *astuple(said)))


def sayings(db: apsw.Connection, number: int, most: int = -1) -> list[Said]:
    """Return the sayings of a memory, latest first."""
    query = (
        "SELECT at_ns, text, source, session, client FROM said WHERE memory=? ORDER BY at_ns DESC, rowid DESC LIMIT ?"
    )
    names = Said.__struct_fields__
    return [Said(**dict(zip(names, row, strict=True))) for row in db.execute(query, (number, most))]


def linked(db: apsw.Connection, number: int, *, is_conflict: bool, now_ns: int) -> list[Row]:
    """Return the unexpired memories that contradict this one, or are similar to it, newest first."""
    others = "number IN (SELECT other FROM link WHERE one=? AND is_conflict=?)"
    among = f"{others} AND (expires_ns IS NULL OR expires_ns > ?) ORDER BY at_ns DESC, number DESC LIMIT ?"
    return select(db, among, (number, is_conflict, now_ns, SHOWN_LINKS))


def set_links(db: apsw.Connection, number: int, *, conflicts: Sequence[int], similar: Sequence[int]) -> None:
    """Replace all links of a memory."""
    db.execute("DELETE FROM link WHERE one=?1 OR other=?1", (number,))
    add_links(db, number, conflicts=conflicts, similar=similar)


def add_links(db: apsw.Connection, number: int, *, conflicts: Sequence[int], similar: Sequence[int]) -> None:
    """Link a memory to others, in both directions; a link that exists keeps its kind."""
    for others, is_conflict in ((conflicts, 1), (similar, 0)):
        pairs = [pair for other in others for pair in ((number, other), (other, number))]
        db.executemany("INSERT OR IGNORE INTO link VALUES(?, ?, ?)", ((*pair, is_conflict) for pair in pairs))


def purge(db: apsw.Connection, before_ns: int) -> None:
    """Delete memories that expired before this time permanently."""
    db.execute("DELETE FROM memory WHERE expires_ns < ?", (before_ns,))


def shown(db: apsw.Connection, row: Row, now_ns: int) -> ops.Memory:
    """Convert a memory to its result form."""
    said = [
        ops.Said(
            at=instant(one.at_ns), text="" if one.text == row.text else one.text, source=one.source,
            session=one.session, client=one.client,
        )
        for one in sayings(db, row.number, SHOWN_SAYINGS)
    ]  # fmt: skip
    # It was said once, and only its time is known, which the result contains anyway.
    is_bare = len(said) == 1 and not (said[0].source or said[0].session or said[0].client)
    return ops.Memory(
        id=row.id,
        text=row.text,
        scope=row.scope,
        at=instant(row.at_ns),
        tags=row.tags,
        expires="" if row.expires_ns is None else instant(row.expires_ns),
        expired=row.has_expired(now_ns),
        conflicts_with=[other.id for other in linked(db, row.number, is_conflict=True, now_ns=now_ns)],
        similar_to=[other.id for other in linked(db, row.number, is_conflict=False, now_ns=now_ns)],
        said=[] if is_bare else said,
    )
