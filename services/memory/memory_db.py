"""The database of memories: its tables, and its queries on one connection.

It is the only copy of the memories. Forgotten memories are in no file any more: freed pages are overwritten, and
`Database.checkpoint` truncates the log. `place` is a memory's scope, combined with the MCP session's name if the memory
belongs to one session only. Words that are said again join the memory that has them, unless that one has ended: its
time is then history, and they become a new memory. `services.memory.validity` says when a memory holds.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    -- As stated. `superseded_ns` is from when another memory holds instead of it.
    valid_from_ns INTEGER,
    valid_until_ns INTEGER,
    superseded_by TEXT,
    superseded_ns INTEGER,
    -- When it was last said what replaces it, or that nothing does.
    decided_ns INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX memory_words ON memory(place, folded);
CREATE INDEX memory_expires ON memory(expires_ns) WHERE expires_ns IS NOT NULL;
CREATE INDEX memory_superseded ON memory(superseded_by) WHERE superseded_by IS NOT NULL;
CREATE INDEX memory_begins ON memory(valid_from_ns) WHERE valid_from_ns IS NOT NULL;
CREATE INDEX memory_bounded ON memory(place)
    WHERE valid_from_ns IS NOT NULL OR valid_until_ns IS NOT NULL OR superseded_ns IS NOT NULL;
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
    -- What it replaced holds again, unless it was replaced itself.
    UPDATE memory SET superseded_by=OLD.superseded_by,
        decided_ns=CASE WHEN OLD.superseded_by IS NULL THEN decided_ns ELSE max(decided_ns, OLD.decided_ns) END,
        superseded_ns=CASE WHEN OLD.superseded_by IS NULL THEN NULL ELSE superseded_ns END
        WHERE superseded_by=OLD.id;
END;
"""

# Each link is stored in both directions.
_LINKS = """
CREATE TABLE link(
    one INTEGER NOT NULL, other INTEGER NOT NULL, is_conflict INTEGER NOT NULL, PRIMARY KEY(one, other)
) WITHOUT ROWID;
CREATE INDEX link_other ON link(other);
"""

# For `linckia sync`: ids of forgotten memories, and the time of each memory's last correction.
_JOINING = """
CREATE TABLE forgotten(id TEXT PRIMARY KEY, at_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE corrected(id TEXT PRIMARY KEY, at_ns INTEGER NOT NULL) WITHOUT ROWID;
"""
_CORRECTED_DEPARTS = """
CREATE TRIGGER corrected_departs AFTER DELETE ON memory BEGIN
    DELETE FROM corrected WHERE id=OLD.id;
END;
"""

# A memory joined one in the same words, which has the other id now.
_MERGING = "ALTER TABLE forgotten ADD COLUMN merged_into TEXT NOT NULL DEFAULT '';"


def _migrate_1(db: apsw.Connection) -> None:
    """Give links a kind, and split statements that version 1 merged because they were similar.

    Version 1 kept the older text and stored the newer one as a saying of it. A saying from after the text's own time is
    such a statement; one from before that is an earlier text, which `memory_update` replaced.
    """
    for step in (
        "DROP TRIGGER memory_departs",
        _LINKS,
        "INSERT INTO link SELECT one, other, 1 FROM conflict",
        "DROP TABLE conflict",
    ):
        db.execute(step).fetchall()
    _rebuild(db)
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
        taken = "SELECT 1 FROM memory WHERE place=?4 AND folded=?1 AND number<>?3"
        set_ = f"UPDATE memory SET folded=?1, at_ns=?2 WHERE number=?3 AND NOT EXISTS({taken})"
        db.execute(set_, (fold(row.text), last_ns if others else row.at_ns, row.number, row.place))


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


def _migrate_3(db: apsw.Connection) -> None:
    """Give memories a time in which they hold, and let ended ones have the words of others."""
    if "valid_from_ns" not in {name for _, name, *_ in db.execute("PRAGMA table_info(memory)")}:
        db.execute("DROP TRIGGER corrected_departs")
        _rebuild(db)
        db.execute(_CORRECTED_DEPARTS).fetchall()
    db.execute(_MERGING)


def _rebuild(db: apsw.Connection) -> None:
    """Copy the memories of versions before 4 to the current table, and have the search fed with their times."""
    columns = "number, id, scope, owner, place, text, folded, tags, at_ns, expires_ns"
    last = next(iter(db.execute("SELECT seq FROM sqlite_sequence WHERE name='memory'")), (0,))
    for name in ("arrives", "changes", "departs"):
        db.execute(f"DROP TRIGGER IF EXISTS memory_{name}")
    db.execute("DROP INDEX memory_expires")
    db.execute("ALTER TABLE memory RENAME TO former")
    table, _, rest = _TABLES.partition("-- Each time")
    db.execute(table).fetchall()
    db.execute(f"INSERT INTO memory({columns}) SELECT {columns} FROM former")
    db.execute("DROP TABLE former")
    db.execute("UPDATE sqlite_sequence SET seq=? WHERE name='memory'", last)
    db.execute("CREATE TRIGGER memory_arrives" + rest.partition("CREATE TRIGGER memory_arrives")[2]).fetchall()
    db.execute("INSERT OR REPLACE INTO outbox(id) SELECT id FROM memory")


