"""One collection's database: its tables, and how a damaged one is begun again.

All of it follows from what the corpora feed, so a damaged file is put aside and an empty one begun under another epoch,
by which the corpora notice that they have to feed it again. Word index, vectors in memory and outbox follow from it or
stand in it.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import apsw

from linckia.services.retrieve import lexical
from linckia.services.retrieve.manifest import SCHEMA_VERSION
from linckia.services.runtime.database import Schema, beside

PRAGMAS = {
    # What is deleted is overwritten, not only forgotten.
    "secure_delete": 1,
    "cache_size": -16384,
}


def of_vectors(name: str) -> str:
    """A table of vectors of one model; counting them reads the index alone."""
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

-- What filters look at: one row for each value, several for a list.
CREATE TABLE group_values (group_id INTEGER NOT NULL, field TEXT NOT NULL, value NOT NULL);
CREATE INDEX group_values_by_value ON group_values (field, value, group_id);
CREATE INDEX group_values_by_group ON group_values (group_id);

-- Within an epoch an id is never used twice, and an item whose content changes gets a new one:
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
-- Items that wait for a vector.
CREATE TABLE outbox (
    item_id INTEGER PRIMARY KEY,
    attempts INTEGER NOT NULL DEFAULT 0,
    not_before REAL NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT ''
);
CREATE INDEX outbox_by_time ON outbox (not_before, item_id);

-- `vectors` are searched; `coming` are those of another model, until there are as many.
"""
    + of_vectors("vectors")
    + of_vectors("coming")
)


def _name_epoch(db: apsw.Connection) -> None:
    db.execute("INSERT INTO meta (key, value) VALUES ('epoch', ?)", (uuid.uuid4().hex,))


def _begin(db: apsw.Connection) -> None:
    lexical.create(db)
    _name_epoch(db)
    if aside := beside.damaged_files(Path(db.filename)):
        reason = f"was found damaged, put aside as {aside[-1].name}, and is being fed again"
        db.execute("INSERT INTO meta (key, value) VALUES ('refilling', ?)", (reason,))


_NAMES = "ALTER TABLE groups ADD COLUMN names TEXT NOT NULL DEFAULT ''"

_COMING = (
    of_vectors("coming")
    + "DELETE FROM vectors WHERE model_id != (SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'model')"
)

SCHEMA = Schema(
    version=SCHEMA_VERSION, tables=_TABLES, migrations={1: _name_epoch, 2: _NAMES, 3: _COMING}, begin=_begin
)
