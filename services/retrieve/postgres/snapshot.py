"""`store.Transaction` on one connection to the server."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, LiteralString, NamedTuple

import msgspec
import numpy as np
from pgvector import HalfVector
from psycopg import Cursor, sql

from proto.errors import InvalidParams
from proto.ops.retrieve import Filter, Group, GroupIds, Item
from services.retrieve import item_store
from services.retrieve.filters import filterable, storable
from services.retrieve.index.lexical import Row
from services.retrieve.index.terms import query_terms, spellings
from services.retrieve.index.vectors import HalfMatrix, Matrix, Scored
from services.retrieve.item_store import Change, ItemDetails, ItemWithVector, Metadata
from services.retrieve.postgres import words
from services.retrieve.postgres.schema import FIELD_CHARS, WORD_CHARS
from services.retrieve.postgres.server import Connection, Gone, parts
from services.retrieve.postgres.words import K1, WEIGHTS, B
from services.retrieve.store import Content, FoundWords, GroupNumbers, Piece, SearchedVectors
from services.retrieve.vector_store import Model, Progress, Waiting
from services.shared.text.cutting import embedded_text

SMALL = 20_000
"""Up to this many items, words are counted at each search; beyond, they are taken from the server's statistics."""

FEW = 20_000
"""Up to this many items are scored by words, or compared with a query one by one."""

MOST_FETCHED = 1000
"""The most that pgvector keeps while it searches a graph (`hnsw.ef_search`)."""

OVERFETCH = 40
"""How many times as many are fetched by one-bit codes as are ranked exactly."""

STATE_LOCKS = 0x6C6E6B61
"""First key of the advisory locks that keep a collection in its state; the second is its number."""

TURN_LOCKS = 0x6C6E6B62
"""First key of the advisory locks of `take_turns`; the second is the collection's number."""

_CHUNK = 8192


class Indexing(msgspec.Struct, frozen=True):
    """How vectors are searched on the server: `kind` is `flat`, `hnsw` or `binary` (`[retrieve.postgres]`)."""

    kind: str
    search: int
    """How many candidates the graph keeps (`hnsw.ef_search`)."""


class ServerVectors(NamedTuple):
    """`SearchedVectors`: the model, how many vectors of it there are, and how they are indexed."""

    model: Model
    vectors: int
    indexing: Indexing

    def __len__(self) -> int:
        return self.vectors


class WordCounts(msgspec.Struct):
    """The server's statistics of the words of a large collection."""

    items: int
    average: float
    held_by: dict[str, float]
    """The share of the items that hold a word, for the most common words."""


