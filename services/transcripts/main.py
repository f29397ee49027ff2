"""The service `transcripts`: opens the database, feeds the search beside it, and answers."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import trio
from msgspec import Raw

from proto.errors import InvalidParams, OperationError
from proto.frames import Written
from proto.operation import Params
from proto.ops.retrieve import RetrieveSearch
from proto.ops.transcripts import (
    DeletedTurns,
    EverythingResult,
    ForestStats,
    Histories,
    History,
    NodeView,
    SearchEverything,
    TranscriptCheckout,
    TranscriptDelete,
    TranscriptHistories,
    TranscriptHistory,
    TranscriptNode,
    TranscriptSearchResult,
    TranscriptsSearch,
    TranscriptStats,
)
from proto.ops.transcripts_intake import (
    ImportResult,
    ImportState,
    IngestResult,
    TranscriptImport,
    TranscriptImportState,
    TranscriptIngest,
    TranscriptRecord,
)
from services.runtime.handlers import Context, Environment, Handlers
from services.transcripts import answers as writing
from services.transcripts.answers import checkout, written
from services.transcripts.intake.importing import Importing, release
from services.transcripts.intake.ingest import Ingest
from services.transcripts.search import everything
from services.transcripts.search import search as finding
from services.transcripts.search.feed import COLLECTION, Feed, owe_scrub
from services.transcripts.search.passages import Stripper
from services.transcripts.settings import Settings, read_settings, redactor_of
from services.transcripts.store import deletion, forest
from services.transcripts.store.database import Store

HISTORIES_BYTES = 32 * 1024 * 1024
"""Of one answer of many conversations."""

DELETE_PATIENCE_S = 30.0
"""How long a deletion waits for the search to write its files anew; where it takes longer, the answer says so."""


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the database is open."""
    settings = read_settings(env.settings)
    redactor = redactor_of(settings)
    strip = Stripper(settings.strip_tags)
    store = await trio.to_thread.run_sync(Store, env.data_dir / "transcripts.db")
    feed = Feed(env, store, strip)
    try:
        store.begin(env.background)
        env.background.start_soon(feed.run)
        ingest = Ingest(store, redactor, strip)
        env.info(redaction="on" if redactor else "off")
        try:
            yield handlers_of(store, ingest, feed, settings)
        finally:
            await feed.stop()
    finally:
        await store.close()


def rehearse(root: Path, settings: Mapping[str, Any]) -> Sequence[Params[Any]] | None:
    """A turn that is posted, and looks at it."""
    request = {"model": "m", "messages": [{"role": "user", "content": "What is this?"}]}
    reply = {"role": "assistant", "content": "A rehearsal, which nobody hears."}
    response = {"model": "m", "choices": [{"index": 0, "message": reply, "finish_reason": "stop"}]}
    turn = {"provider": "openai", "request": request, "response": response}
    body = msgspec.json.encode(turn)
    return (TranscriptIngest(body=body), TranscriptHistories(limit=1), TranscriptStats())


