"""The operations that find notes which were not asked for by name: gaps, tags, topics, and what to read next."""

from __future__ import annotations

from collections.abc import Sequence

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
    SuggestReading,
    TaggedNote,
    TagMatch,
)
from proto.ops.retrieve import Clustering, Pair, Pairs, RetrieveClusters, RetrievePairs, RetrieveStatus
from services.knowledge.discovery import gaps, reading, topics
from services.knowledge.ingest.index import COLLECTION
from services.knowledge.ingest.ingest import Ingest
from services.knowledge.notes.links import clean_tags
from services.knowledge.search.operations import Search
from services.knowledge.search.refinement import Refiner
from services.knowledge.store import nodes
from services.runtime.database import Database
from services.runtime.handlers import Context, handles

SEARCHED_CHARS = 8192
READING_HITS = 20


class Discovery:
    """The operations of this page."""

    def __init__(self, database: Database, ingest: Ingest, search: Search, refiner: Refiner) -> None:
        self._database = database
        self._ingest = ingest
        self._search = search
        self._refiner = refiner
        self._working = trio.CapacityLimiter(2)

    @handles(FindGaps)
    async def find_gaps(self, params: FindGaps, ctx: Context) -> list[Gap]:
        async def compare(asked: RetrievePairs) -> Pairs:
            return await ctx.call(asked)

        async def without_links(pairs: Sequence[Pair]) -> list[Pair]:
            return await self._database.read(lambda db: gaps.without_links(db, pairs))

        found = await gaps.unlinked(params.limit, params.threshold, compare, without_links, COLLECTION)
        await self._check_whole(found, ctx)
        ids = dict.fromkeys(id_ for pair in found.pairs for id_ in (pair.first, pair.second))
        there = await self._database.read(lambda db: {id_: nodes.find(db, id_) for id_ in ids})

        def explain() -> tuple[list[Gap], dict[str, gaps.Content | None]]:
            contents: dict[str, gaps.Content | None] = {}
            for id_, node in there.items():
                trio.from_thread.check_cancelled()
                contents[id_] = None if node is None else gaps.content(node.place, self._ingest.roots)
            plain = [gaps.gap(pair, gaps.reason(contents[pair.first], contents[pair.second])) for pair in found.pairs]
            return plain, contents

        plain, contents = await trio.to_thread.run_sync(explain, limiter=self._working)
        return await self._refiner.linked(found.pairs, plain, contents, ctx)

    async def _check_whole(self, found: gaps.Found, ctx: Context) -> None:
        """Say where the answer may lack pairs.

        Raises:
            Unavailable: nothing was found, and not all notes could be compared.
        """
        lacking = [*self._ingest.degraded()]
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
        if found.complete and not self._ingest.index.pending and self._ingest.progress.scanned:
            # Pieces that the model fails on for good must not delay the answer for ever.
            status = await ctx.call(RetrieveStatus(collection=COLLECTION))
            if found.compared.vectors_waiting <= status.vectors_failed:
                return
        raise Unavailable(
            "no gap is known yet, and not all notes could be compared: " + "; ".join(lacking), retry_after_ms=1000
        )

    @handles(QueryByTags)
    async def query_by_tags(self, params: QueryByTags, ctx: Context) -> list[TaggedNote]:
        if any(not clean_tags([tag]) for tag in params.tags):
            raise InvalidParams("parameter `tags`: a tag is blank", field="tags")
        wanted, least = clean_tags(params.tags), 1 if params.match is TagMatch.ANY else None
        return await self._database.read(lambda db: nodes.tagged(db, wanted, least or len(wanted), params.limit))

    @handles(SuggestReading)
    async def suggest_reading(self, params: SuggestReading, ctx: Context) -> ReadingList:
        if not params.context.strip():
            raise InvalidParams("parameter `context` is blank; say what is being worked on", field="context")
        node = await self._database.read(lambda db: nodes.find(db, params.context.strip()))
        query, beside = params.context, None
        if node is not None:
            place, beside = node.place, node.id
            content = await trio.to_thread.run_sync(gaps.content, place, self._ingest.roots, limiter=self._working)
            query = f"{node.title}\n{'' if content is None else content.text}"
        asked = SearchDocuments(query=query[:SEARCHED_CHARS], limit=READING_HITS + params.limit)
        found = await self._search.search_documents(asked, ctx)
        results = await self._database.read(lambda db: reading.suggested(db, found.results, beside, params.limit))
        return ReadingList(
            results=results, stages=[*found.metadata.stages, "links"], degraded=found.metadata.degraded
        )  # fmt: skip

    @handles(ClusterDocuments)
    async def cluster_documents(self, params: ClusterDocuments, ctx: Context) -> ClusterDocumentsResult:
        degraded = self._ingest.degraded()
        if params.method is ClusterMethod.LINKS:
            clusters = await self._database.read(topics.linked)
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
        notes = await self._database.read(topics.all_notes)
        there = [[id_ for id_ in ids if id_ in notes] for ids in clusters]
        least = params.min_size or (1 if params.method is ClusterMethod.KMEANS else 2)
        there = [ids for ids in there if len(ids) >= least]

        def label() -> list[Cluster]:
            return topics.labelled(there, notes, self._ingest.roots, params.notes_each)

        held = sum(map(len, there))
        return ClusterDocumentsResult(
            method=params.method,
            clusters=await trio.to_thread.run_sync(label, limiter=self._working),
            notes=held,
            left_out=len(notes) - held,
            degraded=degraded,
        )
