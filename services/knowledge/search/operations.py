"""The operations that search notes."""

from __future__ import annotations

import time

from proto.errors import InvalidParams
from proto.ops import knowledge as ops
from proto.ops.retrieve import RetrieveSearch
from services.knowledge import nodes
from services.knowledge.ingest.index import COLLECTION
from services.knowledge.ingest.ingest import Ingest
from services.knowledge.notes.dates import date_range, rfc3339
from services.knowledge.search import passages
from services.knowledge.search.refinement import SONAR, Refiner
from services.runtime.database import Database
from services.runtime.handlers import Context, handles


class Search:
    """Asks the search for passages, and has them refined."""

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
        refined = await self._refiner.refined(params.query, kept, found.source, ctx)
        results = refined.hits if params.max_tokens is None else passages.within(refined.hits, params.max_tokens)
        return ops.SearchDocumentsResult(
            results=results,
            left_out=len(refined.hits) - len(results),
            metadata=ops.SearchMetadata(
                query=params.query,
                sonar_enabled=refined.enabled,
                intent=refined.intent,
                analysis=refined.analysis,
                stages=[*found.stages, SONAR] if refined.enabled else found.stages,
                degraded=[*found.degraded, *refined.degraded, *self._ingest.degraded()],
            ),
        )

    @handles(ops.TemporalSearch)
    async def temporal_search(self, params: ops.TemporalSearch, ctx: Context) -> ops.TemporalSearchResult:
        try:
            since, until = date_range(params.date_range, time.time())
        except (ValueError, OverflowError) as error:
            raise InvalidParams(
                f"parameter `date_range`: {error}; give 2026-01-17, 2026-01, 2026, 2026-01-01..2026-03-31, "
                "or words such as `last 7 days`",
                field="date_range",
            ) from None
        asked = ops.SearchDocuments(query=params.query, limit=params.limit, since=since, until=until)
        found = await self.search_documents(asked, ctx)
        return ops.TemporalSearchResult(
            results=found.results, metadata=found.metadata, since=rfc3339(since), until=rfc3339(until)
        )
