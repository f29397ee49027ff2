"""The database of events: the only copy of what happened, and how far each source was read.

An event's number is its position in the log. Numbers ascend without gaps and are never used again. The log holds a
limited number of events of a limited number of days; the oldest are deleted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import apsw
import msgspec

from proto.ops.events import Event, EventKind
from services.events.manifest import SCHEMA_VERSION
from services.runtime.database import Schema
from services.shared import times

TRIMMED_AT_ONCE = 20_000
"""How many events one transaction deletes at most, so that no write waits long."""

OLD_AT_ONCE = 1_000
"""How many of them it looks at to find those that are too old."""

MS = 1_000_000
"""Nanoseconds in a millisecond; clients see no smaller part."""

_TABLES = """
CREATE TABLE event(
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    stored_ns INTEGER NOT NULL,
    at_ns INTEGER NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    -- The path before a file was renamed.
    former TEXT,
    what TEXT NOT NULL,
    who TEXT NOT NULL,
    details TEXT NOT NULL,
    -- Set by the sender of an event that it may send again.
    sender TEXT,
    id TEXT
);
CREATE UNIQUE INDEX event_sent ON event(sender, id) WHERE id IS NOT NULL;
CREATE TABLE position(source TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

SCHEMA = Schema(version=SCHEMA_VERSION, tables=_TABLES)


class NewEvent(NamedTuple):
    """An event that is not stored yet."""

    at_ns: int
    kind: EventKind
    subject: str
    what: str
    who: str = ""
    former: str | None = None
    details: Mapping[str, Any] | None = None
    sender: str | None = None
    id: str | None = None


class Row(NamedTuple):
    """A stored event."""

    number: int
    at_ns: int
    kind: str
    subject: str
    former: str | None
    what: str
    who: str
    details: str

    def event(self) -> Event:
        """Return it as clients see it."""
        details: dict[str, Any] = msgspec.json.decode(self.details)
        if self.former is not None:
            details = {"former": self.former, **details}
        return Event(
            number=self.number,
            at=times.rfc3339(self.at_ns // MS * MS),
            kind=self.kind,
            subject=self.subject,
            what=self.what,
            who=self.who,
            details=details,
        )


class Bounds(NamedTuple):
    """How much is kept."""

    events: int
    age_ns: int


def add(db: apsw.Connection, events: Iterable[NewEvent], positions: dict[str, str], bounds: Bounds) -> None:
    """Store events and how far their sources were read; requires a transaction."""
    now_ns = time.time_ns()
    encode = msgspec.json.Encoder().encode
    db.executemany(
        "INSERT INTO event(stored_ns, at_ns, kind, subject, former, what, who, details, sender, id)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (now_ns, each.at_ns, str(each.kind), each.subject, each.former, each.what, each.who,
             encode(each.details or {}).decode(), each.sender, each.id)
            for each in events
        ),
    )  # fmt: skip
    db.executemany("INSERT OR REPLACE INTO position VALUES(?, ?)", positions.items())
    _trim(db, bounds, now_ns)


def positions(db: apsw.Connection) -> dict[str, str]:
    """Return how far each source was read."""
    return {str(source): str(value) for source, value in db.execute("SELECT source, value FROM position")}


def sent(db: apsw.Connection, sender: str, id_: str) -> int | None:
    """Return the number of an event that its sender has sent before."""
    found: int | None = db.execute("SELECT max(number) FROM event WHERE sender=? AND id=?", (sender, id_)).get
    return found


def latest(db: apsw.Connection) -> int:
    """Return the number of the latest event that is, or was, in the log; 0 if there has been none."""
    return int(db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name='event'").get)


def oldest(db: apsw.Connection) -> int:
    """Return the number of the oldest event; 0 if there is none."""
    return int(db.execute("SELECT coalesce(min(number), 0) FROM event").get)


def read(
    db: apsw.Connection, after: int, limit: int, *, kinds: Sequence[str] = (), since_ns: int = 0,
    below: Sequence[str] = (),
) -> list[Row]:  # fmt: skip
    """Return at most `limit` events after one. With `below`, only those of files in these folders, or of these files,
    whether before or after they were renamed."""
    return _read(db, "number > ?", after, "number", limit, kinds, since_ns, 0, below)


def read_back(
    db: apsw.Connection, before: int, limit: int, *, kinds: Sequence[str] = (), since_ns: int = 0, until_ns: int = 0,
    below: Sequence[str] = (),
) -> list[Row]:  # fmt: skip
    """Return the last `limit` events before one, the latest first. `kinds` and `below` are those of `read`."""
    return _read(db, "number < ?", before, "number DESC", limit, kinds, since_ns, until_ns, below)


def _read(
    db: apsw.Connection, beyond: str, number: int, order: str, limit: int, kinds: Sequence[str], since_ns: int,
    until_ns: int, below: Sequence[str],
) -> list[Row]:  # fmt: skip
    conditions = [beyond]
    bindings: list[str | int] = [number]
    if kinds:
        conditions.append(f"kind IN ({', '.join('?' * len(kinds))})")
        bindings += kinds
    if since_ns:
        conditions.append("at_ns >= ?")
        bindings.append(since_ns)
    if until_ns:
        conditions.append("at_ns < ?")
        bindings.append(until_ns)
    if below:
        places = []
        for path in below:
            for column in ("subject", "former"):
                places.append(f"{column} = ? OR ({column} >= ? AND {column} < ?)")
                folder = path.rstrip("/")
                bindings += (path, f"{folder}/", f"{folder}0")
        # A gap concerns every file below its root, and the reader decides whether it shows it.
        conditions.append(f"(kind = '{EventKind.GAP}' OR (kind = '{EventKind.FILE}' AND ({' OR '.join(places)})))")
    query = (
        "SELECT number, at_ns, kind, subject, former, what, who, details FROM event"
        f" WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT ?"
    )
    return list(map(Row._make, db.execute(query, (*bindings, limit))))


def _trim(db: apsw.Connection, bounds: Bounds, now_ns: int) -> None:
    """Delete events that are too old, and the oldest if there are too many."""
    old = db.execute(
        "SELECT coalesce(max(number), 0) FROM (SELECT number, stored_ns FROM event ORDER BY number LIMIT ?)"
        " WHERE stored_ns < ?",
        (OLD_AT_ONCE, now_ns - bounds.age_ns),
    ).get
    upto = max(latest(db) - bounds.events, int(old))
    first = oldest(db)
    if first and first <= upto:
        db.execute("DELETE FROM event WHERE number <= ?", (min(upto, first + TRIMMED_AT_ONCE),))
