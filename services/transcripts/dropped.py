"""What was deleted: the hashes of turns, so that `linckia sync` deletes them on other machines too, and they do not
come back from there. A hash is all that is kept of a turn.

The functions take a connection and run inside the caller's transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import apsw

TABLES = """
-- Deleted turns: from one conversation, or from all (`name` is empty). One that is stored again has returned.
CREATE TABLE dropped(
    hash BLOB NOT NULL, name BLOB NOT NULL, at_ns INTEGER NOT NULL, returned_ns INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY(hash, name)
) WITHOUT ROWID;
CREATE TRIGGER dropped_returns AFTER INSERT ON member WHEN EXISTS(SELECT 1 FROM dropped) BEGIN
    UPDATE dropped SET returned_ns=max(at_ns + 1, CAST(unixepoch('subsec') * 1e9 AS INTEGER))
    WHERE hash=(SELECT hash FROM node WHERE node_id=NEW.node_id AND NOT gone) AND returned_ns<=at_ns
    AND name IN (x'', (SELECT name FROM conversation WHERE conversation_id=NEW.conversation_id));
END;
"""

ALL = b""
"""Stands for all conversations."""

_JOINS = "joins"
"""Setting of a database that another kernel was joined with."""


def note(db: apsw.Connection, name: bytes, hashes: Iterable[bytes]) -> None:
    """Note the deletion of turns from the conversation with this name, or from all."""
    for hash_ in hashes:
        merge(db, name, hash_, time.time_ns(), 0)


def merge(db: apsw.Connection, name: bytes, hash_: bytes, at_ns: int, returned_ns: int) -> bool:
    """Note a deletion with its times, of which the latest count. Returns whether the turn is deleted."""
    db.execute(
        "INSERT INTO dropped(hash, name, at_ns, returned_ns) VALUES(?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " at_ns=max(at_ns, excluded.at_ns), returned_ns=max(returned_ns, excluded.returned_ns)",
        (hash_, name, at_ns, returned_ns),
    )
    return is_dropped(db, name, hash_)


def is_dropped(db: apsw.Connection, name: bytes, hash_: bytes) -> bool:
    found = "SELECT 1 FROM dropped WHERE hash=? AND name=? AND returned_ns<=at_ns"
    return db.execute(found, (hash_, name)).get is not None


def note_joins(db: apsw.Connection) -> None:
    """Note that other kernels are joined with this one."""
    db.execute("INSERT OR IGNORE INTO setting(name, value) VALUES(?, '1')", (_JOINS,))


def joins(db: apsw.Connection) -> bool:
    """Return whether another kernel may have turns that were stored here."""
    return db.execute("SELECT 1 FROM setting WHERE name=?", (_JOINS,)).get is not None
