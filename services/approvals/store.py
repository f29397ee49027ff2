"""The database of approvals, and its queries on one connection.

A row is a call that a client made, from its arrival until its decision is forgotten. `waiter` names the wait to which
the row belongs or belonged last, so that a wait that is repeated after a death finds its own row again. `used` is
whether the decision has been given to that wait: it counts once, unless the call has an idempotency key.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields

import apsw

from proto.errors import Overloaded
from services.approvals.manifest import SCHEMA_VERSION
from services.runtime.database import Schema
from services.shared.times import DAY_NS, NS

PENDING, APPROVED, DENIED, EXPIRED = "pending", "approved", "denied", "expired"

TIME_OUT = "time-out"
"""Who decides if nobody does."""

MAX_PENDING = 1_000
MAX_PENDING_EACH = 200
"""Maximum number of pending approvals, in total and for one client."""

MAX_RECENT = 1_000
"""Number of decided approvals that are kept."""

KEYED_NS = DAY_NS
"""How long a decision counts for a call with an idempotency key: as long as the call's answer is kept."""

_TABLES = """
CREATE TABLE approval(
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    digest BLOB NOT NULL,
    keyed INTEGER NOT NULL,
    operation TEXT NOT NULL,
    tool TEXT NOT NULL,
    asker TEXT NOT NULL,
    session TEXT NOT NULL,
    source TEXT NOT NULL,
    target TEXT NOT NULL,
    preview TEXT NOT NULL,
    size INTEGER NOT NULL,
    asked_ns INTEGER NOT NULL,
    expires_ns INTEGER NOT NULL,
    allow_on_time_out INTEGER NOT NULL,
    waiter TEXT NOT NULL,
    state TEXT NOT NULL,
    used INTEGER NOT NULL,
    decided_ns INTEGER NOT NULL,
    by TEXT NOT NULL,
    reason TEXT NOT NULL
);
CREATE INDEX approval_digest ON approval(digest);
CREATE INDEX approval_state ON approval(state);
"""

SCHEMA = Schema(version=SCHEMA_VERSION, tables=_TABLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A stored approval."""

    id: str
    digest: bytes
    keyed: int
    operation: str
    tool: str
    asker: str
    session: str
    source: str
    target: str
    preview: str
    size: int
    asked_ns: int
    expires_ns: int
    allow_on_time_out: int
    waiter: str
    state: str = PENDING
    used: int = 0
    decided_ns: int = 0
    by: str = ""
    reason: str = ""

    @property
    def valid_ns(self) -> int:
        """How long a decision counts for a repetition of the call."""
        return KEYED_NS if self.keyed else max(0, self.expires_ns - self.asked_ns)

    @property
    def name(self) -> str:
        """The operation, or the tool of a mounted server, as people know it."""
        return self.tool or self.operation


_COLUMNS = ", ".join(field.name for field in fields(Row))
_NAMES = [field.name for field in fields(Row)]


def select(db: apsw.Connection, condition: str, arguments: Sequence[apsw.SQLiteValue] = ()) -> list[Row]:
    """Return the approvals that match `condition`, which may end with an order and a limit."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM approval WHERE {condition}", tuple(arguments))
    return [Row(**dict(zip(_NAMES, row, strict=True))) for row in rows]


def of_id(db: apsw.Connection, id_: str) -> Row | None:
    """Return one approval."""
    return next(iter(select(db, "id=?", (id_,))), None)


def admit(db: apsw.Connection, asked: Row, live: Collection[str], now_ns: int) -> Row:
    """Return the approval for a call: the one that it or an equal call asked for before, or a new one.

    Args:
        live: ids of approvals whose calls are waiting.

    Raises:
        Overloaded: too many are pending.
    """
    expire(db, live, now_ns)
    found = next(
        (row for row in select(db, "digest=? ORDER BY number", (asked.digest,)) if _fits(row, asked, live, now_ns)),
        None,
    )
    if found is not None:
        # If the time of a call that waits was over while the service was down, the default decides about it.
        state = PENDING if found.state == EXPIRED else found.state
        db.execute("UPDATE approval SET waiter=?, state=? WHERE id=?", (asked.waiter, state, found.id))
        return found
    ((total, own),) = db.execute("SELECT count(*), sum(asker=?) FROM approval WHERE state=?", (asked.asker, PENDING))
    if total >= MAX_PENDING or (own or 0) >= MAX_PENDING_EACH:
        raise Overloaded(f"{total} calls wait for an approval, {own} of them of {asked.asker}; try again later")
    while of_id(db, id_ := secrets.token_hex(3)) is not None:
        pass
    values = {name: getattr(asked, name) for name in _NAMES} | {"id": id_}
    marks = ", ".join("?" for _ in values)
    db.execute(f"INSERT INTO approval({_COLUMNS}) VALUES({marks})", tuple(values.values()))
    (row,) = select(db, "id=?", (id_,))
    return row


def _fits(row: Row, asked: Row, live: Collection[str], now_ns: int) -> bool:
    """Return whether an earlier approval of an equal call counts for this one."""
    if row.waiter == asked.waiter:
        # The service died while this call waited.
        return True
    if row.state == PENDING:
        return bool(row.keyed) or row.id not in live
    if row.state == EXPIRED or now_ns >= row.decided_ns + row.valid_ns:
        return False
    if row.keyed:
        return row.state == APPROVED or row.by != TIME_OUT
    return not row.used and row.id not in live


def expire(db: apsw.Connection, live: Collection[str], now_ns: int) -> None:
    """End pending approvals whose time is over and whose calls do not wait, and forget old ones."""
    for row in select(db, "state=? AND expires_ns<=?", (PENDING, now_ns)):
        if row.id not in live:
            db.execute("UPDATE approval SET state=?, decided_ns=? WHERE id=?", (EXPIRED, row.expires_ns, row.id))
    old = "SELECT number FROM approval WHERE state<>? ORDER BY number DESC LIMIT -1 OFFSET ?"
    db.execute(f"DELETE FROM approval WHERE number IN ({old})", (PENDING, MAX_RECENT))


def decide(db: apsw.Connection, id_: str, *, approve: bool, by: str, reason: str, now_ns: int) -> Row | None:
    """Decide a pending approval. Returns its current state; None if the id is unknown."""
    db.execute(
        "UPDATE approval SET state=?, decided_ns=?, by=?, reason=? WHERE id=? AND state=?",
        (APPROVED if approve else DENIED, now_ns, by, reason, id_, PENDING),
    )
    return of_id(db, id_)


def time_out(db: apsw.Connection, id_: str, now_ns: int) -> Row | None:
    """Decide a pending approval whose call still waits when the time is over."""
    row = of_id(db, id_)
    if row is None or row.state != PENDING or row.expires_ns > now_ns:
        return row
    seconds = (row.expires_ns - row.asked_ns) / NS
    reason = f"nobody decided within {seconds:g} s"
    return decide(db, id_, approve=bool(row.allow_on_time_out), by=TIME_OUT, reason=reason, now_ns=now_ns)


def use(db: apsw.Connection, id_: str) -> Row | None:
    """Note that the decision is given to the call."""
    db.execute("UPDATE approval SET used=1 WHERE id=?", (id_,))
    return of_id(db, id_)