def handlers_of(store: Store, ingest: Ingest, feed: Feed, settings: Settings) -> Handlers:
    """The operations on an open database with its feed of the search."""
    handlers = Handlers()
    importing = Importing(store, ingest)

    @handlers.handle(TranscriptsSearch)
    async def search(params: TranscriptsSearch, ctx: Context) -> Written:
        if not params.query.strip():
            raise InvalidParams("parameter `query` is blank; say what to look for", field="query")
        conditions = finding.filters(params)
        wanted = finding.wanted(params)
        left = await feed.caught_up(settings.search_patience_s)
        limit = min(1000, wanted * finding.PER_CONVERSATION if params.distinct else wanted)
        # Turns that were deleted a moment ago may still be answered, and are dropped below.
        limit = min(1000, limit + left)
        while True:
            found = await ctx.call(
                RetrieveSearch(
                    collection=COLLECTION,
                    query=params.query,
                    limit=limit,
                    candidates=max(finding.CANDIDATES, limit),
                    filters=conditions,
                )
            )
            hits = finding.one_each(found.hits) if params.distinct else found.hits
            if len(hits) >= wanted or len(found.hits) < limit or limit >= 1000:
                break
            limit = min(1000, 4 * limit)
        degraded = list(found.degraded)
        if left:
            degraded.append(f"index: {left} turns are still to be indexed")

        def answer(db: sqlite3.Connection) -> Written:
            results = finding.results(db, hits, wanted, params.max_tokens)
            return written(
                TranscriptSearchResult(query=params.query, count=len(results), results=results, degraded=degraded)
            )

        return await store.read(answer)

    @handlers.handle(SearchEverything)
    async def search_everything(params: SearchEverything, ctx: Context) -> EverythingResult:
        return await everything.search(params, ctx, store, feed, settings.search_patience_s)

    @handlers.handle(TranscriptDelete)
    async def delete(params: TranscriptDelete, ctx: Context) -> DeletedTurns:
        def change(db: sqlite3.Connection) -> tuple[list[bytes], int]:
            node = _there(db, params.hash)
            owe_scrub(db)
            gone = deletion.delete(db, node.node_id, descendants=params.descendants, bar=params.bar)
            release(db)
            return gone

        gone, kept = await store.write(change)
        await store.scrub()
        forgotten = await feed.forgotten(DELETE_PATIENCE_S)
        return DeletedTurns(deleted=len(gone), placeholders=kept, search_pending=0 if forgotten else len(gone))

    @handlers.handle(TranscriptCheckout)
    async def check_out(params: TranscriptCheckout, ctx: Context) -> Written:
        # Written beside the event loop, as all answers are that may be large.
        return await store.read(lambda db: written(checkout(db, _there(db, params.hash), params.form)))

    @handlers.handle(TranscriptNode)
    async def node_view(params: TranscriptNode, ctx: Context) -> NodeView | None:
        def query(db: sqlite3.Connection) -> tuple[forest.Node | None, forest.Place | None]:
            node = forest.find(db, params.hash)
            return node, None if node is None or node.parent is None else forest.place(db, node.parent)

        node, parent = await store.read(query)
        if node is None:
            return None
        return NodeView(
            hash=node.hash,
            parent_hash=None if parent is None else parent.hash.hex(),
            bucket=node.bucket,
            stop_reason=node.stop_reason,
            usage=node.tokens,
            project=node.project,
        )

    @handlers.handle(TranscriptHistory)
    async def history(params: TranscriptHistory, ctx: Context) -> Written | None:
        def query(db: sqlite3.Connection) -> Written | None:
            node = forest.find(db, params.hash)
            return None if node is None else written(writing.history(db, node.node_id, node.hash))

        return await store.read(query)

    @handlers.handle(TranscriptHistories)
    async def histories(params: TranscriptHistories, ctx: Context) -> Written:
        def query(db: sqlite3.Connection) -> Written:
            found: list[Raw] = []
            left = HISTORIES_BYTES
            for leaf, hash_ in forest.leaves(db, params.limit):
                found.append(Raw(written(writing.history(db, leaf, hash_)).json))
                left -= len(memoryview(found[-1]))
                if left < 0:
                    break
            return written(Histories(histories=cast("list[History]", found), total=forest.counts(db)[2]))

        return await store.read(query)

    @handlers.handle(TranscriptStats)
    async def stats(params: TranscriptStats, ctx: Context) -> ForestStats:
        nodes, roots, leaves = await store.read(forest.counts)
        return ForestStats(total_nodes=nodes, root_count=roots, leaf_count=leaves)

    @handlers.handle(TranscriptIngest)
    async def post(params: TranscriptIngest, ctx: Context) -> IngestResult:
        return await ingest.post(params.body, batch=params.batch)

    @handlers.handle(TranscriptRecord)
    async def record(params: TranscriptRecord, ctx: Context) -> IngestResult:
        return await ingest.record(params)

    @handlers.handle(TranscriptImportState)
    async def import_state(params: TranscriptImportState, ctx: Context) -> ImportState:
        return await importing.state(params.source)

    @handlers.handle(TranscriptImport)
    async def take_in(params: TranscriptImport, ctx: Context) -> ImportResult:
        return await importing.take_in(params)

    return handlers


def _there(db: sqlite3.Connection, hash_: str) -> forest.Node:
    node = forest.find(db, hash_)
    if node is None:
        raise OperationError(f"node not found: {hash_}")
    return node


__all__ = ["open_service"]
