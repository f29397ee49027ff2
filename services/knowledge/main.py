"""The service: opens the database, starts the ingest beside it, and answers.

It is ready at once: until the first scan is through it answers from what is stored, and says so in `degraded`.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from proto.errors import InvalidParams, OperationError, Unavailable
from proto.operation import Params
from proto.ops.knowledge import (
    Direction,
    ExploreLinks,
    InjectTags,
    InjectTagsResult,
    KnowledgeIngest,
    KnowledgeIngestResult,
    KnowledgeStatsSummary,
    KnowledgeStatus,
    KnowledgeStatusResult,
    ListDirectoryStructure,
    NodeContent,
    NoteLink,
    Problem,
    ReadNodeContent,
    SearchDocuments,
    SearchDocumentsResult,
    SearchMetadata,
    StatsSummary,
)
from proto.ops.retrieve import RetrieveSearch, RetrieveSimilar, RetrieveStatus
from services.knowledge.discovery.operations import add_discovery
from services.knowledge.ingest.following import Following
from services.knowledge.ingest.ingest import COLLECTION, Ingest
from services.knowledge.ingest.waiting import wait_for
from services.knowledge.notes import files, tags
from services.knowledge.notes.tags import Contended, rewrite
from services.knowledge.search import passages
from services.knowledge.search.refinement import SONAR, Sonar
from services.knowledge.store import edges, graph_feed, nodes
from services.knowledge.store.graph_feed import GraphFeed
from services.knowledge.store.store import Store
from services.runtime.handlers import Context, Environment, Handlers
from services.runtime.roots import OutsideRoots, printable

SIMILAR = "SIMILAR"
SIMILAR_AT_LEAST = 0.8
SIMILAR_LIMIT = 10

MAX_PROBLEMS = 100


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the database is open."""
    store = await trio.to_thread.run_sync(Store, env.data_dir / "notes.db")
    env.at_rest(store.give_back)
    try:
        ingest = Ingest(env, store)
        feed = GraphFeed(env, store, ingest.passed)
        sonar = Sonar()
        env.background.start_soon(sonar.learn, env.call)
        following = Following(env, ingest)
        env.background.start_soon(ingest.run)
        env.background.start_soon(following.run)
        env.background.start_soon(feed.run)
        try:
            yield handlers_of(store, ingest, feed, sonar)
        finally:
            following.stop()
            await feed.stop()
            await ingest.stop()
    finally:
        store.close()


def rehearse(root: Path, settings: Mapping[str, Any]) -> Sequence[Params[Any]]:
    """Look at a note and its links; whether the first scan is through by then makes no difference."""
    note = root / "a.md"
    note.write_text("# A\n\nSee [[b]].\n", encoding="utf-8")
    files.read(str(note), (str(root),))
    return (ReadNodeContent(id="a"), ExploreLinks(id="a"), KnowledgeStatus(), ReadNodeContent(id="a"))


