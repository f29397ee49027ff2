"""The operations that find notes: by a query, by tags, by topic; and gaps between them, and notes to read next."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import apsw
import msgspec
import trio

from proto.errors import InvalidParams, Unavailable
from proto.ops import knowledge as ops
from proto.ops.retrieve import Clustering, RetrieveClusters, RetrievePairs, RetrieveSearch, RetrieveStatus
from services.knowledge import nodes
from services.knowledge.ingest.index import COLLECTION
from services.knowledge.ingest.ingest import Ingest
from services.knowledge.notes.dates import date_range, range_in, rfc3339
from services.knowledge.notes.links import clean_tags
from services.knowledge.search import gaps, passages, topics
from services.knowledge.search.refinement import Refiner
from services.runtime.database import Database
from services.runtime.handlers import Context, handles

FIRST_PAIRS, MOST_PAIRS = 2000, 100_000
"""Pairs that the search is asked for, at first and at most: the most similar notes are the likeliest to be linked."""

SEARCHED_CHARS = 8192
READING_HITS = 20

FLOW = 0.3
MAX_LINKS = 200
"""Of one match; a note with more is an index."""


class Search:
    """The operations."""

    def __init__(self, database: Database, ingest: Ingest) -> None:
        self._database = database
        self._ingest = ingest
        self._refiner = Refiner()
        self._working = trio.CapacityLimiter(2)

    @handles(ops.SearchDocuments)
    async def search_documents(self, params: ops.SearchDocuments, ctx: Context) -> ops.SearchDocumentsResult:
        if not params.query.strip():
            raise InvalidParams("parameter `query` is blank; say what to look for", field="query")
        conditions = passages.filters(params)
        await self._ingest.caught_up()
        # Notes that are about to be removed are dropped below; so many more are asked for.
        going = await self._database.read(lambda db: len(nodes.leaving(db, 100))) if self._ingest.index.leaving else 0
        found = await ctx.call(
            RetrieveSearch(
                collection=COLLECTION,
                query=params.query,
                limit=min(1000, params.limit + going),
                candidates=max(passages.CANDIDATES, params.limit + going),
                filters=conditions,
            )
        )
        there = await self._database.read(lambda db: nodes.existing(db, (hit.group for hit in found.hits)))
        kept = [hit for hit in found.hits if hit.group in there][: params.limit]
        refined, metadata = await self._refiner.refined(params.query, kept, found, ctx)
        results = refined if params.max_tokens is None else passages.within(refined, params.max_tokens)
        degraded = [*metadata.degraded, *self._ingest.degraded()]
        return ops.SearchDocumentsResult(
            results=results,
            left_out=len(refined) - len(results),
            metadata=msgspec.structs.replace(metadata, degraded=degraded, hint=_hint(params)),
        )

    @handles(ops.TemporalSearch)
    async def temporal_search(self, params: ops.TemporalSearch, ctx: Context) -> ops.TemporalSearchResult:
        try:
            since, until = date_range(params.date_range, time.time())
        except (ValueError, OverflowError) as error:
            raise InvalidParams(
                f"parameter `date_range`: {error}; give 2026-01-17, 2026-01, 2026, 2026-01-01..2026-03-31, "
                "or words such as `last 7 days`, `September 2026`, `letzte Woche`",
                field="date_range",
            ) from None
        asked = ops.SearchDocuments(query=params.query, limit=params.limit, since=since, until=until)
        found = await self.search_documents(asked, ctx)
        return ops.TemporalSearchResult(
            results=found.results, metadata=found.metadata, since=rfc3339(since), until=rfc3339(until)
        )

    @handles(ops.FindGaps)
    async def find_gaps(self, params: ops.FindGaps, ctx: Context) -> list[ops.Gap]:
        wanted = max(FIRST_PAIRS, 4 * params.limit)
        while True:
            asked = RetrievePairs(collection=COLLECTION, threshold=params.threshold, limit=wanted)
            compared = await ctx.call(asked)
            pairs = await self._database.read(functools.partial(gaps.without_links, pairs=compared.pairs))
            complete = len(pairs) >= params.limit or not compared.more
            if complete or wanted >= MOST_PAIRS:
                break
            wanted = min(MOST_PAIRS, 8 * wanted)
        pairs = pairs[: params.limit]
        await self._check_whole(ctx, bool(pairs), compared.vectors_waiting, complete)
        ids = dict.fromkeys(id_ for pair in pairs for id_ in (pair.first, pair.second))
        there = await self._database.read(lambda db: {id_: nodes.find(db, id_) for id_ in ids})

        def explain() -> tuple[list[ops.Gap], dict[str, gaps.Content | None]]:
            contents: dict[str, gaps.Content | None] = {}
            for id_, node in there.items():
                trio.from_thread.check_cancelled()
                contents[id_] = None if node is None else gaps.content(node.place, self._ingest.roots)
            return [gaps.gap(pair, contents[pair.first], contents[pair.second]) for pair in pairs], contents

        plain, contents = await trio.to_thread.run_sync(explain, limiter=self._working)
        return await self._refiner.linked(pairs, plain, contents, ctx)

    async def _check_whole(self, ctx: Context, found: bool, vectors_waiting: int, complete: bool) -> None:
        """Say where the answer may lack pairs.

        Raises:
            Unavailable: nothing was found, and not all notes could be compared.
        """
        lacking = self._ingest.degraded()
        if vectors_waiting:
            lacking.append(f"vector: {vectors_waiting} pieces still wait for their vectors")
        if not complete:
            lacking.append(
                f"only the {MOST_PAIRS} most similar pairs were looked at, and nearly all of them are linked"
            )
        for reason in lacking:
            ctx.log("warning", f"find_gaps: {reason}")
        if found or not lacking:
            return
        if complete and not self._ingest.index.pending and self._ingest.scanned:
            # Pieces that the model fails on for good must not delay the answer for ever.
            status = await ctx.call(RetrieveStatus(collection=COLLECTION))
            if vectors_waiting <= status.vectors_failed:
                return
        raise Unavailable(
            "no gap is known yet, and not all notes could be compared: " + "; ".join(lacking), retry_after_ms=1000
        )

    @handles(ops.QueryByTags)
    async def query_by_tags(self, params: ops.QueryByTags, ctx: Context) -> list[ops.TaggedNote]:
        if any(not clean_tags([tag]) for tag in params.tags):
            raise InvalidParams("parameter `tags`: a tag is blank", field="tags")
        wanted = clean_tags(params.tags)
        least = 1 if params.match is ops.TagMatch.ANY else len(wanted)
        found = await self._database.read(lambda db: nodes.tagged(db, wanted, least, params.limit))
        return [
            ops.TaggedNote(
                id=node.id, title=node.title, path=node.place.path, tags=list(node.tags), date=rfc3339(node.date)
            )
            for node in found
        ]  # fmt: skip

    @handles(ops.SuggestReading)
    async def suggest_reading(self, params: ops.SuggestReading, ctx: Context) -> ops.ReadingList:
        if not params.context.strip():
            raise InvalidParams("parameter `context` is blank; say what is being worked on", field="context")
        node = await self._database.read(lambda db: nodes.sought(db, params.context.strip()))
        query, beside = params.context, None
        if node is not None:
            place, beside = node.place, node.id
            content = await trio.to_thread.run_sync(gaps.content, place, self._ingest.roots, limiter=self._working)
            query = f"{node.title}\n{'' if content is None else content.text}"
        asked = ops.SearchDocuments(query=query[:SEARCHED_CHARS], limit=READING_HITS + params.limit)
        found = await self.search_documents(asked, ctx)
        results = await self._database.read(lambda db: _readings(db, found.results, beside, params.limit))
        return ops.ReadingList(
            results=results, stages=[*found.metadata.stages, "links"], degraded=found.metadata.degraded
        )  # fmt: skip

    @handles(ops.ClusterDocuments)
    async def cluster_documents(self, params: ops.ClusterDocuments, ctx: Context) -> ops.ClusterDocumentsResult:
        degraded = self._ingest.degraded()
        if params.method is ops.ClusterMethod.LINKS:
            clusters = await self._database.read(topics.linked)
        else:
            method = Clustering(params.method.value)
            found = await ctx.call(
                RetrieveClusters(collection=COLLECTION, method=method, count=params.count, threshold=params.threshold)
            )
            if not found.groups and found.vectors_waiting:
                raise Unavailable(
                    f"notes are put together by their vectors, and all {found.vectors_waiting} are still to be made",
                    retry_after_ms=1000,
                )
            if found.vectors_waiting:
                degraded.append(f"vector: {found.vectors_waiting} pieces still wait for their vectors")
            clusters = found.clusters
        notes = await self._database.read(nodes.every)
        there = [[id_ for id_ in ids if id_ in notes] for ids in clusters]
        least = params.min_size or (1 if params.method is ops.ClusterMethod.KMEANS else 2)
        there = [ids for ids in there if len(ids) >= least]

        def label() -> list[ops.Cluster]:
            return topics.labelled(there, notes, self._ingest.roots, params.notes_each)

        held = sum(map(len, there))
        return ops.ClusterDocumentsResult(
            method=params.method,
            clusters=await trio.to_thread.run_sync(label, limiter=self._working),
            notes=held,
            left_out=len(notes) - held,
            degraded=degraded,
        )


def _hint(params: ops.SearchDocuments) -> str | None:
    """Where the query names a time that nothing else states: how to have the notes of that time alone."""
    if params.since is not None or params.until is not None:
        return None
    named = range_in(params.query, time.time())
    if named is None:
        return None
    said, (since, until) = named
    times = ", ".join(
        f"`{name}` {value}" for name, value in (("since", rfc3339(since)), ("until", rfc3339(until))) if value
    )
    return f"notes of all times were searched; for {said!r} alone: {times}, or temporal_search with that date_range"


@dataclass(slots=True)
class _Candidate:
    own: float = 0.0
    flow: float = 0.0
    passage: str = ""
    leads: list[str] = field(default_factory=list)

    @property
    def score(self) -> float:
        return self.own + self.flow

    @property
    def reason(self) -> str:
        said = [f"matches in {self.passage}"] if self.own else []
        if self.leads:
            said.append(f"linked with {', '.join(self.leads[:3])}{' and others' if len(self.leads) > 3 else ''}")
        return "; ".join(said)


def _readings(db: apsw.Connection, hits: Sequence[ops.SearchHit], beside: str | None, limit: int) -> list[ops.Reading]:
    """The best of the matches and of the notes that they are linked with, but for the note `beside`.

    A note's score is its own match and the part that flows to it over links: a share of each linked match, divided
    among that note's links, so that an index page that links to everything recommends nothing in particular.
    """
    candidates = {hit.id: _Candidate(own=hit.score, passage=hit.context) for hit in hits}
    for hit in hits:
        rows = db.execute(
            "SELECT dst FROM edge WHERE src=?1 AND dst IS NOT NULL UNION SELECT src FROM edge WHERE dst=?1 LIMIT ?2",
            (hit.id, MAX_LINKS),
        )
        around = [other for (other,) in rows if other != hit.id]
        for id_ in around:
            candidate = candidates.setdefault(id_, _Candidate())
            candidate.flow += FLOW * hit.score / len(around)
            candidate.leads.append(hit.id)
    candidates.pop(beside or "", None)
    there = {id_: node for id_ in candidates if (node := nodes.find(db, id_)) is not None}
    best = sorted(there, key=lambda id_: (-candidates[id_].score, id_))[:limit]
    return [
        ops.Reading(
            id=id_, title=there[id_].title, score=round(candidates[id_].score, 6), reason=candidates[id_].reason
        )
        for id_ in best
    ]  # fmt: skip
