"""The groups and items of a collection in SQL.  `vector_store` has the vectors and the outbox.

Each function takes one connection. Writes run inside the caller's transaction, so a batch is stored completely or not
at all. They return the changes that the in-memory indexes have to apply.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import apsw
import msgspec

from proto.errors import InvalidParams
from proto.ops.retrieve import Group, GroupIds, Item, Value
from services.retrieve import vector_store
from services.retrieve.filters import Where, check_metadata, filterable, select_ids
from services.retrieve.index.lexical import Fts5, Row, row_of
from services.retrieve.index.vectors import ItemIds
from services.retrieve.vector_store import NO_PROGRESS, Progress, Stored, VectorsByHash, Waiting

T = TypeVar("T")

Metadata: TypeAlias = dict[str, Value]

MOST_LINKED = 1000
"""Most successors that a search looks at: a greeting may begin thousands of conversations."""

_AMONG = "IN (SELECT value FROM json_each(?))"


class ItemWithVector(Item, frozen=True, kw_only=True):
    """An item whose vector the client supplied (of the current model, float16, little-endian)."""

    vector: bytes


class Change(msgspec.Struct):
    """The result of a write, for the in-memory indexes to apply."""

    rows: list[Row] = []
    """Words of the new items."""
    gone: list[int] = []
    """Ids of items that were removed or lost their vector."""
    stored: list[Stored] = []
    """New vectors of the model that is searched."""
    progress: Progress = NO_PROGRESS


class Indexed(Protocol):
    """The part of a collection that its indexes use: database access, and notification of a model switch."""

    async def on_reader(self, work: Callable[[apsw.Connection], T]) -> T: ...

    def read_here(self, work: Callable[[apsw.Connection], T]) -> T: ...

    async def on_writer(
        self, work: Callable[[apsw.Connection], T], follow: Callable[[T], object] | None = None
    ) -> T: ...

    def follow_models(self, db: apsw.Connection) -> None: ...


class ItemDetails(NamedTuple):
    """An item with its group, as shown in a hit."""

    item_id: int
    group: str
    key: str
    title: str = ""
    heading: str = ""
    text: str = ""
    group_metadata: Metadata = {}  # noqa: RUF012  # never changed
    item_metadata: Metadata = {}  # noqa: RUF012  # never changed


def check(groups: Sequence[Group]) -> None:
    """Raise InvalidParams if a group id or key is repeated, or metadata holds a value that JSON cannot represent."""
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
            raise InvalidParams(f"parameter `{at}`: {name!r} is a duplicate", field=at)
        seen.add(name)


def put(db: apsw.Connection, groups: Sequence[Group]) -> Change:
    """Replace the content of `groups`, which have passed `check`."""
    change = Change()
    # Read before anything is removed, so that a piece that only moved, even to another group, keeps its vectors.
    held = vector_store.held(db, {hash_of(group.title, item) for group in groups for item in group.items})
    numbers = [_put_group(db, group, held, change) for group in groups]
    change.gone += vector_store.queue(db, json.dumps(numbers))
    change.progress = vector_store.progress(db)
    return change


def delete(db: apsw.Connection, ids: Sequence[str]) -> Change:
    """Remove the groups with these ids."""
    change = Change()
    for id_ in ids:
        row = db.execute("SELECT group_id, title || ' ' || names FROM groups WHERE id = ?", (id_,)).fetchone()
        if row is None:
            continue
        group_id, title = row
        items = db.execute("SELECT json_group_array(item_id) FROM items WHERE group_id = ?", (group_id,)).get
        _remove_items(db, title, items, change)
        db.execute("DELETE FROM group_values WHERE group_id = ?", (group_id,))
        db.execute("DELETE FROM groups WHERE group_id = ?", (group_id,))
    change.progress = vector_store.progress(db)
    return change


def settle(db: apsw.Connection, fingerprint: str, done: Sequence[tuple[Waiting, bytes]]) -> Change:
    """See `vector_store.settle`."""
    return Change(stored=vector_store.settle(db, fingerprint, done), progress=vector_store.progress(db))


def _put_group(db: apsw.Connection, group: Group, held: Sequence[VectorsByHash], change: Change) -> int:
    """Store one group and return its row id."""
    metadata = msgspec.json.encode(group.metadata)
    now = (group.title, group.names, metadata)
    row = db.execute("SELECT group_id, title, names, metadata FROM groups WHERE id = ?", (group.id,)).fetchone()
    if row is None:
        db.execute("INSERT INTO groups (id, title, names, metadata) VALUES (?, ?, ?, ?)", (group.id, *now))
        row = (db.last_insert_rowid(), group.title, group.names, None)
    elif row[1:] != now:
        db.execute("UPDATE groups SET title = ?, names = ?, metadata = ? WHERE group_id = ?", (*now, row[0]))
    group_id, title, names, before = row
    if before != metadata:
        db.execute("DELETE FROM group_values WHERE group_id = ?", (group_id,))
        db.executemany(
            "INSERT INTO group_values (group_id, field, value) VALUES (?, ?, ?)",
            ((group_id, field, value) for field, value in filterable(group.metadata)),
        )
    old: dict[str, tuple[int, bytes]] = {
        key: (item_id, content)
        for key, item_id, content in db.execute("SELECT key, item_id, hash FROM items WHERE group_id = ?", (group_id,))
    }
    hashes, kept = difference(group, {key: content for key, (_, content) in old.items()}, names)
    gone = [item_id for key, (item_id, _) in old.items() if key not in kept]
    _remove_items(db, f"{title} {names}", json.dumps(gone), change)
    rows: list[Row] = []
    for position, item in enumerate(group.items):
        unsaid = (position, msgspec.json.encode(item.metadata), int(item.embed))
        if item.key in kept:
            db.execute(
                "UPDATE items SET position = ?1, metadata = ?2, embed = ?3 "
                "WHERE item_id = ?4 AND (position, metadata, embed) IS NOT (?1, ?2, ?3)",
                (*unsaid, old[item.key][0]),
            )
            continue
        db.execute(
            "INSERT INTO items (position, metadata, embed, group_id, key, heading, text, hash) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*unsaid, group_id, item.key, item.heading, item.text, hashes[item.key]),
        )
        item_id = db.last_insert_rowid()
        rows.append(row_of(item_id, f"{group.title} {group.names}", item.heading, item.text))
        for table, model, vectors in held if item.embed else ():
            vector = item.vector if isinstance(item, ItemWithVector) else vectors.get(hashes[item.key])
            if vector is not None:
                change.stored += vector_store.store_vector(db, table, model, Stored(item_id, vector))
    Fts5(db).add(rows)
    change.rows += rows
    return int(group_id)


def _remove_items(db: apsw.Connection, title: str, items: str, change: Change) -> None:
    """Remove items (ids in JSON) of one group whose words were indexed under `title`."""
    found = db.execute(f"SELECT item_id, heading, text FROM items WHERE item_id {_AMONG}", (items,))
    rows: list[Any] = found.fetchall()
    Fts5(db).remove([row_of(item_id, title, heading, text) for item_id, heading, text in rows])
    for table in (*vector_store.TABLES, "items"):
        db.execute(f"DELETE FROM {table} WHERE item_id {_AMONG}", (items,))
    change.gone += [item_id for item_id, _, _ in rows]


def difference(group: Group, stored: Mapping[str, bytes], names: str) -> tuple[dict[str, bytes], set[str]]:
    """Return the hashes of a group's items by their keys, and the keys of those that are stored already.

    Args:
        stored: the hashes of the items that are stored now, by their keys.
        names: the group's names as stored. If they change, so do the indexed words of every item, and all are new.
    """
    hashes = {item.key: hash_of(group.title, item) for item in group.items}
    if names != group.names:
        return hashes, set()
    return hashes, {key for key, content in stored.items() if hashes.get(key) == content}


def hash_of(title: str, item: Item) -> bytes:
    """Return what identifies the words of an item, and its vector if a client gave it."""
    words = (title, item.heading, item.text)
    content = msgspec.msgpack.encode((*words, item.vector) if isinstance(item, ItemWithVector) else words)
    return hashlib.sha256(content).digest()


def item_ids(db: apsw.Connection) -> ItemIds:
    """Return the ids of all items, sorted."""
    return select_ids(db, "SELECT item_id FROM items")


def has_items(db: apsw.Connection, count: int) -> bool:
    """Return whether there are at least `count` items, without counting the rest."""
    return db.execute("SELECT 1 FROM items LIMIT 1 OFFSET ?", (count - 1,)).fetchone() is not None


def counts(db: apsw.Connection) -> tuple[int, int, int, int]:
    """Return the numbers of groups, items, searched vectors, and items whose embedding has failed."""
    row: tuple[int, int, int, int] = db.execute(
        "SELECT (SELECT count(*) FROM groups), (SELECT count(*) FROM items), (SELECT count(*) FROM vectors), "
        "(SELECT count(*) FROM outbox WHERE attempts > 0)"
    ).get
    return row


def group_ids(db: apsw.Connection, after: str, limit: int) -> GroupIds:
    """Return group ids greater than `after`, in code point order."""
    rows = db.execute("SELECT id FROM groups WHERE id > ? ORDER BY id LIMIT ?", (after, limit + 1))
    ids = [id_ for (id_,) in rows]
    return GroupIds(ids=ids[:limit], more=len(ids) > limit, epoch=meta(db, "epoch") or "")


def groups_of(db: apsw.Connection, ids: Sequence[int]) -> dict[int, int]:
    """Map each of these items that still exists to the row id of its group."""
    rows: Any = db.execute(f"SELECT item_id, group_id FROM items WHERE item_id {_AMONG}", (json.dumps(ids),))
    return dict(rows)


def siblings(db: apsw.Connection, ids: Sequence[int]) -> dict[int, list[int]]:
    """Map items to the other items of their group that have a vector.  Items without such siblings are omitted."""
    query = (
        "SELECT items.item_id, json_group_array(other.item_id) FROM items "
        "JOIN items AS other ON other.group_id = items.group_id JOIN vectors ON vectors.item_id = other.item_id "
        f"WHERE items.item_id {_AMONG} AND other.item_id != items.item_id GROUP BY items.item_id"
    )
    return {item_id: json.loads(others) for item_id, others in db.execute(query, (json.dumps(ids),))}


def linked(db: apsw.Connection, groups: Sequence[int], field: str) -> list[tuple[int, int]]:
    """See `store.Snapshot.linked`."""
    ids = json.dumps(groups)
    # CROSS JOIN keeps the order of the tables: the values of a field are as many as there are groups.
    before = (
        "SELECT named.group_id, groups.group_id FROM group_values AS named "
        "CROSS JOIN groups ON groups.id = named.value "
        f"WHERE +named.field = ? AND named.group_id {_AMONG}"
    )
    after = (
        "SELECT named.group_id, groups.group_id FROM groups "
        "CROSS JOIN group_values AS named ON named.value = groups.id "
        f"WHERE named.field = ? AND groups.group_id {_AMONG} LIMIT {MOST_LINKED}"
    )
    rows: list[Any] = [*db.execute(before, (field, ids)), *db.execute(after, (field, ids))]
    return rows


def values(db: apsw.Connection, groups: Sequence[int], field: str) -> dict[int, str]:
    """See `store.Snapshot.values`."""
    query = f"SELECT group_id, value FROM group_values WHERE +field = ? AND group_id {_AMONG}"
    return {group: value for group, value in db.execute(query, (field, json.dumps(groups))) if isinstance(value, str)}


def pieces_of(db: apsw.Connection, groups: Sequence[int], where: Where | None) -> dict[int, int]:
    """See `store.Snapshot.pieces_of`."""
    query = f"SELECT item_id, group_id FROM items WHERE embed AND group_id {_AMONG}"
    arguments: tuple[str | int | float, ...] = (json.dumps(groups),)
    if where is not None:
        query, arguments = f"{query} AND group_id IN ({where.groups})", (*arguments, *where.arguments)
    rows: Any = db.execute(query, arguments)
    return dict(rows)


def never_embedded(db: apsw.Connection, ids: Sequence[int]) -> set[int]:
    """Return the items among `ids` that are not to be embedded."""
    query = f"SELECT item_id FROM items WHERE embed = 0 AND item_id {_AMONG}"
    return {item_id for (item_id,) in db.execute(query, (json.dumps(ids),))}


def items(db: apsw.Connection, ids: Sequence[int], full: int | None = None) -> dict[int, ItemDetails]:
    """Return the items among `ids` that still exist.  Only the first `full` include text."""
    whole, short = (ids, ids[:0]) if full is None else (ids[:full], ids[full:])
    tables = f"FROM items JOIN groups USING (group_id) WHERE item_id {_AMONG}"
    found = {row[0]: ItemDetails(*row) for row in db.execute(f"SELECT item_id, id, key {tables}", (json.dumps(short),))}
    columns = "item_id, id, key, title, heading, text, groups.metadata, items.metadata"
    for row in db.execute(f"SELECT {columns} {tables}", (json.dumps(whole),)):
        found[row[0]] = ItemDetails(*row[:-2], *(msgspec.json.decode(stored, type=Metadata) for stored in row[-2:]))
    return found


def beginnings(db: apsw.Connection, ids: Sequence[int], chars: int) -> list[str]:
    """Return the first `chars` characters of each item's text."""
    query = f"SELECT substr(text, 1, ?) FROM items WHERE item_id {_AMONG}"
    return [text for (text,) in db.execute(query, (chars, json.dumps(list(ids))))]


def successors(db: apsw.Connection, gone: Mapping[int, ItemDetails]) -> dict[int, ItemDetails]:
    """Map removed items to a replacement from the same group: the piece under the same heading, else the first."""
    there: dict[int, int] = {}
    for item_id, found in gone.items():
        successor = db.execute(
            "SELECT item_id FROM items JOIN groups USING (group_id) WHERE groups.id = ? "
            "ORDER BY heading = ? DESC, position LIMIT 1",
            (found.group, found.heading),
        ).get
        if successor is not None:
            there[item_id] = successor
    now = items(db, list(there.values()))
    return {item_id: now[other] for item_id, other in there.items()}


def meta(db: apsw.Connection, key: str) -> str | None:
    """Return a value from the collection's `meta` table."""
    value: str | None = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).get
    return value
