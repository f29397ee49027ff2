"""The service `knowledge`: opens the database, starts the ingest and provides the handlers.

It is ready at once. Until the first scan is complete, results come from the stored index and `degraded` says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial

import trio
from msgspec import structs

from proto.errors import LinckiaError, OperationError, Unavailable
from proto.ops.changes import CollectChanges, TakeNoteChanges
from proto.ops.completing import NAMES_LIKE
from proto.ops.graph import Direction
from proto.ops.retrieve import CollectionStatus, RetrieveSimilar, RetrieveStatus
from services.knowledge import edges, graph_feed, ids, nodes
from services.knowledge.graph_feed import Due, GraphFeed
from services.knowledge.ingest.index import COLLECTION
from services.knowledge.ingest.ingest import STARTUP_PATIENCE_S, Ingest
from services.knowledge.ingest.ingest_waits import NoteLookup, wait_for
from services.knowledge.ingest.note_walk import MARKER, SKIPPED_FOLDERS
from services.knowledge.note_database import open_database
from services.knowledge.notes import files
from services.knowledge.notes.excerpts import part
from services.knowledge.notes.spelling import nfc
from services.knowledge.operations import notes as ops
from services.knowledge.page import PageOperations
from services.knowledge.search.discovery import Discovery
from services.knowledge.search.loose_ends import LooseEndList, LooseEnds
from services.knowledge.search.refinement import Refiner
from services.knowledge.search.search_operations import Search
from services.knowledge.search.topics import Topics
from services.knowledge.writing.write_operations import WriteOperations
from services.runtime.database import Database
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.runtime.rewrite import content_hash
from services.runtime.roots import Denied, OutsideRoots, printable
from services.shared.date_ranges import rfc3339
from services.shared.follower import Follower
from services.shared.ignore_files import IGNORE_FILES
from services.shared.outbox import Outbox

SIMILAR_AT_LEAST = 0.8
SIMILAR_LIMIT = 10

MAX_PROBLEMS = 100

STATUS_WAIT_S = 1.0
"""How long the status waits for the search service; it is returned without its figures after that."""


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Yield the handlers once the database is open and an interrupted renaming is finished, or takes too long."""
    ingest: Ingest

    def on_rebuilt() -> None:
        ingest.wake()

    database = await env.opened(open_database, env.data_dir / "notes.db", on_rebuilt)
    env.at_rest(database.give_back)
    env.keeps_keys_in(database)
    feed = GraphFeed(env, database)
    outbox = Outbox(env, "the graph", feed)
    ingest = Ingest(env, database, outbox.hurry)
    follower = Follower(env, "notes", ingest)
    if ingest.roots:
        ignored = [*(f"{name}/" for name in sorted(SKIPPED_FOLDERS)), ".*/"]
        follower.follow(ingest.roots, ignore=ignored, include=["*.md", *IGNORE_FILES, MARKER])
    else:
        ingest.unwatched("no folders are configured")
    lookup = NoteLookup(database, ingest)
    log = env.keeps_changes(partial(env.call, CollectChanges()))
    writing = WriteOperations(env, database, ingest, lookup)
    for task in (ingest.run, ingest.watch_search, follower.run, outbox.run, writing.run):
        env.background.start_soon(task)
    env.background.start_soon(outbox.watch_epoch, feed.epoch)
    with trio.move_on_after(STARTUP_PATIENCE_S):
        await writing.is_whole.wait()
    refiner = Refiner()
    search = Search(database, ingest, refiner)
    discovery = Discovery(database, ingest, refiner, search)
    topics = Topics(database, ingest)
    page = PageOperations(database, ingest, lookup)
    handlers = Handlers(search, discovery, topics, Notes(database, ingest, outbox, lookup), writing, page)
    handlers.handle(TakeNoteChanges)(log.taken)
    yield handlers


