"""`store.Transaction` on one connection to the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString, NamedTuple

import msgspec

from proto.errors import InvalidParams
from proto.ops.retrieve import Group, Item
from services.retrieve import item_store
from services.retrieve.filters import filterable
from services.retrieve.index.lexical import Row
from services.retrieve.item_store import Change, ItemWithVector
from services.retrieve.postgres import words
from services.retrieve.postgres.rows import divided, given, half_vector, stored
from services.retrieve.postgres.searching import ServerSearching
from services.retrieve.postgres.server import Gone
from services.retrieve.vector_store import Model, Waiting

STATE_LOCKS = 0x6C6E6B61
"""First key of the advisory locks that keep a collection in its state; the second is its number."""

TURN_LOCKS = 0x6C6E6B62
"""First key of the advisory locks of `take_turns`; the second is the collection's number."""


class ServerStore(ServerSearching):
    """One connection, in a transaction or on one snapshot."""

    # Changes

    def _begin_change(self, ids: Sequence[str]) -> None:
        """Note what is changed, if the collection is leaving; refuse, if it has left."""
        # `PostgresEngine.set_state` waits for this lock, so nobody changes what it does not expect.
        self._run("SELECT pg_advisory_xact_lock_shared(%s, %s)", (STATE_LOCKS, self._number))
        state = self._one("SELECT state FROM collections WHERE number = %s", (self._number,))
        if state == "leaving":
            self._run(
                "INSERT INTO changes (collection, id) SELECT %s, unnest(%s::text[])",
                (self._number, [*map(stored, ids)]),
            )
        elif state not in ("live", "copying"):
            why = "was removed" if state is None else "is moving to another place"
            raise Gone(f"the collection {why}", retry_after_ms=500)

    def take_turns(self) -> None:
        self._run("SELECT pg_advisory_xact_lock(%s, %s)", (TURN_LOCKS, self._number))

    def put(self, groups: Sequence[Group]) -> Change:
        self._begin_change([group.id for group in groups])
        change = Change()
        # In the order of their ids, so that two writers never wait for each other.
        numbers, before = self._put_groups(sorted(groups, key=lambda group: stored(group.id)))
        held = self._held_items(list(numbers.values()))
        gone: list[int] = []
        moved: list[tuple[Any, ...]] = []
        fresh: list[tuple[Group, Item, int, int, bytes]] = []
        for group in groups:
            number = numbers[group.id]
            old = held.get(number, {})
            hashes, kept = item_store.difference(group, {key: row.hash for key, row in old.items()}, before[group.id])
            gone += [row.item_id for key, row in old.items() if key not in kept]
            for position, item in enumerate(group.items):
                if item.key not in kept:
                    fresh.append((group, item, number, position, hashes[item.key]))
                    continue
                row = old[item.key]
                metadata = msgspec.json.encode(item.metadata).decode()
                if (row.position, row.metadata, row.embed) != (position, metadata, item.embed):
                    moved.append((position, metadata, item.embed, row.item_id))
        self._many("UPDATE {items} SET position = %s, metadata = %s, embed = %s WHERE item_id = %s", moved)
        added = self._insert_items(fresh)
        model = self.current_model()
        supplied: dict[int, bytes] = {}
        if model is not None:
            supplied = {
                item_id: item.vector
                for item_id, (_, item, *_rest) in zip(added, fresh, strict=True)
                if isinstance(item, ItemWithVector)
            }
            self._insert_vectors(model, list(supplied.items()))
            self.made += len(supplied)
        embedded = [item_id for item_id, (_, item, *_rest) in zip(added, fresh, strict=True) if item.embed]
        self._keep_vectors([item_id for item_id in embedded if item_id not in supplied], model)
        self._remove_items(gone, model)
        self._queue(list(numbers.values()), bare=any(not item.embed for group in groups for item in group.items))
        # Only their number matters here, as words are indexed on the server.
        change.rows = [Row(item_id, "", "", "") for item_id in added]
        change.gone = gone
        return change

    def _put_groups(self, groups: Sequence[Group]) -> tuple[dict[str, int], dict[str, str]]:
        """Store and lock the groups.  Returns their numbers, and their names before."""
        ids = [stored(group.id) for group in groups]
        rows = [
            (stored(group.id), stored(group.title), stored(group.names), msgspec.json.encode(group.metadata).decode())
            for group in groups
        ]
        columns = [*map(list, zip(*rows, strict=True))]
        fresh: set[str] = set()
        found: dict[str, Any] = {}
        # Again if another writer deletes a group after it was found to exist and before it is locked.
        while len(found) < len(ids):
            inserted = self._rows(
                "INSERT INTO {groups} (id, title, names, metadata) SELECT id, title, names, metadata::json "
                "FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[]) AS given (id, title, names, metadata) "
                "ON CONFLICT (id) DO NOTHING RETURNING id",
                columns,
            )
            fresh |= {id_ for (id_,) in inserted}
            locked = self._rows(
                "SELECT group_id, id, title, names, metadata::text FROM {groups} WHERE id = ANY(%s) "
                "ORDER BY id FOR UPDATE",
                (ids,),
            )
            found = {row[1]: row for row in locked}
        changed = [row for row in rows if row[0] not in fresh and tuple(found[row[0]][2:]) != row[1:]]
        self._many(
            "UPDATE {groups} SET title = %s, names = %s, metadata = %s WHERE id = %s",
            [(title, names, metadata, id_) for id_, title, names, metadata in changed],
        )
        values = {group.id: group.metadata for group in groups}
        refiltered = [row[0] for row in rows if row[0] in fresh or found[row[0]][4] != row[3]]
        if known := [found[id_][0] for id_ in refiltered if id_ not in fresh]:
            self._run("DELETE FROM {group_values} WHERE group_id = ANY(%s)", (known,))
        filtered = [
            (found[id_][0], stored(field), *divided(value))
            for id_ in refiltered
            for field, value in filterable(values[given(id_)])
        ]
        if filtered:
            self._run(
                "INSERT INTO {group_values} (group_id, field, word, number) "
                "SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::numeric[])",
                [*map(list, zip(*filtered, strict=True))],
            )
        numbers = {given(id_): row[0] for id_, row in found.items()}
        return numbers, {given(id_): given(row[3]) for id_, row in found.items()}

    def _held_items(self, groups: Sequence[int]) -> dict[int, dict[str, _Held]]:
        held: dict[int, dict[str, _Held]] = {}
        rows = self._rows(
            "SELECT group_id, key, item_id, hash, position, metadata::text, embed FROM {items} "
            "WHERE group_id = ANY(%s)",
            (list(groups),),
        )
        for group, key, item_id, hash_, *unsaid in rows:
            held.setdefault(group, {})[given(key)] = _Held(item_id, bytes(hash_), *unsaid)
        return held

    def _insert_items(self, fresh: Sequence[tuple[Group, Item, int, int, bytes]]) -> list[int]:
        if not fresh:
            return []
        columns: list[list[Any]] = [[] for _ in range(10)]
        for group, item, number, position, hash_ in fresh:
            try:
                entry, length = words.entry(f"{group.title} {group.names}", item.heading, item.text)
                row = (
                    number, stored(item.key), position, stored(item.heading), stored(item.text),
                    msgspec.json.encode(item.metadata).decode(), hash_, item.embed, entry, length,
                )  # fmt: skip
            except UnicodeEncodeError as error:
                raise InvalidParams(f"parameter `groups`: group {group.id!r} is not valid Unicode: {error}") from None
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        rows = self._rows(
            "INSERT INTO {items} (group_id, key, position, heading, text, metadata, hash, embed, words, length) "
            "SELECT group_id, key, position, heading, text, metadata::json, hash, embed, words::tsvector, length FROM "
            "unnest(%s::bigint[], %s::text[], %s::int[], %s::text[], %s::text[], %s::text[], %s::bytea[], %s::bool[], "
            "%s::text[], %s::int[]) WITH ORDINALITY AS given "
            "(group_id, key, position, heading, text, metadata, hash, embed, words, length, place) "
            "ORDER BY place RETURNING item_id",
            columns,
        )
        return [item_id for (item_id,) in rows]

    def _keep_vectors(self, added: Sequence[int], model: Model | None) -> None:
        """Give new items the vectors that other items with the same words have, in any group."""
        if added:
            searched = 0 if model is None else model.model_id
            staged = self._staging.take(searched, len(added))
            kept = self._rows(
                "INSERT INTO {vectors} (model_id, item_id, vector, staged) "
                "SELECT DISTINCT ON (v.model_id, fresh.item_id) "
                "v.model_id, fresh.item_id, v.vector, %s AND v.model_id = %s FROM {items} AS fresh "
                "JOIN {items} AS old ON old.hash = fresh.hash JOIN {vectors} AS v ON v.item_id = old.item_id "
                "WHERE fresh.item_id = ANY(%s) ON CONFLICT DO NOTHING RETURNING model_id",
                (staged, searched, list(added)),
            )
            made = sum(model_id == searched for (model_id,) in kept)
            if staged:
                self._staging.give_back(len(added) - made)
            self.made += made

    def _store(self, model: Model, vectors: Sequence[tuple[int, bytes]]) -> int:
        """Store vectors, and return how many of the items had none."""
        had = self._one(
            "SELECT count(*) FROM {vectors} WHERE model_id = %s AND item_id = ANY(%s)",
            (model.model_id, [item_id for item_id, _ in vectors]),
        )
        self._insert_vectors(model, vectors)
        return len(vectors) - int(had)

    def _insert_vectors(self, model: Model, vectors: Sequence[tuple[int, bytes]]) -> None:
        staged = self._staging.take(model.model_id, len(vectors))
        self._many(
            "INSERT INTO {vectors} (model_id, item_id, vector, staged) VALUES (%s, %s, %s, %s) "
            "ON CONFLICT (model_id, item_id) DO UPDATE SET vector = excluded.vector, staged = excluded.staged",
            [(model.model_id, item_id, half_vector(vector), staged) for item_id, vector in vectors],
        )

    def _remove_vectors(self, which: LiteralString, arguments: Sequence[Any], model: Model | None) -> None:
        """Remove vectors of all models; `model` is the one that is searched."""
        rows = self._rows("DELETE FROM {vectors} WHERE " + which + " RETURNING model_id", arguments)
        self.made -= sum(model is not None and model_id == model.model_id for (model_id,) in rows)

    def _remove_items(self, gone: Sequence[int], model: Model | None) -> None:
        if not gone:
            return
        self._remove_vectors("item_id = ANY(%s)", (list(gone),), model)
        self.queued -= self._run("DELETE FROM {outbox} WHERE item_id = ANY(%s)", (list(gone),)).rowcount
        self._run("DELETE FROM {items} WHERE item_id = ANY(%s)", (list(gone),))

    def _queue(self, groups: Sequence[int], *, bare: bool) -> None:
        """Add the items of these groups that lack a vector to the outbox; if `bare`, some are not to have one."""
        current, coming = self._models()
        if bare:
            which: LiteralString = "item_id IN (SELECT item_id FROM {items} WHERE group_id = ANY(%s) AND NOT embed)"
            self._remove_vectors(which, (list(groups),), current)
            self.queued -= self._run("DELETE FROM {outbox} WHERE " + which, (list(groups),)).rowcount
        model = coming or current
        self.queued += self._run(
            "INSERT INTO {outbox} (item_id) SELECT item_id FROM {items} AS i WHERE group_id = ANY(%s) AND embed "
            "AND NOT EXISTS (SELECT 1 FROM {vectors} AS v WHERE v.item_id = i.item_id AND model_id = %s) "
            "ON CONFLICT DO NOTHING",
            (list(groups), 0 if model is None else model.model_id),
        ).rowcount

    def delete(self, ids: Sequence[str]) -> Change:
        self._begin_change(ids)
        asked = sorted(map(stored, ids))
        numbers = [
            number
            for (number,) in self._rows(
                "SELECT group_id FROM {groups} WHERE id = ANY(%s) ORDER BY id FOR UPDATE", (asked,)
            )
        ]
        rows = self._rows("SELECT item_id FROM {items} WHERE group_id = ANY(%s)", (numbers,))
        gone = [item_id for (item_id,) in rows]
        self._remove_items(gone, self.current_model())
        self._run("DELETE FROM {group_values} WHERE group_id = ANY(%s)", (numbers,))
        self._run("DELETE FROM {groups} WHERE group_id = ANY(%s)", (numbers,))
        return Change(gone=gone)

    def settle(self, fingerprint: str, done: Sequence[tuple[Waiting, bytes]]) -> Change:
        current, coming = self._models()
        last = coming or current
        change = Change()
        hashes = {item.item_id: item.hash for item, _ in done}
        # Locked, so that the items are not removed meanwhile.
        same = {
            item_id
            for item_id, hash_ in self._rows(
                "SELECT item_id, hash FROM {items} WHERE item_id = ANY(%s) AND embed ORDER BY item_id FOR SHARE",
                ([item.item_id for item, _ in done],),
            )
            if hash_ == hashes[item_id]
        }
        kept = [(item.item_id, vector) for item, vector in done if item.item_id in same]
        for model in (current, coming):
            if model is None or model.fingerprint != fingerprint or not kept:
                continue
            added = self._store(model, kept)
            if model == last:
                done_ids = [item_id for item_id, _ in kept]
                self.queued -= self._run("DELETE FROM {outbox} WHERE item_id = ANY(%s)", (done_ids,)).rowcount
                self.made += added
        return change

    def postpone(self, item: Waiting, until: float, error: str) -> None:
        self._run(
            "UPDATE {outbox} SET attempts = attempts + 1, not_before = %s, error = %s WHERE item_id = %s",
            (until, stored(error[:1000]), item.item_id),
        )

    def remember(self, key: str, value: str) -> None:
        self._run(
            "INSERT INTO meta (collection, key, value) VALUES (%s, %s, %s) "
            "ON CONFLICT (collection, key) DO UPDATE SET value = excluded.value",
            (self._number, key, value),
        )

    def forget(self, key: str) -> None:
        self._run("DELETE FROM meta WHERE collection = %s AND key = %s", (self._number, key))

    def set_epoch(self, epoch: str) -> None:
        self._run("UPDATE collections SET epoch = %s WHERE number = %s", (epoch, self._number))

    def adopt_model(self, fingerprint: str, dimensions: int) -> None:
        # One kernel at a time; the others then find that it is done.
        self._run("SELECT 1 FROM collections WHERE number = %s FOR UPDATE", (self._number,))
        current, coming = self.current_model(), self.coming_model()
        if (last := coming or current) is not None and last.fingerprint == fingerprint:
            return
        self._run(
            "INSERT INTO models (fingerprint, dimensions) VALUES (%s, %s) ON CONFLICT (fingerprint) DO NOTHING",
            (fingerprint, dimensions),
        )
        number = self._one("SELECT model_id FROM models WHERE fingerprint = %s", (fingerprint,))
        is_searched = (
            current is None
            or current.model_id == number
            or self._one("SELECT 1 FROM {vectors} WHERE model_id = %s LIMIT 1", (current.model_id,)) is None
        )
        others = [number, *([current.model_id] if current is not None and not is_searched else [])]
        self._run("DELETE FROM {vectors} WHERE model_id <> ALL(%s)", (others,))
        self.forget("coming")
        self.remember("model" if is_searched else "coming", str(number))
        # Items that failed with another model may succeed with this one.
        self._run("DELETE FROM {outbox}")
        self._run(
            "INSERT INTO {outbox} (item_id) SELECT item_id FROM {items} AS i WHERE embed "
            "AND NOT EXISTS (SELECT 1 FROM {vectors} AS v WHERE v.item_id = i.item_id AND model_id = %s)",
            (number,),
        )

    def switch(self, model: Model) -> bool:
        """Make the coming model current.  Returns False if the coming model is not `model`, or not complete."""
        self._run("SELECT 1 FROM collections WHERE number = %s FOR UPDATE", (self._number,))
        if self.coming_model() != model or self._one("SELECT 1 FROM {outbox} LIMIT 1") is not None:
            return False
        self.forget("coming")
        self.remember("model", str(model.model_id))
        return True


class _Held(NamedTuple):
    item_id: int
    hash: bytes
    position: int
    metadata: str
    embed: bool
