"""The service `transcripts`: opens the database, feeds the search beside it, and answers."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio

from proto.errors import InvalidParams, OperationError
from proto.operation import Params
from proto.ops.retrieve import RetrieveSearch
from proto.ops.transcripts import (
    Checkout,
    DeletedTurns,
    EverythingResult,
    ForestStats,
    Histories,
    History,
    HistoryMessage,
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
from services.transcripts import deleting, everything, finding, forest
from services.transcripts.checkout import checkout
from services.transcripts.feed import COLLECTION, Feed, owe_scrub
from services.transcripts.importing import Importing, release
from services.transcripts.ingest import Ingest
from services.transcripts.pieces import Stripper
from services.transcripts.settings import Settings, read_settings, redactor_of
from services.transcripts.store import Store

HISTORIES_BYTES = 32 * 1024 * 1024
"""Of content in one answer of many conversations."""

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
    async def search(params: TranscriptsSearch, ctx: Context) -> TranscriptSearchResult:
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
        results = await store.read(lambda db: finding.results(db, hits, wanted))
        if params.max_tokens is not None:
            results = finding.within(results, params.max_tokens)
        degraded = list(found.degraded)
        if left:
            degraded.append(f"index: {left} turns are still to be indexed")
        return TranscriptSearchResult(query=params.query, count=len(results), results=results, degraded=degraded)

    @handlers.handle(SearchEverything)
    async def search_everything(params: SearchEverything, ctx: Context) -> EverythingResult:
        return await everything.search(params, ctx, store, feed, settings.search_patience_s)

    @handlers.handle(TranscriptDelete)
    async def delete(params: TranscriptDelete, ctx: Context) -> DeletedTurns:
        def change(db: sqlite3.Connection) -> tuple[list[bytes], int]:
            node = _there(db, params.hash)
            owe_scrub(db)
            gone = deleting.delete(db, node.node_id, descendants=params.descendants, bar=params.bar)
            release(db)
            return gone

        gone, kept = await store.write(change)
        await store.scrub()
        forgotten = await feed.forgotten(DELETE_PATIENCE_S)
        return DeletedTurns(deleted=len(gone), placeholders=kept, search_pending=0 if forgotten else len(gone))

    @handlers.handle(TranscriptCheckout)
    async def check_out(params: TranscriptCheckout, ctx: Context) -> Checkout:
        def query(db: sqlite3.Connection) -> tuple[list[forest.Node], str]:
            path = forest.lineage(db, _there(db, params.hash).node_id)
            return path, forest.prompt_text(db, path)

        path, system = await store.read(query)
        return checkout(path, system, params.form)

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
    async def history(params: TranscriptHistory, ctx: Context) -> History | None:
        path = await store.read(lambda db: _path(db, params.hash))
        return _history(path) if path else None

    @handlers.handle(TranscriptHistories)
    async def histories(params: TranscriptHistories, ctx: Context) -> Histories:
        def query(db: sqlite3.Connection) -> tuple[list[list[forest.Node]], int]:
            paths: list[list[forest.Node]] = []
            left = HISTORIES_BYTES
            for leaf in forest.leaves(db, params.limit):
                paths.append(forest.lineage(db, leaf))
                left -= sum(len(node.content) for node in paths[-1])
                if left < 0:
                    break
            return paths, forest.counts(db)[2]

        paths, total = await store.read(query)
        return Histories(histories=[_history(path) for path in paths], total=total)

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


def _path(db: sqlite3.Connection, hash_: str) -> list[forest.Node]:
    node = forest.find(db, hash_)
    return [] if node is None else forest.lineage(db, node.node_id)


def _history(path: Sequence[forest.Node]) -> History:
    messages = [
        HistoryMessage(
            hash=node.hash,
            parent_hash=path[index - 1].hash if index else "",
            role=node.role,
            content=node.blocks,
            model=node.model,
            provider=node.provider,
            agent_name=node.agent,
            stop_reason=node.stop_reason,
            usage=node.tokens,
        )
        for index, node in enumerate(path)
    ]
    return History(messages=messages, head_hash=path[-1].hash, depth=len(path))


__all__ = ["open_service"]