class ServerStore:
    """One connection, in a transaction or on one snapshot.

    Args:
        number: of the collection.
        counts: the statistics of a large collection; None if it is small.
    """

    def __init__(self, connection: Connection, schema: str, number: int, counts: WordCounts | None = None) -> None:
        self._connection = connection
        self._number = number
        self._parts = parts(schema, number)
        self._counts = counts
        self.queued = 0
        """How many items this transaction added to the outbox, less those it removed."""
        self.made = 0
        """How many vectors it added to those that are searched."""

    def _run(self, query: LiteralString, arguments: Sequence[Any] = (), **more: sql.Composable) -> Cursor[Any]:
        statement = sql.SQL(query).format(**self._parts, **more)
        return self._connection.execute(statement, arguments)

    def _rows(self, query: LiteralString, arguments: Sequence[Any] = (), **more: sql.Composable) -> list[Any]:
        return self._run(query, arguments, **more).fetchall()

    def _many(self, query: LiteralString, rows: Sequence[Sequence[Any]], **more: sql.Composable) -> None:
        if rows:
            with self._connection.cursor() as cursor:
                cursor.executemany(sql.SQL(query).format(**self._parts, **more), rows)

    def _one(self, query: LiteralString, arguments: Sequence[Any] = (), **more: sql.Composable) -> Any:
        row = self._run(query, arguments, **more).fetchone()
        return None if row is None else row[0]

    # Words

    def find_words(self, query: str, limit: int, filters: Sequence[Filter]) -> FoundWords:
        terms = query_terms(query)
        if not terms:
            return FoundWords([], unchecked=False)
        total, average, held_by = self._frequencies(terms)
        candidates = self._candidates(terms, held_by, total)
        if candidates is None:
            return FoundWords([], unchecked=False)
        match, most = candidates
        scores: list[sql.Composable] = []
        frequencies: list[sql.Composable] = []
        arguments: list[str] = []
        for term in terms:
            # As in FTS5: a word that most items hold counts next to nothing.
            weight = max(1e-6, math.log((total - held_by[term] + 0.5) / (held_by[term] + 0.5)))
            for each in (term, *spellings(term)):
                name = sql.Identifier(f"f{len(arguments)}")
                arguments.append(f"'{words.stem(each)}'")
                frequencies.append(
                    sql.SQL("2 * ts_rank_cd({}, words, %s::tsquery) AS {}").format(sql.Literal(WEIGHTS), name)
                )
                scores.append(sql.SQL("{} * {f} / ({f} + {} * size)").format(weight * (K1 + 1), K1, f=name))
        where, filtered = self._where(filters)
        rows = self._rows(
            "SELECT item_id, ({scores})::float8 AS score FROM ("
            "SELECT item_id, {frequencies}, {least} + {share} * length / {average} AS size FROM {items} "
            "WHERE words @@ %s::tsquery AND {where} LIMIT %s OFFSET 0) AS f ORDER BY score DESC, item_id LIMIT %s",
            (*arguments, match, *filtered, most, limit),
            scores=sql.SQL(" + ").join(scores), frequencies=sql.SQL(", ").join(frequencies), where=where,
            least=sql.Literal(1 - B), share=sql.Literal(B), average=sql.Literal(max(average, 1e-9)),
        )  # fmt: skip
        return FoundWords([(item_id, score) for item_id, score in rows], unchecked=False)

    def _frequencies(self, terms: Sequence[str]) -> tuple[int, float, dict[str, float]]:
        """Return the number of items, their average length, and how many of them hold each term."""
        counts = self._counts
        if counts is None:
            total, average = self._rows("SELECT count(*), coalesce(avg(length), 1)::float8 FROM {items}")[0]
            return total, average, self._count(terms)
        known: dict[str, float] = {}
        for term in terms:
            shares = [counts.held_by.get(words.stem(each), 0.0) for each in (term, *spellings(term))]
            if any(shares):
                known[term] = max(shares) * counts.items
        rest = [term for term in terms if term not in known]
        return counts.items, counts.average, known | self._count(rest, FEW)

    def _count(self, terms: Sequence[str], most: int | None = None) -> dict[str, float]:
        query: LiteralString = (
            "SELECT (SELECT count(*) FROM (SELECT 1 FROM {items} WHERE words @@ asked.term::tsquery LIMIT %s) AS held) "
            "FROM unnest(%s::text[]) WITH ORDINALITY AS asked (term, place) ORDER BY place"
        )
        rows = self._rows(query, (most, [words.expression(term) for term in terms])) if terms else []
        return {term: float(count) for term, (count,) in zip(terms, rows, strict=True)}

    def _candidates(
        self, terms: Sequence[str], held_by: Mapping[str, float], total: int
    ) -> tuple[str, int | None] | None:
        """Return a tsquery for the items to score, and how many of them at most; None if no item holds a word.

        In a large collection, items that hold only one word, and a common one, are left out: they are hardly among the
        best, and there are too many to score.
        """
        present = sorted((term for term in terms if held_by[term]), key=lambda term: held_by[term])
        if not present:
            return None
        if self._counts is None or sum(held_by[term] for term in present) <= FEW:
            return words.any_of(present), None
        # The rarest words alone, and of the others all that hold two of them, as many as can be scored in time.
        left = float(FEW)
        chosen: list[str] = []
        for term in present:
            if held_by[term] > left:
                break
            chosen.append(words.expression(term))
            left -= held_by[term]
        common = present[len(chosen) :]
        # If words were independent, so many items would hold both.
        pairs = sorted((held_by[a] * held_by[b] / total, a, b) for a, b in itertools.combinations(common[:6], 2))
        for expected, *pair in pairs:
            if expected > left:
                break
            chosen.append(words.all_of(pair))
            left -= expected
        return " | ".join(chosen) if chosen else words.all_of(present), FEW

    def weights(self, query: str) -> dict[str, float]:
        terms = query_terms(query)
        if not terms:
            return {}
        total, _, held_by = self._frequencies(terms)
        return {term: max(0.1, math.log((total + 1) / (held_by[term] + 0.5))) for term in terms}

    def held(self, terms: Iterable[str], items: Sequence[int]) -> dict[int, list[str]]:
        asked = list(terms)
        rows = self._rows(
            "SELECT item_id, array(SELECT words @@ term::tsquery "
            "FROM unnest(%s::text[]) WITH ORDINALITY AS asked (term, place) ORDER BY place) FROM {items} "
            "WHERE item_id = ANY(%s)",
            ([words.expression(term) for term in asked], list(items)),
        )
        found = dict.fromkeys(items, (False,) * len(asked)) | {item_id: tuple(held) for item_id, held in rows}
        return {item: [term for term, held in zip(asked, found[item], strict=True) if held] for item in items}

    # Vectors

    def nearest(self, index: SearchedVectors, query: Matrix, limit: int, filters: Sequence[Filter]) -> Scored:
        assert isinstance(index, ServerVectors)
        asked = HalfVector(query)
        model = sql.Literal(index.model.model_id)
        if not filters:
            if index.indexing.kind == "flat":
                return self._compared(asked, model, limit, sql.SQL("true"), ())
            return self._by_graph(index, asked, limit, sql.SQL("true"), ())
        where, arguments = self._where(filters)
        few = self._one(
            "SELECT count(*) FROM (SELECT 1 FROM {items} WHERE {where} LIMIT %s) AS admitted",
            (*arguments, FEW + 1),
            where=where,
        )
        admitted = sql.SQL("item_id IN (SELECT item_id FROM {items} WHERE {where})").format(**self._parts, where=where)
        if few <= FEW or index.indexing.kind == "flat":
            return self._compared(asked, model, limit, admitted, arguments)
        return self._by_graph(index, asked, limit, admitted, arguments)

    def _compared(
        self, query: HalfVector, model: sql.Literal, limit: int, where: sql.Composable, arguments: Sequence[Any]
    ) -> Scored:
        """Compare with every vector that is admitted."""
        # The sum keeps the planner from an index, whose answer is not exact.
        rows = self._rows(
            "SELECT item_id, -(vector <#> %s) AS cosine FROM {vectors} WHERE model_id = {model} AND {where} "
            "ORDER BY cosine DESC, item_id LIMIT %s",
            (query, *arguments, limit), model=model, where=where,
        )  # fmt: skip
        return [(item_id, cosine) for item_id, cosine in rows]

    def _by_graph(
        self, index: ServerVectors, query: HalfVector, limit: int, where: sql.Composable, arguments: Sequence[Any]
    ) -> Scored:
        """Search the graph; it is searched further until as many are found as asked, or all were looked at."""
        binary = index.indexing.kind == "binary"
        fetched = min(OVERFETCH * limit, max(MOST_FETCHED, limit)) if binary else limit
        searched = min(MOST_FETCHED, max(fetched, index.indexing.search))
        for name, value in (
            ("hnsw.ef_search", str(searched)),
            ("hnsw.iterative_scan", "relaxed_order"),
            # As many as there are, so that a filter never returns fewer than it could.
            ("hnsw.max_scan_tuples", str(2**31 - 1)),
            ("hnsw.scan_mem_multiplier", "8"),
            ("work_mem", "64MB"),
            ("enable_seqscan", "off"),
        ):
            self._connection.execute("SELECT set_config(%s, %s, true)", (name, value))
        dimensions = index.model.dimensions
        order = sql.SQL("{v} <~> {q}" if binary else "{v} <#> {q}").format(
            v=indexed(dimensions, binary=binary), q=indexed(dimensions, binary=binary, of="%s")
        )
        rows = self._rows(
            "WITH near AS MATERIALIZED (SELECT item_id, vector FROM {vectors} WHERE model_id = {model} AND {where} "
            "ORDER BY {order} LIMIT %s) "
            "SELECT item_id, -(vector <#> %s) AS cosine FROM near ORDER BY cosine DESC, item_id LIMIT %s",
            (*arguments, query, fetched, query, limit),
            model=sql.Literal(index.model.model_id), where=where, order=order,
        )  # fmt: skip
        self._connection.execute("SELECT set_config('enable_seqscan', 'on', true)")
        if len(rows) < min(limit, index.vectors):
            # The filter admits few of those nearby, and the search of the graph ran out of its memory.
            return self._compared(query, sql.Literal(index.model.model_id), limit, where, arguments)
        return [(item_id, cosine) for item_id, cosine in rows]

    def cosines(self, index: SearchedVectors, query: Matrix, ids: Sequence[int]) -> dict[int, float]:
        if not ids:
            return {}
        rows = self._rows(
            "SELECT item_id, -(vector <#> %s) FROM {vectors} WHERE model_id = %s AND item_id = ANY(%s)",
            (HalfVector(query), index.model.model_id, list(ids)),
        )
        return dict(rows)

    def group_vectors(self, model: Model) -> Iterator[tuple[GroupNumbers, HalfMatrix]]:
        with self._connection.cursor("group_vectors") as cursor:
            cursor.itersize = _CHUNK
            cursor.execute(
                sql.SQL(
                    "SELECT group_id, vector FROM {items} JOIN {vectors} USING (item_id) "
                    "WHERE model_id = %s ORDER BY group_id"
                ).format(**self._parts),
                (model.model_id,),
            )
            while rows := cursor.fetchmany(_CHUNK):
                groups = np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))
                yield groups, np.stack([row[1].to_numpy() for row in rows]).astype(np.float16)

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
                    item_id, group, key, title, heading, text, _metadata(of_group), _metadata(of_item)
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

    def contents(self, ids: Sequence[str]) -> list[Content]:
        model = self.current_model()
        asked = [*map(stored, ids)]
        groups = {
            id_: Content(given(id_), given(title), given(names), _metadata(metadata), [])
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
                Piece(given(key), given(heading), given(text), _metadata(metadata), embed, packed)
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

    def progress(self) -> Progress:
        current, coming = self.current_model(), self.coming_model()
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
            hashes = {item.key: item_store.hash_of(group.title, item) for item in group.items}
            same_names = before[group.id] == (group.title, group.names)
            kept = {key for key, row in old.items() if same_names and hashes.get(key) == row.hash}
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
        self._keep_vectors([item_id for item_id, (_, item, *_rest) in zip(added, fresh, strict=True) if item.embed])
        self._give_vectors(
            [(item_id, item.vector) for item_id, (_, item, *_rest) in zip(added, fresh, strict=True)
             if isinstance(item, ItemWithVector)]
        )  # fmt: skip
        self._remove_items(gone)
        self._queue(list(numbers.values()))
        # Only their number matters here, as words are indexed on the server.
        change.rows = [Row(item_id, "", "", "") for item_id in added]
        change.gone = gone
        return change

    def _put_groups(self, groups: Sequence[Group]) -> tuple[dict[str, int], dict[str, tuple[str, str]]]:
        """Store and lock the groups.  Returns their numbers, and their titles and names before."""
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
            (found[id_][0], stored(field), *_divided(value))
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
        return numbers, {given(id_): (given(row[2]), given(row[3])) for id_, row in found.items()}

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

    def _keep_vectors(self, added: Sequence[int]) -> None:
        """Give new items the vectors that other items with the same words have, in any group."""
        if added:
            kept = self._rows(
                "INSERT INTO {vectors} (model_id, item_id, vector) SELECT DISTINCT ON (v.model_id, fresh.item_id) "
                "v.model_id, fresh.item_id, v.vector FROM {items} AS fresh "
                "JOIN {items} AS old ON old.hash = fresh.hash JOIN {vectors} AS v ON v.item_id = old.item_id "
                "WHERE fresh.item_id = ANY(%s) ON CONFLICT DO NOTHING RETURNING model_id",
                (list(added),),
            )
            model = self.current_model()
            self.made += sum(model is not None and model_id == model.model_id for (model_id,) in kept)

    def _give_vectors(self, vectors: Sequence[tuple[int, bytes]]) -> None:
        model = self.current_model()
        if vectors and model is not None:
            self.made += self._store(model, vectors)

    def _store(self, model: Model, vectors: Sequence[tuple[int, bytes]]) -> int:
        """Store vectors, and return how many of the items had none."""
        had = self._one(
            "SELECT count(*) FROM {vectors} WHERE model_id = %s AND item_id = ANY(%s)",
            (model.model_id, [item_id for item_id, _ in vectors]),
        )
        self._many(
            "INSERT INTO {vectors} (model_id, item_id, vector) VALUES (%s, %s, %s) "
            "ON CONFLICT (model_id, item_id) DO UPDATE SET vector = excluded.vector",
            [(model.model_id, item_id, _half(vector)) for item_id, vector in vectors],
        )
        return len(vectors) - int(had)

    def _remove_items(self, gone: Sequence[int]) -> None:
        if not gone:
            return
        self._run("DELETE FROM {vectors} WHERE item_id = ANY(%s)", (list(gone),))
        self.queued -= self._run("DELETE FROM {outbox} WHERE item_id = ANY(%s)", (list(gone),)).rowcount
        self._run("DELETE FROM {items} WHERE item_id = ANY(%s)", (list(gone),))

    def _queue(self, groups: Sequence[int]) -> None:
        """Add the items of these groups that lack a vector to the outbox; remove vectors that are not to be."""
        bare: LiteralString = "item_id IN (SELECT item_id FROM {items} WHERE group_id = ANY(%s) AND NOT embed)"
        self._run("DELETE FROM {vectors} WHERE " + bare, (list(groups),))
        self.queued -= self._run("DELETE FROM {outbox} WHERE " + bare, (list(groups),)).rowcount
        model = self.coming_model() or self.current_model()
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
        self._remove_items(gone)
        self._run("DELETE FROM {group_values} WHERE group_id = ANY(%s)", (numbers,))
        self._run("DELETE FROM {groups} WHERE group_id = ANY(%s)", (numbers,))
        return Change(gone=gone)

    def settle(self, fingerprint: str, done: Sequence[tuple[Waiting, bytes]]) -> Change:
        current, coming = self.current_model(), self.coming_model()
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


def indexed(dimensions: int, *, binary: bool, of: LiteralString = "vector") -> sql.Composable:
    """Return the expression that an index holds; a query must use the same one."""
    half = _typed(of, dimensions)
    if not binary:
        return half
    return sql.SQL("(binary_quantize({half})::bit({dimensions}))").format(half=half, dimensions=sql.Literal(dimensions))


def _typed(of: LiteralString, dimensions: int) -> sql.Composable:
    return sql.SQL("({of}::halfvec({dimensions}))").format(of=sql.SQL(of), dimensions=sql.Literal(dimensions))


def _half(vector: bytes) -> HalfVector:
    return HalfVector(np.frombuffer(vector, dtype="<f2"))


_ESCAPE, _NUL = "\ufdd0", "\ufdd0\ufdd1"


def stored(text: str) -> str:
    """Return `text` as the server can store it: it has no NUL.  U+FDD0, which stands for no character, escapes it."""
    if "\0" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, 2 * _ESCAPE).replace("\0", _NUL)
    return text


def given(text: str) -> str:
    """Return a `stored` text as it was given."""
    if _ESCAPE not in text:
        return text
    parts_ = text.split(2 * _ESCAPE)
    return _ESCAPE.join(part.replace(_NUL, "\0") for part in parts_)


def _metadata(text: str) -> Metadata:
    return msgspec.json.decode(text, type=Metadata)


def _divided(value: str | int | float) -> tuple[str | None, Decimal | None]:
    """Return a value as a word or a number."""
    if isinstance(value, str):
        return stored(value), None
    # As it is written, because the binary number nearest to 0.1 is not 0.1.
    return None, Decimal(repr(value))
