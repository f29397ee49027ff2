"""The call being served and its idempotency key: what a change stores so that the call has one effect and one answer.

Each service keeps its keys in one of its databases (`key_store`). Changes that are made while a keyed call is served
leave a mark there:

- `Database.answer` stores the answer in the transaction of the effect. A repeated call gets that answer.
- `Database.write` only stores that the call has had an effect. If the process then dies, a repeated call runs again if
  its operation is idempotent or its handler `resumes`, and otherwise fails with `MaybeExecuted`.
- `step` stores what became of a part of the call, so that a repeated one goes on with the next part.
- `intend` stores the answer of a call that replaces or creates one file, before it does so. After a death, the file's
  content says whether it was done.
"""

from __future__ import annotations

import contextvars
import hashlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import apsw
import msgspec

from proto.errors import InvalidParams, MaybeExecuted
from proto.keys import KEPT_S
from proto.vocabulary import current_name
from proto.wire.frames import pack_body
from services.runtime.change_log import named

TABLES = """
CREATE TABLE IF NOT EXISTS keyed_call(
    key TEXT PRIMARY KEY,
    operation TEXT NOT NULL,
    digest BLOB NOT NULL,
    at_ns INTEGER NOT NULL,
    answer BLOB
);
CREATE INDEX IF NOT EXISTS keyed_call_at ON keyed_call(at_ns);
CREATE TABLE IF NOT EXISTS keyed_step(key TEXT, step TEXT, value BLOB, PRIMARY KEY(key, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keyed_file(
    key TEXT PRIMARY KEY,
    path TEXT NOT NULL,
    before BLOB,
    after BLOB NOT NULL,
    answer BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS keyed_intent(
    intent INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    step TEXT NOT NULL,
    value BLOB NOT NULL
);
"""
"""`answer` is a body of a `Return` frame; NULL after an effect whose answer is not known yet. `before` is NULL for a
file that is created."""

PURGE_EVERY = 64
"""Expired calls are removed once in so many new ones."""


class Answered(Exception):
    """The call was answered before: nothing was changed. `body` is that answer."""

    def __init__(self, body: bytes) -> None:
        super().__init__("answered before")
        self.body = body


@dataclass(eq=False, slots=True)
class KeyedCall:
    """A call with an idempotency key.

    Attributes:
        digest: hash of the operation and its parameters.
        transaction: begins a transaction in the database of the service's keys; blocks.
        store: begins to store a change there, and returns a function that waits for it.
        answer: the answer that this attempt has stored.
        file: the answer of an attempt that is about to replace a file, or has done so.
        shape: makes the answer of the result of the next change.
        is_marked: whether this attempt has stored that the call has an effect.
        is_repeated: whether an earlier attempt was interrupted after it had begun.
        steps: outcomes of the parts that an earlier attempt completed.
        ended: whether the handler has ended; tasks that it started may still run with this call as their context.
    """

    key: str
    operation: str
    digest: bytes
    transaction: Callable[[], AbstractContextManager[apsw.Connection]] | None = None
    store: Callable[[Callable[[apsw.Connection], None]], Callable[[], None]] | None = None
    answer: bytes | None = None
    file: bytes | None = None
    shape: Callable[[Any], object] | None = None
    is_marked: bool = False
    is_repeated: bool = False
    steps: dict[str, bytes] = field(default_factory=dict)
    ended: bool = False

    def check_same(self, operation: str, digest: bytes) -> None:
        """Raise InvalidParams unless a call with this key was the same call."""
        if operation != self.operation or digest != self.digest:
            what = f"for {current_name(operation)}" if operation != self.operation else "with other parameters"
            raise InvalidParams(
                f"this idempotency key was already used {what}; use a new key for each different call", field="key"
            )


current: contextvars.ContextVar[KeyedCall | None] = contextvars.ContextVar("keyed_call", default=None)
"""The keyed call being served; None for calls without a key, and for background work."""


