"""The operations that find what nobody asked for by name: gaps, tags, times, topics, and what to read next."""

from __future__ import annotations

import datetime
import json
import apsw
import time
from collections.abc import Awaitable, Callable, Sequence

import trio

from proto.errors import InvalidParams, Unavailable
from proto.ops.knowledge import (
    Cluster,
    ClusterDocuments,
    ClusterDocumentsResult,
    ClusterMethod,
    FindGaps,
    Gap,
    QueryByTags,
    ReadingList,
    SearchDocuments,
    SearchDocumentsResult,
    SuggestReading,
    TaggedNote,
    TagMatch,
    TemporalSearch,
    TemporalSearchResult,
)
from proto.ops.retrieve import Clustering, Pair, Pairs, RetrieveClusters, RetrievePairs, RetrieveStatus
from services.knowledge.discovery import gaps, reading, topics
from services.knowledge.ingest.ingest import COLLECTION, Ingest
from services.knowledge.notes.links import clean_tags
from services.knowledge.search.dates import date_range
from services.knowledge.search.refinement import Sonar
from services.knowledge.store import nodes
from services.knowledge.store.nodes import Node
from services.knowledge.store.store import Store
from services.runtime.handlers import Context, Handlers

SEARCHED_CHARS = 8192
READING_HITS = 20

Search = Callable[[SearchDocuments, Context], Awaitable[SearchDocumentsResult]]


def add_discovery(handlers: Handlers, store: Store, ingest: Ingest, search: Search, sonar: Sonar) -> None:
    """Register the operations of this page."""
    working = trio.CapacityLimiter(2)

    @handlers.handle(FindGaps)
    async def find_gaps(params: FindGaps, ctx: Context) -> list[Gap]:
        async def compare(asked: RetrievePairs) -> Pairs:
            return await ctx.call(asked)

        async def without_links(pairs: Sequence[Pair]) -> list[Pair]:
            return await store.read(lambda connection: gaps.without_links(connection, pairs))

        found = await gaps.unlinked(params.limit, params.threshold, compare, without_links, COLLECTION)
        await _check_whole(found, ctx, ingest)
        ids = {id_ for pair in found.pairs for id_ in (pair.first, pair.second)}
        places = await store.read(lambda connection: {id_: nodes.find(connection, id_) for id_ in ids})

        known: dict[str, gaps.Content | None] = {}

        def reasons() -> list[Gap]:

            def content(id_: str) -> gaps.Content | None:
                if id_ not in known:
                    trio.from_thread.check_cancelled()
                    node: Node | None = places[id_]
                    known[id_] = None if node is None else gaps.content(node.place, ingest.roots)
                return known[id_]

            return [gaps.gap(pair, gaps.reason(content(pair.first), content(pair.second))) for pair in found.pairs]

        plain = await trio.to_thread.run_sync(reasons, limiter=working)
        return await sonar.linked(found.pairs, plain, known, ctx)

    @handlers.handle(QueryByTags)
    async def query_by_tags(params: QueryByTags, ctx: Context) -> list[TaggedNote]:
        wanted = clean_tags(params.tags)
        if len(wanted) < len(set(params.tags)) and any(not clean_tags([tag]) for tag in params.tags):
            raise InvalidParams("parameter `tags`: a tag is blank", field="tags")
        return await store.read(lambda connection: tagged(connection, wanted, params.match, params.limit))

    @handlers.handle(SuggestReading)
    async def suggest_reading(params: SuggestReading, ctx: Context) -> ReadingList:
        if not params.context.strip():
            raise InvalidParams("parameter `context` is blank; say what is being worked on", field="context")
        node = await store.read(lambda connection: nodes.find(connection, params.context.strip()))
        query, beside = params.context, None
        if node is not None:
            place, beside = node.place, node.id
            content = await trio.to_thread.run_sync(gaps.content, place, ingest.roots, limiter=working)
            query = f"{node.title}\n{'' if content is None else content.text}"
        found = await search(SearchDocuments(query=query[:SEARCHED_CHARS], limit=READING_HITS + params.limit), ctx)
        results = await store.read(
            lambda connection: reading.suggested(connection, found.results, beside, params.limit)
        )  # fmt: skip
        return ReadingList(
            results=results, stages=[*found.metadata.stages, "links"], degraded=found.metadata.degraded
        )  # fmt: skip

    @handlers.handle(TemporalSearch)
    async def temporal_search(params: TemporalSearch, ctx: Context) -> TemporalSearchResult:
        try:
            since, until = date_range(params.date_range, time.time())
        except (ValueError, OverflowError) as error:
            raise InvalidParams(
                f"parameter `date_range`: {error}; give 2026-01-17, 2026-01, 2026, 2026-01-01..2026-03-31, "
                "or words such as `last 7 days`",
                field="date_range",
            ) from None
        asked = SearchDocuments(query=params.query, limit=params.limit, since=since, until=until)
        found = await search(asked, ctx)
        return TemporalSearchResult(
            results=found.results, metadata=found.metadata, since=rfc3339(since), until=rfc3339(until)
        )  # fmt: skip

    @handlers.handle(ClusterDocuments)
    async def cluster_documents(params: ClusterDocuments, ctx: Context) -> ClusterDocumentsResult:
        degraded = ingest.degraded()
        if params.method is ClusterMethod.LINKS:
            clusters = await store.read(topics.linked)
        else:
            asked = RetrieveClusters(
                collection=COLLECTION,
                method=Clustering(params.method.value),
                count=params.count,
                threshold=params.threshold,
            )
            found = await ctx.call(asked)
            if not found.groups and found.vectors_waiting:
                raise Unavailable(
                    f"notes are put together by their vectors, and all {found.vectors_waiting} are still to be made",
                    retry_after_ms=1000,
                )
            if found.vectors_waiting:
                degraded.append(f"vector: {found.vectors_waiting} pieces still wait for their vectors")
            clusters = found.clusters
        notes = await store.read(topics.all_notes)
        there = [[id_ for id_ in ids if id_ in notes] for ids in clusters]
        least = params.min_size or (1 if params.method is ClusterMethod.KMEANS else 2)
        there = [ids for ids in there if len(ids) >= least]

        def label() -> list[Cluster]:
            return topics.labelled(there, notes, ingest.roots, params.notes_each)

        held = sum(map(len, there))
        return ClusterDocumentsResult(
            method=params.method,
            clusters=await trio.to_thread.run_sync(label, limiter=working),
            notes=held,
            left_out=len(notes) - held,
            degraded=degraded,
        )


