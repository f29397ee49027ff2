"""The tables of a collection's database, and how a damaged database is recreated.

Everything in it is derived from what the corpora feed. A damaged file is therefore set aside and an empty one created
under a new epoch, which tells the corpora to feed it again.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import apsw

from services.retrieve.index import lexical
from services.retrieve.manifest import SCHEMA_VERSION
from services.runtime.database import Schema, copies

PRAGMAS = {
    # Overwrite deleted content.
    "secure_delete": 1,
    "cache_size": -16384,
}


def vector_table_sql(name: str) -> str:
    """Return the SQL for a table of vectors.  Counting its rows reads only the index."""
    return (
        f"CREATE TABLE {name} (item_id INTEGER PRIMARY KEY, model_id INTEGER NOT NULL, vector BLOB NOT NULL); "
        f"CREATE INDEX {name}_by_model ON {name} (model_id);"
    )


_TABLES = (
    """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE groups (
    group_id INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL,
    names TEXT NOT NULL DEFAULT '',
    metadata BLOB NOT NULL
);

-- The values that filters match: one row per value, several for a list.
CREATE TABLE group_values (group_id INTEGER NOT NULL, field TEXT NOT NULL, value NOT NULL);
CREATE INDEX group_values_by_value ON group_values (field, value, group_id);
CREATE INDEX group_values_by_group ON group_values (group_id);

-- Within an epoch ids are never reused, and an item whose content changes gets a new id,
-- so a stale id never refers to other content.
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
-- Items waiting for a vector.
CREATE TABLE outbox (
    item_id INTEGER PRIMARY KEY,
    attempts INTEGER NOT NULL DEFAULT 0,
    not_before REAL NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT ''
);
CREATE INDEX outbox_by_time ON outbox (not_before, item_id);

-- `vectors` is searched. `coming` collects the vectors of a new model until it is complete.
"""
    + vector_table_sql("vectors")
    + vector_table_sql("coming")
)


def _name_epoch(db: apsw.Connection) -> None:
    db.execute("INSERT INTO meta (key, value) VALUES ('epoch', ?)", (uuid.uuid4().hex,))


def _begin(db: apsw.Connection) -> None:
    lexical.create(db)
    _name_epoch(db)
    if aside := copies.damaged_files(Path(db.filename)):
        reason = f"was damaged (the file is kept as {aside[-1].name}) and is being refilled"
        db.execute("INSERT INTO meta (key, value) VALUES ('refilling', ?)", (reason,))


_NAMES = "ALTER TABLE groups ADD COLUMN names TEXT NOT NULL DEFAULT ''"

_COMING = (
    vector_table_sql("coming")
    + "DELETE FROM vectors WHERE model_id != (SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'model')"
)

SCHEMA = Schema(
    version=SCHEMA_VERSION, tables=_TABLES, migrations={1: _name_epoch, 2: _NAMES, 3: _COMING}, begin=_begin
)
