"""A collection in SQL: groups, items, vectors and the outbox.

Functions on one connection; those that write run inside the caller's transaction, so that a batch is on disk as a
whole or not at all. They answer with what the vectors in memory must follow.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import apsw
import msgspec

from proto.errors import InvalidParams
from proto.ops.retrieve import Group, GroupIds, Item, Value
from services.retrieve.filters import check_metadata, filterable, select_ids
from services.retrieve.lexical import Fts5, Row, row_of
from services.retrieve.schema import of_vectors
from services.retrieve.vectors import ItemIds
from services.runtime.text.cutting import reading

Metadata: TypeAlias = dict[str, Value]

_AT_ONCE = 500

VECTORS, COMING = "vectors", "coming"
"""The tables of vectors; `meta` has the coming model under the name of its table."""


class Stored(NamedTuple):
    """A vector as it lies in the database: float16, little-endian."""

    item_id: int
    vector: bytes


class Given(Item, frozen=True, kw_only=True):
    """An item whose vector is given (of the current model, float16, little-endian) and not made here."""

    vector: bytes


class Progress(NamedTuple):
    """How far the vectors are.

    `waiting` items are in the outbox, `made` have their vector, of the coming model where one is coming; `lacking` have
    none that is searched.
    """

    waiting: int
    made: int
    lacking: int


NONE = Progress(0, 0, 0)


class Change(msgspec.Struct):
    """What a write did, and what the vectors in memory must follow."""

    rows: list[Row] = []
    """Words of items that are new."""
    gone: list[int] = []
    """Items that went."""
    stored: list[Stored] = []
    """Vectors that are new."""
    progress: Progress = NONE


class Waiting(NamedTuple):
    """An item of the outbox; `hash` stands for the words that its vector has to be of."""

    item_id: int
    attempts: int
    hash: bytes
    text: str


class Found(NamedTuple):
    """An item with its group, as a hit shows it."""

    item_id: int
    group: str
    key: str
    title: str
    heading: str
    text: str
    group_metadata: Metadata
    item_metadata: Metadata


class Model(NamedTuple):
    """The model whose vectors the collection holds or is getting."""

    model_id: int
    fingerprint: str
    dimensions: int


def check(groups: Sequence[Group]) -> None:
    """Raises InvalidParams where a group or a key stands twice, or metadata hold what JSON cannot."""
    _check_once([group.id for group in groups], "groups[{}].id")
    for index, group in enumerate(groups):
        at = f"groups[{index}]"
        check_metadata(group.metadata, f"{at}.metadata")
        _check_once([item.key for item in group.items], f"{at}.items[{{}}].key")
        for position, item in enumerate(group.items):
            check_metadata(item.metadata, f"{at}.items[{position}].metadata")


def _check_once(names: Sequence[str], field: str) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            at = field.format(index)
            raise InvalidParams(f"parameter `{at}`: {name!r} stands twice", field=at)
        seen.add(name)


def put(db: apsw.Connection, groups: Sequence[Group]) -> Change:
    """Set the whole content of `groups` (those that `check` lets pass)."""
    change = Change()
    # Taken before anything is removed: a piece that only moved, to another group too, keeps its vectors.
    hashes = sorted({_hash(group.title, item) for group in groups for item in group.items})
    held = [_Held(table, model, _vectors_of(db, hashes, table)) for table, model in tables(db).items()]
    for group in groups:
        _put_group(db, group, held, change)
    change.progress = progress(db)
    return change


def delete(db: apsw.Connection, ids: Sequence[str]) -> Change:
    """Remove the groups of these ids."""
    change = Change()
    for group in ids:
        row = db.execute("SELECT group_id, title || ' ' || names FROM groups WHERE id = ?", (group,)).fetchone()
        if row is None:
            continue
        items = [item_id for (item_id,) in db.execute("SELECT item_id FROM items WHERE group_id = ?", (row[0],))]
        _remove_items(db, row[1], items, change)
        db.execute("DELETE FROM group_values WHERE group_id = ?", (row[0],))
        db.execute("DELETE FROM groups WHERE group_id = ?", (row[0],))
    change.progress = progress(db)
    return change


class _Held(NamedTuple):
    """Vectors of one table by the hash of their words."""

    table: str
    model: Model
    vectors: Mapping[bytes, bytes]


def _put_group(db: apsw.Connection, group: Group, held_vectors: Sequence[_Held], change: Change) -> None:
    metadata = msgspec.json.encode(group.metadata)
    now = (group.title, group.names, metadata)
    row = db.execute("SELECT group_id, title, names, metadata FROM groups WHERE id = ?", (group.id,)).fetchone()
    if row is None:
        db.execute("INSERT INTO groups (id, title, names, metadata) VALUES (?, ?, ?, ?)", (group.id, *now))
        row = (db.last_insert_rowid(), group.title, group.names, None)
    elif row[1:] != now:
        db.execute("UPDATE groups SET title = ?, names = ?, metadata = ? WHERE group_id = ?", (*now, row[0]))
    group_id, title, names, held = row
    if held != metadata:
        db.execute("DELETE FROM group_values WHERE group_id = ?", (group_id,))
        db.executemany(
            "INSERT INTO group_values (group_id, field, value) VALUES (?, ?, ?)",
            ((group_id, field, value) for field, value in filterable(group.metadata)),
        )
    old = {
        str(key): (int(item_id), bytes(content))
        for key, item_id, content in db.execute("SELECT key, item_id, hash FROM items WHERE group_id = ?", (group_id,))
    }
    hashes = {item.key: _hash(group.title, item) for item in group.items}
    # Under another name, all of its items are found by other words: they are new ones, with the vectors they had.
    renamed = names != group.names
    gone = [item_id for key, (item_id, content) in old.items() if renamed or hashes.get(key) != content]
    _remove_items(db, f"{title} {names}", gone, change)
    rows: list[Row] = []
    for position, item in enumerate(group.items):
        content = hashes[item.key]
        item_id, same = old.get(item.key, (0, b""))
        if same == content and not renamed:
            _update(db, item_id, position, item, change)
        else:
            item_id = _insert(db, group_id, position, item, content)
            rows.append(row_of(item_id, f"{group.title} {group.names}", item.heading, item.text))
            vector = None
            for table, model, vectors in held_vectors if item.embed else ():
                vector = item.vector if isinstance(item, Given) else vectors.get(content)
                if vector is not None:
                    _keep(db, table, model, Stored(item_id, vector), change)
            if item.embed and vector is None:
                db.execute("INSERT INTO outbox (item_id) VALUES (?)", (item_id,))
    Fts5(db).add(rows)
    change.rows += rows


def _insert(db: apsw.Connection, group_id: int, position: int, item: Item, content: bytes) -> int:
    metadata = msgspec.json.encode(item.metadata)
    db.execute(
        "INSERT INTO items (group_id, key, position, heading, text, metadata, hash, embed) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (group_id, item.key, position, item.heading, item.text, metadata, content, int(item.embed)),
    )
    return db.last_insert_rowid()


def _keep(db: apsw.Connection, table: str, model: Model, stored: Stored, change: Change) -> None:
    db.execute(
        f"INSERT OR REPLACE INTO {table} (item_id, model_id, vector) VALUES (?, ?, ?)",
        (stored.item_id, model.model_id, stored.vector),
    )
    if table == VECTORS:
        change.stored.append(stored)


def _update(db: apsw.Connection, item_id: int, position: int, item: Item, change: Change) -> None:
    """Bring what is no part of the words up to date."""
    metadata = msgspec.json.encode(item.metadata)
    held = db.execute("SELECT position, metadata, embed FROM items WHERE item_id = ?", (item_id,)).get
    embedded = bool(held[2])
    if held == (position, metadata, int(item.embed)):
        return
    db.execute(
        "UPDATE items SET position = ?, metadata = ?, embed = ? WHERE item_id = ?",
        (position, metadata, int(item.embed), item_id),
    )
    if embedded and not item.embed:
        for table in (VECTORS, COMING, "outbox"):
            db.execute(f"DELETE FROM {table} WHERE item_id = ?", (item_id,))
        change.gone.append(item_id)
    elif item.embed and not embedded:
        db.execute("INSERT INTO outbox (item_id) VALUES (?)", (item_id,))


def _remove_items(db: apsw.Connection, title: str, items: Sequence[int], change: Change) -> None:
    """Remove items of one group, whose words were indexed under `title`."""
    rows = _for_each(db, "SELECT item_id, heading, text FROM items WHERE item_id IN ({marks})", items)
    Fts5(db).remove([row_of(item_id, title, heading, text) for item_id, heading, text in rows])
    for table in (VECTORS, COMING, "outbox", "items"):
        list(_for_each(db, f"DELETE FROM {table} WHERE item_id IN ({{marks}})", items))
    change.gone.extend(items)


def _vectors_of(db: apsw.Connection, hashes: Sequence[bytes], table: str) -> dict[bytes, bytes]:
    query = f"SELECT hash, vector FROM items JOIN {table} USING (item_id) WHERE hash IN ({{marks}})"
    return dict(_for_each(db, query, hashes))


def _for_each(db: apsw.Connection, query: str, values: Sequence[int] | Sequence[bytes]) -> Iterator[Any]:
    """The rows of `query` for all of `values`, some hundred at a time: `{marks}` in it stands for these."""
    for start in range(0, len(values), _AT_ONCE):
        some = values[start : start + _AT_ONCE]
        yield from db.execute(query.replace("{marks}", ", ".join("?" * len(some))), some)


def _hash(title: str, item: Item) -> bytes:
    words = (title, item.heading, item.text)
    content = msgspec.msgpack.encode((*words, item.vector) if isinstance(item, Given) else words)
    return hashlib.sha256(content).digest()


def progress(db: apsw.Connection) -> Progress:
    """How far the vectors are, by the lengths of tables."""
    waiting, made, coming = db.execute(
        "SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM vectors), (SELECT count(*) FROM coming)"
    ).get
    if coming_model(db) is None:
        return Progress(waiting, made, waiting)
    return Progress(waiting, coming, waiting + coming - made)


def item_ids(db: apsw.Connection) -> ItemIds:
    """Of all items, sorted."""
    return select_ids(db, "SELECT item_id FROM items")


def has_items(db: apsw.Connection, count: int) -> bool:
    """Whether there are so many, without a look at more."""
    return db.execute("SELECT 1 FROM items LIMIT 1 OFFSET ?", (count - 1,)).fetchone() is not None


def counts(db: apsw.Connection) -> tuple[int, int, int, int]:
    """Groups, items, vectors that are searched, items whose vector failed before."""
    row: tuple[int, int, int, int] = db.execute(
        "SELECT (SELECT count(*) FROM groups), (SELECT count(*) FROM items), (SELECT count(*) FROM vectors), "
        "(SELECT count(*) FROM outbox WHERE attempts > 0)"
    ).get
    return row


def group_ids(db: apsw.Connection, after: str, limit: int) -> GroupIds:
    """Ids greater than `after`, in the order of their code points."""
    rows = db.execute("SELECT id FROM groups WHERE id > ? ORDER BY id LIMIT ?", (after, limit + 1))
    ids = [id_ for (id_,) in rows]
    return GroupIds(ids=ids[:limit], more=len(ids) > limit, epoch=meta(db, "epoch") or "")


def groups_of(db: apsw.Connection, ids: Sequence[int]) -> dict[int, int]:
    """The group of each of these items that is still there, by its internal number."""
    return dict(_for_each(db, "SELECT item_id, group_id FROM items WHERE item_id IN ({marks})", ids))


def siblings(db: apsw.Connection, ids: Sequence[int]) -> dict[int, list[int]]:
    """For each of these items the others of its group that have a vector, where there are any."""
    query = (
        "SELECT items.item_id, other.item_id FROM items JOIN items AS other ON other.group_id = items.group_id "
        "JOIN vectors ON vectors.item_id = other.item_id "
        "WHERE items.item_id IN ({marks}) AND other.item_id != items.item_id"
    )
    found: dict[int, list[int]] = {}
    for item_id, other in _for_each(db, query, ids):
        found.setdefault(item_id, []).append(other)
    return found


def never_embedded(db: apsw.Connection, ids: Sequence[int]) -> set[int]:
    """Those of these items that get no vector."""
    query = "SELECT item_id FROM items WHERE embed = 0 AND item_id IN ({marks})"
    return {item_id for (item_id,) in _for_each(db, query, ids)}


def items(db: apsw.Connection, ids: Sequence[int], full: int | None = None) -> dict[int, Found]:
    """The items of these ids that are still there; all but the first `full` with their ids alone."""
    whole, short = (ids, ids[:0]) if full is None else (ids[:full], ids[full:])
    tables = "FROM items JOIN groups ON groups.group_id = items.group_id WHERE item_id IN ({marks})"
    found = {
        item_id: Found(item_id, group, key, "", "", "", {}, {})
        for item_id, group, key in _for_each(db, f"SELECT item_id, id, key {tables}", short)
    }
    columns = "item_id, id, key, title, heading, text, groups.metadata, items.metadata"
    for row in _for_each(db, f"SELECT {columns} {tables}", whole):
        found[row[0]] = Found(*row[:-2], *(msgspec.json.decode(stored, type=Metadata) for stored in row[-2:]))
    return found


def successors(db: apsw.Connection, gone: Mapping[int, Found]) -> dict[int, Found]:
    """For items that are no more, what their group holds instead: the piece under the same heading, else the first."""
    there: dict[int, int] = {}
    for item_id, found in gone.items():
        successor = db.execute(
            "SELECT item_id FROM items JOIN groups ON groups.group_id = items.group_id WHERE groups.id = ? "
            "ORDER BY heading = ? DESC, position LIMIT 1",
            (found.group, found.heading),
        ).get
        if successor is not None:
            there[item_id] = successor
    now = items(db, list(there.values()))
    return {item_id: now[other] for item_id, other in there.items()}


def meta(db: apsw.Connection, key: str) -> str | None:
    """A setting of the collection as a whole."""
    value: str | None = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).get
    return value


def current_model(db: apsw.Connection) -> Model | None:
    """The model whose vectors are searched; None before the first."""
    return _model(db, "model")


def coming_model(db: apsw.Connection) -> Model | None:
    """The model whose vectors are being made while those of another are searched."""
    return _model(db, COMING)


def _model(db: apsw.Connection, key: str) -> Model | None:
    row = db.execute(
        "SELECT model_id, fingerprint, dimensions FROM models "
        "WHERE model_id = (SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?)",
        (key,),
    ).fetchone()
    return None if row is None else Model(*row)


def tables(db: apsw.Connection) -> dict[str, Model]:
    """The tables of vectors and whose they are; the outbox has the items that lack in the last one."""
    models = {VECTORS: current_model(db), COMING: coming_model(db)}
    return {table: model for table, model in models.items() if model is not None}


def adopt_model(db: apsw.Connection, fingerprint: str, dimensions: int) -> None:
    """Have every item get a vector of this model.

    Where there are vectors of another one, these are searched until `switch`; an item without a vector of the new one
    goes to the outbox.
    """
    db.execute("INSERT OR IGNORE INTO models (fingerprint, dimensions) VALUES (?, ?)", (fingerprint, dimensions))
    number = db.execute("SELECT model_id FROM models WHERE fingerprint = ?", (fingerprint,)).get
    before = current_model(db)
    is_searched = before is None or before.model_id == number or not db.execute("SELECT 1 FROM vectors LIMIT 1").get
    db.execute("DELETE FROM coming WHERE model_id != ?", (0 if is_searched else number,))
    db.execute("DELETE FROM meta WHERE key = ?", (COMING,))
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", ("model" if is_searched else COMING, str(number)))
    # What failed under another model may succeed under this one.
    db.execute("DELETE FROM outbox")
    lacking = f"item_id NOT IN (SELECT item_id FROM {VECTORS if is_searched else COMING})"
    db.execute(f"INSERT INTO outbox (item_id) SELECT item_id FROM items WHERE embed = 1 AND {lacking}")


def switch(db: apsw.Connection, model: Model) -> bool:
    """Have the vectors of the coming model searched, and drop the others; False where it is not this one."""
    if coming_model(db) != model:
        return False
    db.execute("DROP TABLE vectors; ALTER TABLE coming RENAME TO vectors; DROP INDEX coming_by_model")
    db.execute("CREATE INDEX vectors_by_model ON vectors (model_id)")
    db.execute(of_vectors(COMING))
    db.execute("UPDATE meta SET value = ? WHERE key = 'model'", (str(model.model_id),))
    db.execute("DELETE FROM meta WHERE key = ?", (COMING,))
    return True


_WAITING = (
    "SELECT outbox.item_id, attempts, hash, title, heading, text FROM outbox "
    "JOIN items ON items.item_id = outbox.item_id JOIN groups ON groups.group_id = items.group_id "
    "WHERE not_before <= ?"
)


def waiting(db: apsw.Connection, now: float, limit: int) -> list[Waiting]:
    """Items of the outbox whose time (Unix) has come, those first that have waited longest."""
    return _waiting(db.execute(f"{_WAITING} ORDER BY not_before, outbox.item_id LIMIT ?", (now, limit)))


def waiting_of(db: apsw.Connection, now: float, groups: Iterable[str], limit: int) -> list[Waiting]:
    """Items of the outbox whose time (Unix) has come, of the first of these groups that have any."""
    found: list[Waiting] = []
    # A group at a time: from it to its items, since those that wait may be all there are.
    own = f"{_WAITING} AND outbox.item_id IN (SELECT item_id FROM items JOIN groups USING (group_id) WHERE id = ?)"
    for group in groups:
        found += _waiting(db.execute(f"{own} LIMIT ?", (now, group, limit - len(found))))
        if len(found) == limit:
            break
    return found


def unserved(db: apsw.Connection, limit: int) -> list[Waiting]:
    """Items that have no vector yet, neither of the model that is coming nor of the one that is searched."""
    lacking = f"{_WAITING} AND NOT EXISTS (SELECT 1 FROM vectors WHERE vectors.item_id = outbox.item_id)"
    return _waiting(db.execute(f"{lacking} ORDER BY outbox.item_id DESC LIMIT ?", (math.inf, limit)))


def _waiting(rows: Iterable[Any]) -> list[Waiting]:
    return [Waiting(item_id, attempts, hash_, reading(*words)) for item_id, attempts, hash_, *words in rows]


def settle(db: apsw.Connection, fingerprint: str, done: Sequence[tuple[Waiting, bytes]]) -> Change:
    """Keep vectors of that model, where any are wanted, for those items that still hold the words they are of."""
    change = Change()
    same = "SELECT 1 FROM items WHERE item_id = ? AND hash = ? AND embed = 1"
    of = tables(db)
    for table, model in of.items():
        for item, vector in done if model.fingerprint == fingerprint else ():
            if db.execute(same, (item.item_id, item.hash)).get is None:
                continue
            _keep(db, table, model, Stored(item.item_id, vector), change)
            if table == [*of][-1]:
                db.execute("DELETE FROM outbox WHERE item_id = ?", (item.item_id,))
    change.progress = progress(db)
    return change


def postpone(db: apsw.Connection, item: Waiting, until: float, error: str) -> None:
    """The item's vector failed; try again at `until` (Unix time)."""
    db.execute(
        "UPDATE outbox SET attempts = attempts + 1, not_before = ?, error = ? WHERE item_id = ?",
        (until, error[:1000], item.item_id),
    )
