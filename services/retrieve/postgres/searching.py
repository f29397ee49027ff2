"""Searches of a collection on the server: by words, and by vectors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, LiteralString

import numpy as np
from pgvector import HalfVector
from psycopg import sql

from proto.ops.retrieve import Filter
from services.retrieve.index.terms import query_terms, spellings
from services.retrieve.index.vectors import HalfMatrix, Matrix, Scored
from services.retrieve.postgres import words
from services.retrieve.postgres.reading import ServerReading
from services.retrieve.postgres.rows import CHUNK, ServerVectors, indexed
from services.retrieve.postgres.words import K1, WEIGHTS, B
from services.retrieve.store import FoundWords, GroupNumbers, SearchedVectors
from services.retrieve.vector_store import Model

FEW = 20_000
"""Up to this many items are scored by words, or compared with a query one by one."""

MAX_FETCHED = 1000
"""The most that pgvector keeps while it searches a graph (`hnsw.ef_search`)."""

OVERFETCH = 40
"""How many times as many are fetched by one-bit codes as are ranked exactly."""


class ServerSearching(ServerReading):
    """Searches by words and by vectors."""

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
        fetched = min(OVERFETCH * limit, max(MAX_FETCHED, limit)) if binary else limit
        searched = min(MAX_FETCHED, max(fetched, index.indexing.search))
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
        found: LiteralString = (
            "(SELECT item_id, -(vector <#> %s) AS cosine, staged FROM (SELECT item_id, vector, staged FROM {vectors} "
            "WHERE model_id = {model} AND {graph} AND {where} ORDER BY {order} LIMIT %s) AS near "
            "ORDER BY cosine DESC, item_id LIMIT %s)"
        )
        if index.indexing.stages:
            # In the same statement, so that a vector which is moved meanwhile is found once.
            found += (
                " UNION ALL (SELECT item_id, -(vector <#> %s) AS cosine, staged FROM {vectors} "
                "WHERE model_id = {model} AND staged AND {where} ORDER BY cosine DESC, item_id LIMIT %s)"
            )
        rows = self._rows(
            found,
            (query, *arguments, query, fetched, limit, *((query, *arguments, limit) if index.indexing.stages else ())),
            model=sql.Literal(index.model.model_id), where=where, order=order,
            graph=sql.SQL("NOT staged" if index.indexing.stages else "true"),
        )  # fmt: skip
        self._connection.execute("SELECT set_config('enable_seqscan', 'on', true)")
        of_graph = sum(not (index.indexing.stages and staged) for _, _, staged in rows)
        if of_graph < min(limit, index.vectors):
            # The filter admits few of those nearby, and the search of the graph ran out of its memory.
            return self._compared(query, sql.Literal(index.model.model_id), limit, where, arguments)
        best = sorted((-cosine, item_id) for item_id, cosine, _ in rows)
        return [(item_id, -distance) for distance, item_id in best[:limit]]

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
            cursor.itersize = CHUNK
            cursor.execute(
                sql.SQL(
                    "SELECT group_id, vector FROM {items} JOIN {vectors} USING (item_id) "
                    "WHERE model_id = %s ORDER BY group_id"
                ).format(**self._parts),
                (model.model_id,),
            )
            while rows := cursor.fetchmany(CHUNK):
                groups = np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))
                yield groups, np.stack([row[1].to_numpy() for row in rows]).astype(np.float16)
