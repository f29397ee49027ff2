"""The operations that find notes by a query, a time or tags."""

from __future__ import annotations

import time

import msgspec

from proto.errors import InvalidParams
from proto.ops.retrieve import RetrieveSearch
from services.knowledge import nodes
from services.knowledge.ingest.index import COLLECTION
from services.knowledge.ingest.ingest import Ingest
from services.knowledge.operations import notes as ops
from services.knowledge.search import passages
from services.knowledge.search.refinement import Refiner
from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.shared.date_ranges import date_range, range_in, rfc3339


class Search:
    """The operations."""

    def __init__(self, database: Database, ingest: Ingest, refiner: Refiner) -> None:
        self._database = database
        self._ingest = ingest
        self._refiner = refiner

    @handles(ops.SearchDocuments)
    async def search_documents(self, params: ops.SearchDocuments, ctx: Context) -> ops.SearchDocumentsResult:
        if not params.query.strip():
            raise InvalidParams("parameter `query` is blank; say what to look for", field="query")
        conditions = passages.filters(params)
        await self._ingest.caught_up()
        if path := passages.beginning(params):
            spelled = await self._database.read(lambda db: nodes.spelled(db, path))
            conditions = passages.filters(msgspec.structs.replace(params, path=spelled))
        # Notes about to be removed are dropped below, so request that many more.
        going = await self._database.read(lambda db: len(nodes.leaving(db, 100))) if self._ingest.index.leaving else 0
        found = await ctx.call(
            RetrieveSearch(
                collection=COLLECTION,
                query=params.query,
                limit=min(1000, params.limit + going),
                candidates=max(passages.CANDIDATES, params.limit + going),
                filters=conditions,
                min_score=params.min_score,
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
            unlikely=found.unlikely,
            note=found.note,
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

    @handles(ops.QueryByTags)
    async def query_by_tags(self, params: ops.QueryByTags, ctx: Context) -> list[ops.TaggedNote]:
        wanted = passages.tags_of(params.tags)
        least = 1 if params.match == "any" else len(wanted)
        found = await self._database.read(lambda db: nodes.tagged(db, wanted, least, params.limit))
        return [
            ops.TaggedNote(
                id=node.id, title=node.title, path=node.place.path, tags=list(node.tags), date=rfc3339(node.date)
            )
            for node in found
        ]  # fmt: skip


def _hint(params: ops.SearchDocuments) -> str | None:
    """If the query mentions a time but no time filter is set, return a hint on how to filter by it."""
    if params.since is not None or params.until is not None:
        return None
    named = range_in(params.query, time.time())
    if named is None:
        return None
    said, (since, until) = named
    times = ", ".join(
        f"`{name}` {value}" for name, value in (("since", rfc3339(since)), ("until", rfc3339(until))) if value
    )
    return f"notes of all times were searched; for only {said!r}: {times}, or notes_search_dates with that date_range"