def serving() -> KeyedCall | None:
    """Return the keyed call being served."""
    call = current.get()
    return None if call is None or call.ended else call


def digest_of(operation: str, params: bytes) -> bytes:
    """Return the hash by which a repeated call is recognised as the same."""
    hashed = hashlib.blake2b(operation.encode(), digest_size=16)
    hashed.update(b"\0")
    hashed.update(params)
    return hashed.digest()


def mark(db: apsw.Connection, result: object, shape: Callable[[Any], object] | None) -> None:
    """Store that the call being served, if it has a key, has an effect in this transaction; with `shape`, also its
    answer, which `shape` makes of the result.

    Raises:
        Answered: it had its effect before.
    """
    if (call := serving()) is None:
        return
    if (shape := shape or call.shape) is None:
        put(db, call, None)
        return
    body = pack_body(named(shape(result)))
    put(db, call, body)
    call.answer = body


def shape_answer(shape: Callable[[Any], object]) -> None:
    """Have the next change that is made for the call being served store its answer, which `shape` makes of the
    result, although it is made by `Database.write`."""
    if (call := serving()) is not None:
        call.shape = shape


def put(db: apsw.Connection, call: KeyedCall, body: bytes | None) -> None:
    """Store a call, and its answer if it is known. Raises Answered if an earlier attempt has stored one."""
    found = find(db, call)
    if found is None:
        values = (call.key, call.operation, call.digest, time.time_ns(), body)
        db.execute("INSERT OR REPLACE INTO keyed_call VALUES(?,?,?,?,?)", values)
        call.is_marked = True
        if db.last_insert_rowid() % PURGE_EVERY == 0:
            purge(db)
    elif found.answer is not None and call.answer is None:
        raise Answered(found.answer)
    elif body is not None:
        db.execute("UPDATE keyed_call SET answer=? WHERE key=?", (body, call.key))


class Found(NamedTuple):
    """A call as an earlier attempt stored it."""

    answer: bytes | None


def find(db: apsw.Connection, call: KeyedCall) -> Found | None:
    """Return the stored record of a call, if there is one. Raises InvalidParams if its key was used for another one."""
    query = "SELECT operation, digest, answer FROM keyed_call WHERE key=? AND at_ns >= ?"
    if (row := db.execute(query, (call.key, _oldest())).fetchone()) is None:
        return None
    operation, digest, answer = row
    call.check_same(operation, digest)
    return Found(answer)


def finish(db: apsw.Connection, call: KeyedCall, body: bytes) -> None:
    """Store the answer of a call, and forget its steps."""
    values = (call.key, call.operation, call.digest, time.time_ns(), body)
    db.execute("INSERT INTO keyed_call VALUES(?,?,?,?,?) ON CONFLICT(key) DO UPDATE SET answer=excluded.answer", values)
    db.execute("DELETE FROM keyed_step WHERE key=?", (call.key,))
    db.execute("DELETE FROM keyed_file WHERE key=?", (call.key,))


class Record(msgspec.Struct, frozen=True):
    """A call and its answer, in a journal that is carried out even if the process dies."""

    key: str
    operation: str
    digest: bytes
    answer: bytes


def record(answer: object) -> Record | None:
    """Return what a journal needs of the call being served; None if it has no key."""
    call = serving()
    return (
        None if call is None else Record(call.key, call.operation, call.digest, pack_body(named(answer, begins=True)))
    )


def restore(db: apsw.Connection, found: Record) -> None:
    """Store the answer of a call whose journal was carried out after the death of the process that served it."""
    finish(db, KeyedCall(found.key, found.operation, found.digest), found.answer)


def check(db: apsw.Connection) -> None:
    """Raise Answered if the call being served has been answered meanwhile."""
    call = serving()
    if call is not None and (found := find(db, call)) is not None and found.answer is not None:
        raise Answered(found.answer)


# Steps