class Notes:
    """Operations on single notes and on the index as a whole."""

    def __init__(self, database: Database, ingest: Ingest, outbox: Outbox[Due], lookup: NoteLookup) -> None:
        self._database = database
        self._lookup = lookup
        self._ingest = ingest
        self._outbox = outbox
        self._loose_ends = LooseEnds(database, ingest)
        self._reading = trio.CapacityLimiter(4)

    @handles(ops.ReadNodeContent)
    async def read_node_content(self, params: ops.ReadNodeContent, ctx: Context) -> ops.NodeContent:
        node = await self._lookup.require(params.id)
        place, roots = node.place, self._ingest.roots
        try:
            content = await trio.to_thread.run_sync(files.read, place.absolute, roots, limiter=self._reading)
        except (FileNotFoundError, NotADirectoryError):
            near = await trio.to_thread.run_sync(roots.similar, place.absolute, place.path)
            raise OperationError(f"File not found: {place.path}{near}") from None
        except Denied:
            raise
        except (OSError, OutsideRoots, files.TooLarge) as error:
            raise OperationError(f"File cannot be read: {place.path}: {files.why(error)}") from None
        found = await trio.to_thread.run_sync(part, content.text, params.lines, params.section, limiter=self._reading)
        return structs.replace(found, hash=content_hash(content.data))

    @handles(ops.KnowledgeNote)
    async def note(self, params: ops.KnowledgeNote, ctx: Context) -> ops.NodeContent:
        return await self.read_node_content(ops.ReadNodeContent(id=params.id), ctx)

    @handles(ops.KnowledgeNames)
    async def names(self, params: ops.KnowledgeNames, ctx: Context) -> list[str]:
        query = f"SELECT id FROM node WHERE {NAMES_LIKE.format('id')}"
        return await self._database.read(lambda db: [id_ for (id_,) in db.execute(query, (nfc(params.value),))])

    @handles(ops.ExploreLinks)
    async def explore_links(self, params: ops.ExploreLinks, ctx: Context) -> list[ops.NoteLink]:
        if params.relation is not None and params.relation.casefold() == "similar":
            return await self._similar(params.id, ctx)
        await self._lookup.find(params.id, with_links=True)
        out, into = params.direction is not Direction.IN, params.direction is not Direction.OUT
        found, more = await self._database.read(
            lambda db: edges.explore(
                db, ids.present(db, params.id), params.relation, out=out, into=into, depth=params.depth
            )
        )
        if more:
            ctx.log("warning", f"notes_links: {params.id} has more than {edges.MAX_EDGES} edges; showing the nearest")
        deep = params.depth > 1
        return [
            ops.NoteLink(
                target=edge.target,
                type=edge.kind,
                source=edge.source if deep or into else None,
                depth=edge.depth if deep else None,
            )
            for edge in found
        ]

    async def _similar(self, id_: str, ctx: Context) -> list[ops.NoteLink]:
        node = await self._lookup.find(id_)
        if node is None:
            return []
        found = await ctx.call(
            RetrieveSimilar(collection=COLLECTION, group=node.id, limit=SIMILAR_LIMIT + 1, threshold=SIMILAR_AT_LEAST)
        )
        if not found.has_vector and found.vectors_waiting:
            raise Unavailable(
                "similar notes are found by vectors; "
                f"{found.vectors_waiting} pieces, perhaps of this note, have none yet",
                retry_after_ms=1000,
            )
        close = [other.group for other in found.neighbours]
        there = await self._database.read(lambda db: nodes.existing(db, close))
        return [ops.NoteLink(target=other, type="SIMILAR") for other in close if other in there][:SIMILAR_LIMIT]

    @handles(ops.ListDirectoryStructure)
    async def list_directory_structure(self, params: ops.ListDirectoryStructure, ctx: Context) -> list[str]:
        return await self._database.read(nodes.folders)

    @handles(ops.KnowledgeIngest)
    async def knowledge_ingest(self, params: ops.KnowledgeIngest, ctx: Context) -> ops.KnowledgeIngestResult:
        return await wait_for(params, self._ingest, ctx)

    @handles(ops.KnowledgeStatus)
    async def knowledge_status(self, params: ops.KnowledgeStatus, ctx: Context) -> ops.KnowledgeStatusResult:
        ingest = self._ingest
        held: CollectionStatus | None = None
        with contextlib.suppress(LinckiaError):
            held = await ctx.call(RetrieveStatus(collection=COLLECTION), timeout_s=STATUS_WAIT_S)
        problems = sorted(ingest.problems().items())
        # Read before the counts, so that they are complete if nothing is pending.
        pending, scanning, scanned_at = ingest.index.outstanding, not ingest.scanned, ingest.scanned_at
        notes, links, graph_pending = await self._database.read(
            lambda db: (nodes.count(db), edges.count(db), graph_feed.waiting(db))
        )
        # While notes are being read, a link's target may not be indexed yet.
        loose = LooseEndList() if pending or scanning else await self._loose_ends.found(params.limit)
        return ops.KnowledgeStatusResult(
            notes=notes,
            edges=links,
            pending=pending,
            scanning=scanning,
            last_scan=rfc3339(scanned_at, timespec="milliseconds"),
            scan_ms=round(ingest.scan_ms, 2),
            scan_interval_s=round(ingest.interval_s, 2),
            unwatched=ingest.unwatched_because,
            roots=list(ingest.roots),
            problems=[ops.Problem(path=printable(path), reason=reason) for path, reason in problems[:MAX_PROBLEMS]],
            problem_count=len(problems),
            broken_links=list(loose.broken),
            broken_link_count=loose.broken_count,
            orphans=list(loose.orphans),
            orphan_count=loose.orphan_count,
            waiting=ingest.waiting,
            graph_pending=graph_pending,
            graph_waiting=self._outbox.waiting,
            vectors_waiting=None if held is None else held.vectors_waiting,
            vectors_backlog=None if held is None else held.backlog,
            rebuilt=self._database.generation > 0,
            size_bytes=self._database.size_bytes(),
        )

    @handles(ops.KnowledgeStatsSummary)
    async def knowledge_stats_summary(self, params: ops.KnowledgeStatsSummary, ctx: Context) -> ops.StatsSummary:
        held = await ctx.call(RetrieveStatus(collection=COLLECTION))
        note_count, edge_count = await self._database.read(lambda db: (nodes.count(db), edges.count(db)))
        megabytes = (self._database.size_bytes() + held.size_bytes) / (1024 * 1024)
        return ops.StatsSummary(
            text=f"Nodes: {note_count}\nEdges: {edge_count}\nVectors: {held.vectors}\nSize: {megabytes:.2f} MB"
        )
