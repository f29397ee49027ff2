"""The vectors of a collection in SQL: of the current model, of a coming model, and the outbox of items without one.

As in `item_store`, writes run inside the caller's transaction.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import apsw

from services.retrieve.collection_schema import vector_table_sql
from services.shared.text.cutting import embedded_text

VECTORS, COMING = "vectors", "coming"
"""The vector tables.  `meta` stores the coming model under the name of its table."""

TABLES = (VECTORS, COMING, "outbox")
"""The tables with a row per item."""


class Stored(NamedTuple):
    """A vector as stored in the database: float16, little-endian."""

    item_id: int
    vector: bytes


class Model(NamedTuple):
    """A model whose vectors the collection has or is making."""

    model_id: int
    fingerprint: str
    dimensions: int


class VectorsByHash(NamedTuple):
    """Vectors of one table by the hash of their words."""

    table: str
    model: Model
    vectors: Mapping[bytes, bytes]


class Progress(NamedTuple):
    """Embedding progress.

    `waiting` items are in the outbox. `made` items have a vector (of the coming model, if there is one). `lacking`
    items have no vector that is searched.
    """

    waiting: int
    made: int
    lacking: int

    def towards(self, model: Model) -> str:
        """Describe the progress, to append to a message."""
        total = self.made + self.waiting
        return f" ({self.made} of {total} pieces have a vector of {model.fingerprint}, the model in use)"


NO_PROGRESS = Progress(0, 0, 0)


class Waiting(NamedTuple):
    """An item in the outbox.  `hash` identifies the words to embed."""

    item_id: int
    attempts: int
    hash: bytes
    text: str


def current_model(db: apsw.Connection) -> Model | None:
    """Return the model whose vectors are searched; None before the first."""
    return _model(db, "model")


def coming_model(db: apsw.Connection) -> Model | None:
    """Return the model whose vectors are being made while those of another are searched."""
    return _model(db, COMING)


def _model(db: apsw.Connection, key: str) -> Model | None:
    row = db.execute(
        "SELECT model_id, fingerprint, dimensions FROM models "
        "WHERE model_id = (SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?)",
        (key,),
    ).fetchone()
    return None if row is None else Model(*row)


def _tables(db: apsw.Connection) -> dict[str, Model]:
    """Return the vector tables in use with their models.  The outbox holds the items that the last one lacks."""
    models = {VECTORS: current_model(db), COMING: coming_model(db)}
    return {table: model for table, model in models.items() if model is not None}


def progress(db: apsw.Connection) -> Progress:
    """Compute the progress from the row counts of the tables."""
    waiting, made, coming = db.execute(
        "SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM vectors), (SELECT count(*) FROM coming)"
    ).get
    if coming_model(db) is None:
        return Progress(waiting, made, waiting)
    return Progress(waiting, coming, waiting + coming - made)


# Models


def adopt_model(db: apsw.Connection, fingerprint: str, dimensions: int) -> None:
    """Start making vectors of this model for every item.

    If there are vectors of another model, they are searched until `switch`. Items without a vector of the new model are
    added to the outbox.
    """
    db.execute("INSERT OR IGNORE INTO models (fingerprint, dimensions) VALUES (?, ?)", (fingerprint, dimensions))
    number = db.execute("SELECT model_id FROM models WHERE fingerprint = ?", (fingerprint,)).get
    before = current_model(db)
    is_searched = before is None or before.model_id == number or not db.execute("SELECT 1 FROM vectors LIMIT 1").get
    db.execute("DELETE FROM coming WHERE model_id != ?", (0 if is_searched else number,))
    db.execute("DELETE FROM meta WHERE key = ?", (COMING,))
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", ("model" if is_searched else COMING, str(number)))
    # Items that failed with another model may succeed with this one.
    db.execute("DELETE FROM outbox")
    lacking = f"item_id NOT IN (SELECT item_id FROM {VECTORS if is_searched else COMING})"
    db.execute(f"INSERT INTO outbox (item_id) SELECT item_id FROM items WHERE embed = 1 AND {lacking}")


def switch(db: apsw.Connection, model: Model) -> bool:
    """Make the coming model current and drop the other vectors.  Returns False if the coming model is not `model`."""
    if coming_model(db) != model:
        return False
    db.execute("DROP TABLE vectors; ALTER TABLE coming RENAME TO vectors; DROP INDEX coming_by_model")
    db.execute("CREATE INDEX vectors_by_model ON vectors (model_id)")
    db.execute(vector_table_sql(COMING))
    db.execute("UPDATE meta SET value = ? WHERE key = 'model'", (str(model.model_id),))
    db.execute("DELETE FROM meta WHERE key = ?", (COMING,))
    return True


# Vectors


def held(db: apsw.Connection, hashes: Iterable[bytes]) -> list[VectorsByHash]:
    """Return the existing vectors of words with these hashes."""
    wanted = json.dumps([each.hex() for each in hashes])
    among = "WHERE hash IN (SELECT unhex(value) FROM json_each(?))"
    found = []
    for table, model in _tables(db).items():
        rows: Any = db.execute(f"SELECT hash, vector FROM items JOIN {table} USING (item_id) {among}", (wanted,))
        found.append(VectorsByHash(table, model, dict(rows)))
    return found


def store_vector(db: apsw.Connection, table: str, model: Model, stored: Stored) -> list[Stored]:
    """Store a vector.  Returns it if it is of the model that is searched."""
    db.execute(
        f"INSERT OR REPLACE INTO {table} (item_id, model_id, vector) VALUES (?, ?, ?)",
        (stored.item_id, model.model_id, stored.vector),
    )
    return [stored] if table == VECTORS else []


def queue(db: apsw.Connection, groups: str) -> list[int]:
    """Add the items of these groups (row ids, in JSON) that lack a vector to the outbox.

    Vectors of items that are not to be embedded are deleted; returns the ids of these items.
    """
    of_groups = "SELECT item_id FROM items WHERE group_id IN (SELECT value FROM json_each(?)) AND embed"
    bare: list[Any] = []
    for table in TABLES:
        bare += db.execute(f"DELETE FROM {table} WHERE item_id IN ({of_groups} = 0) RETURNING item_id", (groups,))
    lacking = f"item_id NOT IN (SELECT item_id FROM {[VECTORS, *_tables(db)][-1]})"
    db.execute(f"INSERT OR IGNORE INTO outbox (item_id) {of_groups} = 1 AND {lacking}", (groups,))
    return [item_id for (item_id,) in bare]


def settle(db: apsw.Connection, fingerprint: str, done: Sequence[tuple[Waiting, bytes]]) -> list[Stored]:
    """Store vectors of the model `fingerprint`, if it is in use, for items whose words have not changed.

    Returns those of the model that is searched.
    """
    same = "SELECT 1 FROM items WHERE item_id = ? AND hash = ? AND embed = 1"
    of = _tables(db)
    kept = []
    for table, model in of.items():
        for item, vector in done if model.fingerprint == fingerprint else ():
            if db.execute(same, (item.item_id, item.hash)).get is None:
                continue
            kept += store_vector(db, table, model, Stored(item.item_id, vector))
            if table == [*of][-1]:
                db.execute("DELETE FROM outbox WHERE item_id = ?", (item.item_id,))
    return kept


# The outbox

_WAITING = (
    "SELECT outbox.item_id, attempts, hash, title, heading, text FROM outbox "
    "JOIN items ON items.item_id = outbox.item_id JOIN groups ON groups.group_id = items.group_id "
    "WHERE not_before <= ?"
)


def waiting(db: apsw.Connection, now: float, limit: int) -> list[Waiting]:
    """Return items of the outbox that are due at `now` (Unix time), the longest-waiting first."""
    return _waiting(db.execute(f"{_WAITING} ORDER BY not_before, outbox.item_id LIMIT ?", (now, limit)))


def waiting_of(db: apsw.Connection, now: float, groups: Iterable[str], limit: int) -> list[Waiting]:
    """Return items of the outbox that are due at `now` (Unix time), taking the groups in order."""
    found: list[Waiting] = []
    # One group at a time, so that the query starts from the group, not from an outbox that may hold every item.
    own = f"{_WAITING} AND outbox.item_id IN (SELECT item_id FROM items JOIN groups USING (group_id) WHERE id = ?)"
    for group in groups:
        found += _waiting(db.execute(f"{own} LIMIT ?", (now, group, limit - len(found))))
        if len(found) == limit:
            break
    return found


def waiting_before(db: apsw.Connection, now: float, before: int, limit: int) -> list[Waiting]:
    """Return items of the outbox that are due at `now` and whose ids are less than `before`, greatest ids first."""
    page = f"{_WAITING} AND outbox.item_id < ? ORDER BY outbox.item_id DESC LIMIT ?"
    return _waiting(db.execute(page, (now, before, limit)))


def without_vector(db: apsw.Connection, limit: int) -> list[Waiting]:
    """Return items that have no vector of any model yet."""
    lacking = f"{_WAITING} AND NOT EXISTS (SELECT 1 FROM vectors WHERE vectors.item_id = outbox.item_id)"
    return _waiting(db.execute(f"{lacking} ORDER BY outbox.item_id DESC LIMIT ?", (math.inf, limit)))


def _waiting(rows: Iterable[Any]) -> list[Waiting]:
    return [Waiting(item_id, attempts, hash_, embedded_text(*words)) for item_id, attempts, hash_, *words in rows]


def postpone(db: apsw.Connection, item: Waiting, until: float, error: str) -> None:
    """SegmentRecord a failed attempt, and retry the item at `until` (Unix time)."""
    db.execute(
        "UPDATE outbox SET attempts = attempts + 1, not_before = ?, error = ? WHERE item_id = ?",
        (until, error[:1000], item.item_id),
    )