def step(db: apsw.Connection, name: str, value: object) -> None:
    """Store the outcome of a part of the call being served, in the transaction of its effect."""
    if (call := serving()) is not None:
        put(db, call, None)
        put_step(db, call.key, name, pack_body(value))


def put_step(db: apsw.Connection, key: str, name: str, value: bytes) -> None:
    """Store the outcome of a part of a call."""
    db.execute("INSERT OR REPLACE INTO keyed_step VALUES(?,?,?)", (key, name, value))


def intend_step(db: apsw.Connection, intent: int, name: str, value: object) -> None:
    """Store that the service's own record `intent` of an imminent change is a part of the call being served."""
    if (call := serving()) is not None:
        put(db, call, None)
        db.execute("INSERT OR REPLACE INTO keyed_intent VALUES(?,?,?,?)", (intent, call.key, name, pack_body(value)))


def settle_step(db: apsw.Connection, intent: int, *, done: bool) -> None:
    """Store that the change of a record was made, or that it was not, when the record is removed."""
    found = db.execute("SELECT key, step, value FROM keyed_intent WHERE intent=?", (intent,)).fetchone()
    if found is None:
        return
    if done:
        put_step(db, *found)
    db.execute("DELETE FROM keyed_intent WHERE intent=?", (intent,))


def steps() -> dict[str, bytes]:
    """Return the parts of the call being served that an earlier attempt completed."""
    call = serving()
    return {} if call is None else call.steps


# Files


def intend(db: apsw.Connection, call: KeyedCall, path: str, before: bytes | None, after: bytes, answer: object) -> None:
    """Store that the call is about to replace a file (or create it, if `before` is None), and its answer."""
    put(db, call, None)
    call.file = pack_body(answer)
    values = (call.key, path, None if before is None else content_digest(before), content_digest(after), call.file)
    db.execute("INSERT OR REPLACE INTO keyed_file VALUES(?,?,?,?,?)", values)


def settle_own(db: apsw.Connection, call: KeyedCall, *, done: bool) -> None:
    """Store that the call being served has replaced the file as it intended, or that it has not."""
    answer, call.file = call.file, None
    settle(db, call.key, answer if done else None)
    if done:
        call.answer = answer


def forget(db: apsw.Connection, call: KeyedCall) -> None:
    """Remove the mark of a call that had no effect."""
    db.execute("DELETE FROM keyed_call WHERE key=? AND answer IS NULL", (call.key,))


def settle(db: apsw.Connection, key: str, answer: bytes | None) -> None:
    """Store that a file was replaced as intended, or with `answer` None that it was not."""
    db.execute("DELETE FROM keyed_file WHERE key=?", (key,))
    if answer is None:
        db.execute("DELETE FROM keyed_call WHERE key=? AND answer IS NULL", (key,))
    else:
        db.execute("UPDATE keyed_call SET answer=? WHERE key=? AND answer IS NULL", (answer, key))


def content_digest(data: bytes) -> bytes:
    """Return the hash by which the content of a file is recognised."""
    return hashlib.sha256(data).digest()


def purge(db: apsw.Connection) -> None:
    """Remove the calls whose time is over."""
    before = (_oldest(),)
    old = "(SELECT key FROM keyed_call WHERE at_ns < ?)"
    db.execute(f"DELETE FROM keyed_step WHERE key IN {old}", before)
    db.execute(f"DELETE FROM keyed_file WHERE key IN {old}", before)
    db.execute(f"DELETE FROM keyed_intent WHERE key IN {old}", before)
    db.execute("DELETE FROM keyed_call WHERE at_ns < ?", before)


def _oldest() -> int:
    return time.time_ns() - KEPT_S * 10**9


def lost(operation: str) -> MaybeExecuted:
    """Return the failure of a repeated call whose first attempt had an effect, but no answer."""
    return MaybeExecuted(
        f"{operation} was interrupted after it had begun to make changes, and is not repeated; look at what it "
        "concerns, then use a new key"
    )