async def _check_whole(found: gaps.Found, ctx: Context, ingest: Ingest) -> None:
    """Say where the answer may lack pairs; an empty one that proves nothing is none.

    Raises:
        Unavailable: nothing was found, and not all notes could be compared.
    """
    lacking = [*ingest.degraded()]
    if found.compared.vectors_waiting:
        lacking.append(f"vector: {found.compared.vectors_waiting} pieces still wait for their vectors")
    if not found.complete:
        lacking.append(
            f"only the {gaps.MOST_PAIRS} most similar pairs were looked at, and nearly all of them are linked"
        )
    for reason in lacking:
        ctx.log("warning", f"find_gaps: {reason}")
    if found.pairs or not lacking:
        return
    if found.complete and not ingest.pending and ingest.progress.scanned:
        # What the model fails on for good must not keep the answer back for ever.
        status = await ctx.call(RetrieveStatus(collection=COLLECTION))
        if found.compared.vectors_waiting <= status.vectors_failed:
            return
    raise Unavailable(
        "no gap is known yet, and not all notes could be compared: " + "; ".join(lacking), retry_after_ms=1000
    )


def tagged(connection: apsw.Connection, tags: Sequence[str], match: TagMatch, limit: int) -> list[TaggedNote]:
    """Notes with all or any of `tags` (as `clean_tags` makes them), latest first."""
    rows = connection.execute(
        "SELECT id, title, path, tags, date FROM node WHERE (SELECT count(*) FROM json_each(node.tags)"
        f" WHERE value IN ({', '.join('?' * len(tags))})) >= ? ORDER BY date DESC, id LIMIT ?",
        (*tags, len(tags) if match is TagMatch.ALL else 1, limit),
    )
    return [
        TaggedNote(id=id_, title=title, path=path, tags=json.loads(own), date=rfc3339(date))
        for id_, title, path, own, date in rows
    ]


def rfc3339(seconds: float | None) -> str | None:
    """Unix seconds as people read them; None where there are none, or none that a calendar has."""
    if seconds is None:
        return None
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None
