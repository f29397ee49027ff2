"""`store.Transaction` over the SQLite database of a collection, and the indexes in memory that belong to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import cast

import apsw
import msgspec
import numpy as np

from proto.ops.retrieve import Filter, Group, GroupIds
from services.retrieve import item_store, vector_store
from services.retrieve.filters import allowed_items, compile_filters
from services.retrieve.index.lexical import Fts5
from services.retrieve.index.live_vectors import VectorIndex
from services.retrieve.index.vectors import HalfMatrix, ItemIds, Matrix, Scored
from services.retrieve.index.word_index import WordIndex
from services.retrieve.item_store import Change, ItemDetails, Metadata
from services.retrieve.store import FoundWords, GroupNumbers, Piece, SearchedVectors, StoredGroup
from services.retrieve.vector_store import Model, Progress, Waiting

_FETCH = 8192


class LocalStore:
    """One connection, in a transaction or on one snapshot."""

    def __init__(self, db: apsw.Connection, words: WordIndex) -> None:
        self.db = db
        self._words = words
        self._allowed: tuple[Sequence[Filter], ItemIds] | None = None

    # Words

    def find_words(self, query: str, limit: int, filters: Sequence[Filter]) -> FoundWords:
        return self._words.search(self.db, query, limit, compile_filters(filters))

    def weights(self, query: str) -> dict[str, float]:
        return Fts5(self.db).weights(query)

    def held(self, terms: Iterable[str], items: Sequence[int]) -> dict[int, list[str]]:
        return Fts5(self.db).held(terms, items)

    # Vectors

    def nearest(self, index: SearchedVectors, query: Matrix, limit: int, filters: Sequence[Filter]) -> Scored:
        return cast(VectorIndex, index).nearest(query, limit, self._admitted(filters))

    def _admitted(self, filters: Sequence[Filter]) -> ItemIds | None:
        if (where := compile_filters(filters)) is None:
            return None
        if self._allowed is None or self._allowed[0] is not filters:
            # A search that looks deeper asks again.
            self._allowed = (filters, allowed_items(self.db, where))
        return self._allowed[1]

    def cosines(self, index: SearchedVectors, query: Matrix, ids: Sequence[int]) -> dict[int, float]:
        return cast(VectorIndex, index).cosines(query, ids)

    def group_vectors(self, model: Model) -> Iterator[tuple[GroupNumbers, HalfMatrix]]:
        cursor = self.db.execute(
            "SELECT items.group_id, vector FROM items CROSS JOIN vectors ON vectors.item_id = items.item_id "
            "WHERE model_id = ? ORDER BY items.group_id",
            (model.model_id,),
        )
        while rows := list(islice(cursor, _FETCH)):
            groups = np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))
            packed: HalfMatrix = np.frombuffer(b"".join(row[1] for row in rows), dtype="<f2")
            yield groups, packed.reshape(len(rows), model.dimensions)

    # Items and groups

    def groups_of(self, ids: Sequence[int]) -> dict[int, int]:
        return item_store.groups_of(self.db, ids)

    def siblings(self, ids: Sequence[int]) -> dict[int, list[int]]:
        return item_store.siblings(self.db, ids)

    def linked(self, groups: Sequence[int], field: str) -> list[tuple[int, int]]:
        return item_store.linked(self.db, groups, field)

    def values(self, groups: Sequence[int], field: str) -> dict[int, str]:
        return item_store.values(self.db, groups, field)

    def pieces_of(self, groups: Sequence[int], filters: Sequence[Filter]) -> dict[int, int]:
        return item_store.pieces_of(self.db, groups, compile_filters(filters))

    def never_embedded(self, ids: Sequence[int]) -> set[int]:
        return item_store.never_embedded(self.db, ids)

    def items(self, ids: Sequence[int], full: int | None = None) -> dict[int, ItemDetails]:
        return item_store.items(self.db, ids, full)

    def beginnings(self, ids: Sequence[int], chars: int) -> list[str]:
        return item_store.beginnings(self.db, ids, chars)

    def successors(self, gone: Mapping[int, ItemDetails]) -> dict[int, ItemDetails]:
        return item_store.successors(self.db, gone)

    def group_ids(self, after: str, limit: int) -> GroupIds:
        return item_store.group_ids(self.db, after, limit)

    def group_names(self) -> dict[int, str]:
        return {int(number): str(name) for number, name in self.db.execute("SELECT group_id, id FROM groups")}

    def count_groups(self, filters: Sequence[Filter]) -> int:
        if (where := compile_filters(filters)) is None:
            return int(self.db.execute("SELECT count(*) FROM groups").get)
        query = f"SELECT count(*) FROM groups WHERE group_id IN ({where.groups})"
        return int(self.db.execute(query, where.arguments).get)

    def matching(
        self, filters: Sequence[Filter], after: str = "", among: Sequence[str] = (), limit: int = -1
    ) -> list[str]:
        where = compile_filters(filters)
        query, arguments = "SELECT id FROM groups WHERE id > ?", [after]
        if where is not None:
            query += f" AND group_id IN ({where.groups})"
        if among:
            query += f" AND id IN ({', '.join('?' * len(among))})"
        chosen = () if where is None else where.arguments
        rows = self.db.execute(f"{query} ORDER BY id LIMIT ?", (*arguments, *chosen, *among, limit))
        return [id_ for (id_,) in rows]

    def contents(self, ids: Sequence[str]) -> list[StoredGroup]:
        found = []
        for id_ in ids:
            row = self.db.execute("SELECT group_id, title, names, metadata FROM groups WHERE id = ?", (id_,)).fetchone()
            if row is not None:
                number, title, names, metadata = row
                found.append(StoredGroup(id_, title, names, _read(metadata), list(self._pieces(number))))
        return found

    def _pieces(self, group: int) -> Iterator[Piece]:
        query = (
            "SELECT key, heading, text, metadata, embed, vector FROM items LEFT JOIN vectors USING (item_id) "
            "WHERE group_id = ? ORDER BY position"
        )
        for key, heading, text, metadata, embed, vector in self.db.execute(query, (group,)):
            yield Piece(key, heading, text, _read(metadata), bool(embed), vector)

    def sizes(self, ids: Sequence[str]) -> tuple[int, int]:
        size = "json_extract(CAST(items.metadata AS TEXT), '$.bytes')"
        row: tuple[int, int] = self.db.execute(
            f"SELECT count(DISTINCT groups.group_id), coalesce(sum({size}), 0) FROM groups "
            "LEFT JOIN items ON items.group_id = groups.group_id WHERE id IN (SELECT value FROM json_each(?))",
            (msgspec.json.encode(ids).decode(),),
        ).get
        return row

    def counts(self) -> tuple[int, int, int, int]:
        return item_store.counts(self.db)

    # State

    def meta(self, key: str) -> str | None:
        return item_store.meta(self.db, key)

    def progress(self) -> Progress:
        return vector_store.progress(self.db)

    def current_model(self) -> Model | None:
        return vector_store.current_model(self.db)

    # The outbox

    def waiting(self, now: float, limit: int) -> list[Waiting]:
        return vector_store.waiting(self.db, now, limit)

    def waiting_of(self, now: float, groups: Iterable[str], limit: int) -> list[Waiting]:
        return vector_store.waiting_of(self.db, now, groups, limit)

    def waiting_before(self, now: float, before: int, limit: int) -> list[Waiting]:
        return vector_store.waiting_before(self.db, now, before, limit)

    def without_vector(self, limit: int) -> list[Waiting]:
        return vector_store.without_vector(self.db, limit)

    # Changes

    def take_turns(self) -> None:
        """There is only one writer."""

    def put(self, groups: Sequence[Group]) -> Change:
        return item_store.put(self.db, groups)

    def delete(self, ids: Sequence[str]) -> Change:
        return item_store.delete(self.db, ids)

    def settle(self, fingerprint: str, done: Sequence[tuple[Waiting, bytes]]) -> Change:
        return item_store.settle(self.db, fingerprint, done)

    def postpone(self, item: Waiting, until: float, error: str) -> None:
        vector_store.postpone(self.db, item, until, error)

    def remember(self, key: str, value: str) -> None:
        self.db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))

    def forget(self, key: str) -> None:
        self.db.execute("DELETE FROM meta WHERE key = ?", (key,))

    def set_epoch(self, epoch: str) -> None:
        self.remember("epoch", epoch)

    def adopt_model(self, fingerprint: str, dimensions: int) -> None:
        vector_store.adopt_model(self.db, fingerprint, dimensions)


def _read(stored: bytes) -> Metadata:
    return msgspec.json.decode(stored, type=Metadata)