SCHEMA = Schema(
    version=SCHEMA_VERSION,
    tables=_LINKS + _TABLES + _JOINING + _CORRECTED_DEPARTS + _MERGING,
    migrations={1: _migrate_1, 2: _JOINING + _CORRECTED_DEPARTS, 3: _migrate_3},
)

_COLUMNS = (
    "tags, number, id, scope, owner, place, text, at_ns, expires_ns, valid_from_ns, valid_until_ns, superseded_by,"
    " superseded_ns, decided_ns"
)


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
    valid_from_ns: int | None = None
    valid_until_ns: int | None = None
    """The last moment at which it holds."""
    superseded_by: str | None = None
    superseded_ns: int | None = None
    """The first moment at which it no longer holds because another does."""
    decided_ns: int = 0
    """When it was last said what replaces it, or that nothing does; 0 is never."""

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


class Validity(NamedTuple):
    """The times of a memory, as in `Row`."""

    valid_from_ns: int | None = None
    valid_until_ns: int | None = None
    superseded_by: str | None = None
    superseded_ns: int | None = None
    decided_ns: int = 0

    @classmethod
    def of(cls, one: ops.CarriedMemory) -> Validity:
        return cls(one.valid_from_ns, one.valid_until_ns, one.superseded_by, one.superseded_ns, one.decided_ns)


def select(db: apsw.Connection, condition: str, arguments: Sequence[apsw.SQLiteValue] = ()) -> list[Row]:
    """Return the memories that match `condition`, which may end with an order and a limit."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM memory WHERE {condition}", tuple(arguments))
    return [Row(json.loads(tags), *rest) for tags, *rest in rows]


def of_ids(db: apsw.Connection, ids: Sequence[str], condition: str = "TRUE") -> dict[str, Row]:
    found = select(db, f"id IN (SELECT value FROM json_each(?)) AND {condition}", (json.dumps(ids),))
    return {row.id: row for row in found}


def insert(
    db: apsw.Connection,
    place: Place,
    text: str,
    said: Sequence[Said],
    tags: Sequence[str],
    expires_ns: int | None,
    id_: str = "",
    valid: Validity | None = None,
) -> Row:
    """Insert a new memory."""
    id_ = id_ or secrets.token_hex(6)
    tagged, at_ns = json.dumps(list(dict.fromkeys(tags))), max(one.at_ns for one in said)
    db.execute(
        "INSERT INTO memory(id, scope, owner, place, text, folded, tags, at_ns, expires_ns, valid_from_ns,"
        " valid_until_ns, superseded_by, superseded_ns, decided_ns) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (id_, place.scope, place.owner, place.key, text, fold(text), tagged, at_ns, expires_ns, *(valid or Validity())),
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


def set_links(db: apsw.Connection, number: int, *, conflicts: Sequence[int], similar: Sequence[int]) -> None:
    """Replace all links of a memory."""
    db.execute("DELETE FROM link WHERE one=?1 OR other=?1", (number,))
    add_links(db, number, conflicts=conflicts, similar=similar)


def add_links(db: apsw.Connection, number: int, *, conflicts: Sequence[int], similar: Sequence[int]) -> None:
    """Link a memory to others, in both directions; a link that exists keeps its kind."""
    for others, is_conflict in ((conflicts, 1), (similar, 0)):
        pairs = [pair for other in others for pair in ((number, other), (other, number))]
        db.executemany("INSERT OR IGNORE INTO link VALUES(?, ?, ?)", ((*pair, is_conflict) for pair in pairs))


def note_forgotten(db: apsw.Connection, forgotten: Mapping[str, int], merged_into: str = "") -> None:
    """Note when memories were forgotten, by their ids, so that they do not come back from another machine; or which
    one has what they said."""
    query = (
        "INSERT INTO forgotten(id, at_ns, merged_into) VALUES(?, ?, ?) ON CONFLICT DO UPDATE"
        " SET at_ns=excluded.at_ns, merged_into=excluded.merged_into"
        " WHERE (excluded.at_ns, excluded.merged_into) > (at_ns, merged_into)"
    )
    db.executemany(query, ((id_, at_ns, merged_into) for id_, at_ns in forgotten.items()))


def note_correction(db: apsw.Connection, id_: str, at_ns: int) -> None:
    """Note when a memory was last corrected, so that the later correction counts on all machines."""
    query = "INSERT INTO corrected(id, at_ns) VALUES(?, ?) ON CONFLICT DO UPDATE SET at_ns=max(at_ns, excluded.at_ns)"
    db.execute(query, (id_, at_ns))


def corrected_ns(db: apsw.Connection, id_: str) -> int:
    return int(db.execute("SELECT at_ns FROM corrected WHERE id=?", (id_,)).get or 0)