def handlers_of(store: Store, ingest: Ingest, feed: GraphFeed, sonar: Sonar) -> Handlers:
    """The operations on an open database with its ingest, its feed of the graph and its last stage of a search."""
    handlers = Handlers()
    reading = trio.CapacityLimiter(4)
    writing = trio.CapacityLimiter(1)

    async def text_of(node: nodes.Node) -> str:
        def read() -> str:
            return files.read(node.place.absolute, ingest.roots).text

        try:
            return await trio.to_thread.run_sync(read, limiter=reading)
        except (FileNotFoundError, NotADirectoryError):
            raise OperationError(f"File not found: {node.place.path}") from None
        except OSError as error:
            raise OperationError(f"File cannot be read: {node.place.path}: {error.strerror}") from None
        except (OutsideRoots, files.TooLarge) as error:
            raise OperationError(f"File cannot be read: {node.place.path}: {error}") from None

    @handlers.handle(SearchDocuments)
    async def search_documents(params: SearchDocuments, ctx: Context) -> SearchDocumentsResult:
        if not params.query.strip():
            raise InvalidParams("parameter `query` is blank; say what to look for", field="query")
        conditions = passages.filters(params)
        await ingest.caught_up()
        # Notes that are on their way out are dropped below; so many more are asked for.
        going = await store.read(lambda connection: len(nodes.leaving(connection, 100))) if ingest.leaving else 0
        found = await ctx.call(
            RetrieveSearch(
                collection=COLLECTION,
                query=params.query,
                limit=min(1000, params.limit + going),
                candidates=max(passages.CANDIDATES, params.limit + going),
                filters=conditions,
            )
        )
        there = await store.read(lambda connection: nodes.existing(connection, (hit.group for hit in found.hits)))
        kept = [hit for hit in found.hits if hit.group in there][: params.limit]
        refined = await sonar.refined(params.query, kept, found.source, ctx)
        results = refined.hits if params.max_tokens is None else passages.within(refined.hits, params.max_tokens)
        return SearchDocumentsResult(
            results=results,
            left_out=len(refined.hits) - len(results),
            metadata=SearchMetadata(
                query=params.query,
                sonar_enabled=refined.enabled,
                intent=refined.intent,
                analysis=refined.analysis,
                stages=[*found.stages, SONAR] if refined.enabled else found.stages,
                degraded=[*found.degraded, *refined.degraded, *ingest.degraded()],
            ),
        )

    add_discovery(handlers, store, ingest, search_documents, sonar)

    @handlers.handle(ReadNodeContent)
    async def read_node_content(params: ReadNodeContent, ctx: Context) -> NodeContent:
        node = await store.read(lambda connection: nodes.find(connection, params.id))
        if node is None:
            path = await store.read(lambda connection: nodes.departed_path(connection, params.id))
            raise OperationError("Node not found." if path is None else f"File not found: {path}")
        return NodeContent(text=await text_of(node))

    @handlers.handle(ExploreLinks)
    async def explore_links(params: ExploreLinks, ctx: Context) -> list[NoteLink]:
        if params.relation is not None and params.relation.casefold() == SIMILAR.casefold():
            return await similar(params.id, ctx)
        out, into = params.direction is not Direction.IN, params.direction is not Direction.OUT
        found, more = await store.read(
            lambda connection: edges.explore(
                connection, params.id, params.relation, out=out, into=into, depth=params.depth
            )
        )
        if more:
            ctx.log(
                "warning",
                f"explore_links: {params.id} has more than {edges.MAX_EDGES} edges within reach; these are the nearest",
            )
        plain = params.direction is Direction.OUT and params.depth == 1
        return [
            NoteLink(
                target=edge.target,
                type=edge.kind,
                source=None if plain else edge.source,
                depth=None if params.depth == 1 else edge.depth,
            )
            for edge in found
        ]

    async def similar(id_: str, ctx: Context) -> list[NoteLink]:
        node = await store.read(lambda connection: nodes.find(connection, id_))
        if node is None:
            return []
        found = await ctx.call(
            RetrieveSimilar(collection=COLLECTION, group=node.id, limit=SIMILAR_LIMIT + 1, threshold=SIMILAR_AT_LEAST)
        )
        if not found.has_vector and found.vectors_waiting:
            raise Unavailable(
                "similar notes are found by their vectors, and "
                f"{found.vectors_waiting} pieces, perhaps of this note, still wait for theirs",
                retry_after_ms=1000,
            )
        close = [other.group for other in found.neighbours]
        there = await store.read(lambda connection: nodes.existing(connection, close))
        return [NoteLink(target=other, type=SIMILAR) for other in close if other in there][:SIMILAR_LIMIT]

    @handlers.handle(ListDirectoryStructure)
    async def list_directory_structure(params: ListDirectoryStructure, ctx: Context) -> list[str]:
        return await store.read(nodes.folders)

    @handlers.handle(InjectTags)
    async def inject_tags(params: InjectTags, ctx: Context) -> InjectTagsResult:
        wanted = tags.checked(params.tags)
        path = tags.locate(params.file_path, ingest.roots)
        written: list[tags.Tagged] = []

        def change(data: bytes) -> bytes:
            written.append(tags.tagged(data, wanted))
            return written[-1].data

        try:
            changed = await trio.to_thread.run_sync(rewrite, path, ingest.roots, change, limiter=writing)
        except (FileNotFoundError, NotADirectoryError):
            raise OperationError(f"File not found: {params.file_path}") from None
        except (OutsideRoots, files.TooLarge, Contended) as error:
            raise OperationError(f"Tags cannot be added to {params.file_path}: {error}") from None
        except OSError as error:
            raise OperationError(
                f"Tags cannot be added to {params.file_path}: {os.strerror(error.errno or 0)}"
            ) from None
        if changed:
            await ingest.take_in(await trio.to_thread.run_sync(os.path.realpath, path))
        done = "merged" if written[-1].merged else "injected"
        return InjectTagsResult(
            message=f"Successfully {done} {len(params.tags)} tags into {params.file_path}",
            tags=list(written[-1].entries),
            changed=changed,
        )

    @handlers.handle(KnowledgeIngest)
    async def knowledge_ingest(params: KnowledgeIngest, ctx: Context) -> KnowledgeIngestResult:
        return await wait_for(params, ingest, ctx)

    @handlers.handle(KnowledgeStatus)
    async def knowledge_status(params: KnowledgeStatus, ctx: Context) -> KnowledgeStatusResult:
        problems = sorted(ingest.problems().items())
        progress = ingest.progress
        at = progress.scanned_at
        # Before the counts, so that with nothing pending the counts are whole.
        pending, scanning = ingest.outstanding, not progress.scanned
        return KnowledgeStatusResult(
            notes=await store.read(nodes.count),
            edges=await store.read(edges.count),
            pending=pending,
            scanning=scanning,
            last_scan=None
            if at is None
            else datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="milliseconds"),
            scan_ms=round(progress.scan_ms, 2),
            scan_interval_s=round(progress.interval_s, 2),
            unwatched=progress.unwatched,
            roots=list(ingest.roots),
            problems=[Problem(path=printable(path), reason=reason) for path, reason in problems[:MAX_PROBLEMS]],
            problem_count=len(problems),
            waiting=progress.waiting,
            graph_pending=await store.read(graph_feed.waiting),
            graph_waiting=feed.waiting,
            rebuilt=store.rebuilt,
            size_bytes=store.size_bytes(),
        )

    @handlers.handle(KnowledgeStatsSummary)
    async def knowledge_stats_summary(params: KnowledgeStatsSummary, ctx: Context) -> StatsSummary:
        held = await ctx.call(RetrieveStatus(collection=COLLECTION))
        note_count, edge_count = await store.read(lambda connection: (nodes.count(connection), edges.count(connection)))
        megabytes = (store.size_bytes() + held.size_bytes) / (1024 * 1024)
        return StatsSummary(
            text=f"Nodes: {note_count}\nEdges: {edge_count}\nVectors: {held.vectors}\nSize: {megabytes:.2f} MB"
        )

    return handlers
