"""What `store.Snapshot` reads of a collection on the server: items, groups, state and the outbox."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, LiteralString

from psycopg import sql

from proto.ops.retrieve import Filter, GroupIds
from services.retrieve.filters import storable
from services.retrieve.item_store import MOST_LINKED, ItemDetails
from services.retrieve.postgres.rows import ServerRows, given, read_metadata, stored
from services.retrieve.postgres.schema import FIELD_CHARS, WORD_CHARS
from services.retrieve.postgres.server import Gone
from services.retrieve.store import Piece, StoredGroup
from services.retrieve.vector_store import Model, Progress, Waiting
from services.shared.text.cutting import embedded_text


class ServerReading(ServerRows):
    """Reads items, groups, state and the outbox."""

    # Items and groups

    def groups_of(self, ids: Sequence[int]) -> dict[int, int]:
        return dict(self._rows("SELECT item_id, group_id FROM {items} WHERE item_id = ANY(%s)", (list(ids),)))

    def siblings(self, ids: Sequence[int]) -> dict[int, list[int]]:
        model = self.current_model()
        rows = self._rows(
            "SELECT item.item_id, array_agg(other.item_id) FROM {items} AS item "
            "JOIN {items} AS other ON other.group_id = item.group_id AND other.item_id <> item.item_id "
            "JOIN {vectors} AS held ON held.item_id = other.item_id AND held.model_id = %s "
            "WHERE item.item_id = ANY(%s) GROUP BY item.item_id",
            (0 if model is None else model.model_id, list(ids)),
        )
        return dict(rows)

    def linked(self, groups: Sequence[int], field: str) -> list[tuple[int, int]]:
        # The beginnings are those of the index.
        query: LiteralString = (
            "SELECT named.group_id, g.group_id FROM {group_values} AS named JOIN {groups} AS g "
            "ON left(named.word, 200) = left(g.id, 200) AND named.word = g.id "
            "WHERE left(named.field, 100) = %s AND named.field = %s AND "
        )
        of = (stored(field)[:FIELD_CHARS], stored(field), list(groups))
        after = self._rows(query + "g.group_id = ANY(%s) LIMIT %s", (*of, MOST_LINKED))
        return self._rows(query + "named.group_id = ANY(%s)", of) + after

    def values(self, groups: Sequence[int], field: str) -> dict[int, str]:
        query: LiteralString = (
            "SELECT group_id, word FROM {group_values} WHERE field = %s AND word IS NOT NULL AND group_id = ANY(%s)"
        )
        return {group: given(word) for group, word in self._rows(query, (stored(field), list(groups)))}

    def pieces_of(self, groups: Sequence[int], filters: Sequence[Filter]) -> dict[int, int]:
        where, arguments = self._where(filters)
        query: LiteralString = (
            "SELECT item_id, group_id FROM {items} WHERE embed AND group_id = ANY(%s) "
            "AND group_id IN (SELECT group_id FROM {groups} WHERE group_id = ANY(%s) AND {where})"
        )
        return dict(self._rows(query, (list(groups), list(groups), *arguments), where=where))

    def never_embedded(self, ids: Sequence[int]) -> set[int]:
        rows = self._rows("SELECT item_id FROM {items} WHERE NOT embed AND item_id = ANY(%s)", (list(ids),))
        return {item_id for (item_id,) in rows}

    def items(self, ids: Sequence[int], full: int | None = None) -> dict[int, ItemDetails]:
        whole, short = (ids, ids[:0]) if full is None else (ids[:full], ids[full:])
        found: dict[int, ItemDetails] = {}
        if short:
            query: LiteralString = (
                "SELECT item_id, id, key FROM {items} JOIN {groups} USING (group_id) WHERE item_id = ANY(%s)"
            )
            found = {
                item_id: ItemDetails(item_id, given(group), given(key))
                for item_id, group, key in self._rows(query, (list(short),))
            }
        if whole:
            rows = self._rows(
                "SELECT item_id, id, key, title, heading, text, g.metadata::text, i.metadata::text "
                "FROM {items} AS i JOIN {groups} AS g USING (group_id) WHERE item_id = ANY(%s)",
                (list(whole),),
            )
            for item_id, *texts, of_group, of_item in rows:
                group, key, title, heading, text = map(given, texts)
                found[item_id] = ItemDetails(
                    item_id, group, key, title, heading, text, read_metadata(of_group), read_metadata(of_item)
                )
        return found

    def beginnings(self, ids: Sequence[int], chars: int) -> list[str]:
        rows = self._rows("SELECT left(text, %s) FROM {items} WHERE item_id = ANY(%s)", (chars, list(ids)))
        return [given(text) for (text,) in rows]

    def successors(self, gone: Mapping[int, ItemDetails]) -> dict[int, ItemDetails]:
        there: dict[int, int] = {}
        for item_id, found in gone.items():
            successor = self._one(
                "SELECT item_id FROM {items} JOIN {groups} USING (group_id) WHERE id = %s "
                "ORDER BY heading = %s DESC, position LIMIT 1",
                (stored(found.group), stored(found.heading)),
            )
            if successor is not None:
                there[item_id] = successor
        now = self.items(list(there.values()))
        return {item_id: now[other] for item_id, other in there.items()}

    def group_ids(self, after: str, limit: int) -> GroupIds:
        rows = self._rows("SELECT id FROM {groups} WHERE id > %s ORDER BY id LIMIT %s", (stored(after), limit + 1))
        ids = [given(id_) for (id_,) in rows]
        return GroupIds(ids=ids[:limit], more=len(ids) > limit, epoch=self.epoch())

    def epoch(self) -> str:
        return str(self._one("SELECT epoch FROM collections WHERE number = %s", (self._number,)) or "")

    def group_names(self) -> dict[int, str]:
        return {number: given(id_) for number, id_ in self._rows("SELECT group_id, id FROM {groups}")}

    def count_groups(self, filters: Sequence[Filter]) -> int:
        where, arguments = self._where(filters)
        return int(self._one("SELECT count(*) FROM {groups} WHERE {where}", arguments, where=where))

    def matching(
        self, filters: Sequence[Filter], after: str = "", among: Sequence[str] = (), limit: int = -1
    ) -> list[str]:
        where, arguments = self._where(filters)
        rows = self._rows(
            "SELECT id FROM {groups} WHERE id > %s AND {where} AND (%s OR id = ANY(%s)) ORDER BY id LIMIT %s",
            (stored(after), *arguments, not among, [*map(stored, among)], None if limit < 0 else limit), where=where,
        )  # fmt: skip
        return [given(id_) for (id_,) in rows]

    def contents(self, ids: Sequence[str]) -> list[StoredGroup]:
        model = self.current_model()
        asked = [*map(stored, ids)]
        groups = {
            id_: StoredGroup(given(id_), given(title), given(names), read_metadata(metadata), [])
            for id_, title, names, metadata in self._rows(
                "SELECT id, title, names, metadata::text FROM {groups} WHERE id = ANY(%s)", (asked,)
            )
        }
        rows = self._rows(
            "SELECT id, key, heading, text, i.metadata::text, embed, vector FROM {items} AS i "
            "JOIN {groups} USING (group_id) LEFT JOIN {vectors} AS v ON v.item_id = i.item_id AND model_id = %s "
            "WHERE id = ANY(%s) ORDER BY id, position",
            (0 if model is None else model.model_id, asked),
        )
        for id_, key, heading, text, metadata, embed, vector in rows:
            packed = None if vector is None else vector.to_numpy().astype("<f2").tobytes()
            groups[id_].pieces.append(
                Piece(given(key), given(heading), given(text), read_metadata(metadata), embed, packed)
            )
        return [groups[id_] for id_ in asked if id_ in groups]

    def sizes(self, ids: Sequence[str]) -> tuple[int, int]:
        row: tuple[int, int] = self._rows(
            "SELECT count(DISTINCT g.group_id), coalesce(sum((i.metadata->>'bytes')::bigint), 0)::bigint "
            "FROM {groups} AS g LEFT JOIN {items} AS i USING (group_id) WHERE id = ANY(%s)",
            ([*map(stored, ids)],),
        )[0]
        return row

    def counts(self) -> tuple[int, int, int, int]:
        model = self.current_model()
        row: tuple[int, int, int, int] = self._rows(
            "SELECT (SELECT count(*) FROM {groups}), (SELECT count(*) FROM {items}), "
            "(SELECT count(*) FROM {vectors} WHERE model_id = %s), (SELECT count(*) FROM {outbox} WHERE attempts > 0)",
            (0 if model is None else model.model_id,),
        )[0]
        return row

    def _where(self, filters: Sequence[Filter]) -> tuple[sql.Composable, tuple[Any, ...]]:
        """Return a condition on `group_id`, and its arguments."""
        conditions: list[sql.Composable] = [sql.SQL("true")]
        arguments: list[Any] = []
        for each in filters:
            # The beginnings are those of the indexes.
            field = stored(each.field)
            of_field: list[sql.Composable] = [sql.SQL("left(field, 100) = %s AND field = %s")]
            arguments += [field[:FIELD_CHARS], field]
            if each.any_of is not None:
                of_field.append(
                    sql.SQL("((left(word, 200) = ANY(%s) AND word = ANY(%s)) OR number = ANY(%s::numeric[]))")
                )
                values = [storable(value) for value in each.any_of]
                chosen = [stored(value) for value in values if isinstance(value, str)]
                arguments += [[word[:WORD_CHARS] for word in chosen], chosen]
                arguments.append([Decimal(repr(value)) for value in values if not isinstance(value, str)])
            if each.prefix is not None:
                prefix = stored(each.prefix)
                of_field.append(sql.SQL("starts_with(left(word, 200), %s) AND starts_with(word, %s)"))
                arguments += [prefix[:WORD_CHARS], prefix]
            for sign, bound in ((sql.SQL(">="), each.at_least), (sql.SQL("<="), each.at_most)):
                if bound is not None:
                    of_field.append(sql.SQL("number {sign} %s").format(sign=sign))
                    arguments.append(Decimal(repr(bound)))
            conditions.append(
                sql.SQL("group_id IN (SELECT group_id FROM {table} WHERE {conditions})").format(
                    table=self._parts["group_values"], conditions=sql.SQL(" AND ").join(of_field)
                )
            )
        return sql.SQL(" AND ").join(conditions), tuple(arguments)

    # State

    def meta(self, key: str) -> str | None:
        found = self._rows(
            "SELECT value FROM collections LEFT JOIN meta ON collection = number AND key = %s WHERE number = %s",
            (key, self._number),
        )
        if not found:
            raise Gone("the collection was removed", retry_after_ms=0)
        value: str | None = found[0][0]
        return value

    def current_model(self) -> Model | None:
        return self._model("model")

    def coming_model(self) -> Model | None:
        """Return the model whose vectors are being made while those of another are searched."""
        return self._model("coming")

    def _model(self, key: str) -> Model | None:
        row = self._run(
            "SELECT model_id, fingerprint, dimensions FROM models JOIN meta ON value = model_id::text "
            "WHERE collection = %s AND key = %s",
            (self._number, key),
        ).fetchone()
        return None if row is None else Model(*row)

    def _models(self) -> tuple[Model | None, Model | None]:
        """Return the model whose vectors are searched, and the one whose vectors are being made."""
        rows = self._rows(
            "SELECT key, model_id, fingerprint, dimensions FROM models JOIN meta ON value = model_id::text "
            "WHERE collection = %s AND key IN ('model', 'coming')",
            (self._number,),
        )
        models = {key: Model(*row) for key, *row in rows}
        return models.get("model"), models.get("coming")

    def progress(self) -> Progress:
        current, coming = self._models()
        waiting = int(self._one("SELECT count(*) FROM {outbox}"))
        made = self._made(current)
        if coming is None:
            return Progress(waiting, made, waiting)
        of_coming = self._made(coming)
        return Progress(waiting, of_coming, waiting + of_coming - made)

    def _made(self, model: Model | None) -> int:
        if model is None:
            return 0
        return int(self._one("SELECT count(*) FROM {vectors} WHERE model_id = %s", (model.model_id,)))

    # The outbox

    def waiting(self, now: float, limit: int) -> list[Waiting]:
        return self._waiting("not_before <= %s ORDER BY not_before, o.item_id LIMIT %s", (now, limit))

    def waiting_of(self, now: float, groups: Iterable[str], limit: int) -> list[Waiting]:
        found: list[Waiting] = []
        for group in groups:
            found += self._waiting("not_before <= %s AND g.id = %s LIMIT %s", (now, stored(group), limit - len(found)))
            if len(found) == limit:
                break
        return found

    def waiting_before(self, now: float, before: int, limit: int) -> list[Waiting]:
        return self._waiting(
            "not_before <= %s AND o.item_id < %s ORDER BY o.item_id DESC LIMIT %s", (now, before, limit)
        )

    def without_vector(self, limit: int) -> list[Waiting]:
        model = self.current_model()
        return self._waiting(
            "NOT EXISTS (SELECT 1 FROM {vectors} AS v WHERE v.item_id = o.item_id AND model_id = %s) "
            "ORDER BY o.item_id DESC LIMIT %s",
            (0 if model is None else model.model_id, limit),
        )

    def _waiting(self, condition: LiteralString, arguments: Sequence[Any]) -> list[Waiting]:
        query: LiteralString = (
            "SELECT o.item_id, attempts, hash, title, heading, text FROM {outbox} AS o "
            "JOIN {items} AS i ON i.item_id = o.item_id JOIN {groups} AS g ON g.group_id = i.group_id WHERE "
        )
        return [
            Waiting(item_id, attempts, bytes(hash_), embedded_text(*map(given, texts)))
            for item_id, attempts, hash_, *texts in self._rows(query + condition, arguments)
        ]
