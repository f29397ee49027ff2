"""One collection's database: its tables, and how it is opened.

The database is the truth; word index, vectors in memory and outbox follow from it or stand in it. WAL with
`synchronous=FULL`: a commit that returned is on disk.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from proto.errors import OperationError
from services.retrieve import lexical
from services.runtime.sqlite_files import sync_folder

VERSION = 1

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE groups (
    group_id INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL,
    metadata BLOB NOT NULL
);

-- What filters look at: one row for each value, several for a list.
CREATE TABLE group_values (group_id INTEGER NOT NULL, field TEXT NOT NULL, value NOT NULL);
CREATE INDEX group_values_by_value ON group_values (field, value, group_id);
CREATE INDEX group_values_by_group ON group_values (group_id);

-- An id is never used twice, and an item whose content changes gets a new one:
-- whatever still holds the old id holds nothing.
CREATE TABLE items (
    item_id INTEGER PRIMARY KEY AUTOINCREMENT,
    group_id INTEGER NOT NULL,
    key TEXT NOT NULL,
    position INTEGER NOT NULL,
    heading TEXT NOT NULL,
    text TEXT NOT NULL,
    metadata BLOB NOT NULL,
    hash BLOB NOT NULL,
    embed INTEGER NOT NULL,
    UNIQUE (group_id, key)
);
CREATE INDEX items_by_hash ON items (hash);

CREATE TABLE models (model_id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, dimensions INTEGER NOT NULL);
CREATE TABLE vectors (item_id INTEGER PRIMARY KEY, model_id INTEGER NOT NULL, vector BLOB NOT NULL);
CREATE INDEX vectors_by_model ON vectors (model_id);

-- Items that wait for a vector.
CREATE TABLE outbox (
    item_id INTEGER PRIMARY KEY,
    attempts INTEGER NOT NULL DEFAULT 0,
    not_before REAL NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT ''
);
CREATE INDEX outbox_by_time ON outbox (not_before, item_id);
"""


def open_writer(path: Path) -> sqlite3.Connection:
    """The one connection that writes; makes the database where there is none.

    Raises:
        OperationError: the file is no such database, or was written by a newer version.
        sqlite3.Error: the disk is full, read-only or failing.
    """
    fresh = not path.exists()
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    try:
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if version > VERSION:
            raise OperationError(f"{path} was written by a newer version ({version}, this one knows {VERSION})")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        # What is deleted is overwritten, not only forgotten.
        db.execute("PRAGMA secure_delete=ON")
        # A large ingest leaves a large log behind; this much of it is kept for the next.
        db.execute("PRAGMA journal_size_limit=67108864")
        db.execute("PRAGMA cache_size=-32768")
        if version == 0:
            db.execute("BEGIN IMMEDIATE")
            for statement in _TABLES.split(";\n"):
                db.execute(statement)
            lexical.create(db)
            db.execute(f"PRAGMA user_version={VERSION}")
            db.execute("COMMIT")
        elif not lexical.is_current(db):
            db.execute("BEGIN IMMEDIATE")
            lexical.rebuild(db)
            db.execute("COMMIT")
        if fresh:
            sync_folder(path.parent)
    except sqlite3.DatabaseError as error:
        db.close()
        if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise OperationError(f"{path} is damaged ({error}); restore it, or move it away to start anew") from error
        raise
    except BaseException:
        db.close()
        raise
    return db


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that reads, beside the writer and without waiting for it."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
    db.execute("PRAGMA query_only=ON")
    db.execute("PRAGMA cache_size=-16384")
    return db
