"""The service: opens the database, starts the ingest beside it, and answers.

It is ready at once: until the first scan is through it answers from what is stored, and says so in `degraded`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from proto.errors import OperationError, Unavailable
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
    StatsSummary,
)
from proto.ops.retrieve import RetrieveSimilar, RetrieveStatus
from services.knowledge.discovery.operations import Discovery
from services.knowledge.ingest.index import COLLECTION
from services.knowledge.ingest.ingest import Ingest
from services.knowledge.ingest.waiting import wait_for
from services.knowledge.ingest.walking import MARKER, SKIPPED_FOLDERS
from services.knowledge.notes import files, tags
from services.knowledge.notes.frontmatter import rfc3339
from services.knowledge.search.operations import Search
from services.knowledge.search.refinement import Refiner
from services.knowledge.store import edges, graph_feed, nodes
from services.knowledge.store.graph_feed import Due, GraphFeed
from services.knowledge.store.schema import open_database
from services.runtime.database import Database
from services.runtime.follower import Follower
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.runtime.ignore_files import IGNORE_FILES
from services.runtime.outbox import Outbox
from services.runtime.roots import OutsideRoots, printable

SIMILAR = "SIMILAR"
SIMILAR_AT_LEAST = 0.8
SIMILAR_LIMIT = 10

MAX_PROBLEMS = 100


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the database is open."""
    ingest: Ingest

    def on_rebuilt() -> None:
        ingest.wake()

    database = await trio.to_thread.run_sync(open_database, env.data_dir / "notes.db", on_rebuilt)
    env.at_rest(database.give_back)
    try:
        feed = GraphFeed(env, database)
        outbox = Outbox(env, "the graph", feed)
        ingest = Ingest(env, database, outbox.hurry)
        refiner = Refiner()
        follower = Follower(env, "notes", ingest)
        if ingest.roots:
            ignored = [*(f"{name}/" for name in sorted(SKIPPED_FOLDERS)), ".*/"]
            follower.follow(ingest.roots, ignore=ignored, include=["*.md", *IGNORE_FILES, MARKER])
        else:
            ingest.unwatched("there is no folder to be watched")
        for task in (ingest.run, ingest.watch_search, follower.run, outbox.run):
            env.background.start_soon(task)
        env.background.start_soon(outbox.watch_epoch, feed.epoch)
        search = Search(database, ingest, refiner)
        try:
            yield Handlers(search, Discovery(database, ingest, search, refiner), Notes(database, ingest, outbox))
        finally:
            await follower.stop()
            await outbox.stop()
            await ingest.stop()
    finally:
        database.close()


def rehearse(root: Path, settings: Mapping[str, object]) -> Sequence[Params[Any]]:
    """Look at a note and its links; whether the first scan is through by then makes no difference."""
    note = root / "a.md"
    note.write_text("# A\n\nSee [[b]].\n", encoding="utf-8")
    files.read(str(note), (str(root),))
    return (ReadNodeContent(id="a"), ExploreLinks(id="a"), KnowledgeStatus(), ReadNodeContent(id="a"))


class Notes:
    """The operations on single notes, and on the index as a whole."""

    def __init__(self, database: Database, ingest: Ingest, outbox: Outbox[Due]) -> None:
        self._database = database
        self._ingest = ingest
        self._outbox = outbox
        self._reading = trio.CapacityLimiter(4)
        self._writing = trio.CapacityLimiter(1)

    @handles(ReadNodeContent)
    async def read_node_content(self, params: ReadNodeContent, ctx: Context) -> NodeContent:
        node = await self._database.read(lambda db: nodes.find(db, params.id))
        if node is None:
            path = await self._database.read(lambda db: nodes.departed_path(db, params.id))
            raise OperationError("Node not found." if path is None else f"File not found: {path}")
        place = node.place
        try:
            content = await trio.to_thread.run_sync(
                files.read, place.absolute, self._ingest.roots, limiter=self._reading
            )
        except (FileNotFoundError, NotADirectoryError):
            raise OperationError(f"File not found: {place.path}") from None
        except OSError as error:
            raise OperationError(f"File cannot be read: {place.path}: {error.strerror}") from None
        except (OutsideRoots, files.TooLarge) as error:
            raise OperationError(f"File cannot be read: {place.path}: {error}") from None
        return NodeContent(text=content.text)

    @handles(ExploreLinks)
    async def explore_links(self, params: ExploreLinks, ctx: Context) -> list[NoteLink]:
        if params.relation is not None and params.relation.casefold() == SIMILAR.casefold():
            return await self._similar(params.id, ctx)
        out, into = params.direction is not Direction.IN, params.direction is not Direction.OUT
        found, more = await self._database.read(
            lambda db: edges.explore(db, params.id, params.relation, out=out, into=into, depth=params.depth)
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

    async def _similar(self, id_: str, ctx: Context) -> list[NoteLink]:
        node = await self._database.read(lambda db: nodes.find(db, id_))
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
        there = await self._database.read(lambda db: nodes.existing(db, close))
        return [NoteLink(target=other, type=SIMILAR) for other in close if other in there][:SIMILAR_LIMIT]

    @handles(ListDirectoryStructure)
    async def list_directory_structure(self, params: ListDirectoryStructure, ctx: Context) -> list[str]:
        return await self._database.read(nodes.folders)

    @handles(InjectTags)
    async def inject_tags(self, params: InjectTags, ctx: Context) -> InjectTagsResult:
        wanted = tags.checked(params.tags)
        roots = self._ingest.roots
        path = tags.locate(params.file_path, roots)
        try:
            tagged, changed = await trio.to_thread.run_sync(tags.add_tags, path, roots, wanted, limiter=self._writing)
        except (FileNotFoundError, NotADirectoryError):
            raise OperationError(f"File not found: {params.file_path}") from None
        except (OutsideRoots, files.TooLarge, tags.Contended) as error:
            raise OperationError(f"Tags cannot be added to {params.file_path}: {error}") from None
        except OSError as error:
            raise OperationError(
                f"Tags cannot be added to {params.file_path}: {os.strerror(error.errno or 0)}"
            ) from None
        if changed:
            real = await trio.to_thread.run_sync(os.path.realpath, path)
            await self._ingest.take_in(real, files.digest(files.decode(tagged.data)))
        done = "merged" if tagged.merged else "injected"
        return InjectTagsResult(
            message=f"Successfully {done} {len(params.tags)} tags into {params.file_path}",
            tags=list(tagged.entries),
            changed=changed,
        )

    @handles(KnowledgeIngest)
    async def knowledge_ingest(self, params: KnowledgeIngest, ctx: Context) -> KnowledgeIngestResult:
        return await wait_for(params, self._ingest, ctx)

    @handles(KnowledgeStatus)
    async def knowledge_status(self, params: KnowledgeStatus, ctx: Context) -> KnowledgeStatusResult:
        ingest, progress = self._ingest, self._ingest.progress
        problems = sorted(ingest.problems().items())
        # Before the counts, so that with nothing pending the counts are whole.
        pending, scanning, scanned_at = ingest.index.outstanding, not progress.scanned, progress.scanned_at
        notes, links, graph_pending = await self._database.read(
            lambda db: (nodes.count(db), edges.count(db), graph_feed.waiting(db))
        )
        return KnowledgeStatusResult(
            notes=notes,
            edges=links,
            pending=pending,
            scanning=scanning,
            last_scan=rfc3339(scanned_at, timespec="milliseconds"),
            scan_ms=round(progress.scan_ms, 2),
            scan_interval_s=round(progress.interval_s, 2),
            unwatched=progress.unwatched,
            roots=list(ingest.roots),
            problems=[Problem(path=printable(path), reason=reason) for path, reason in problems[:MAX_PROBLEMS]],
            problem_count=len(problems),
            waiting=progress.waiting,
            graph_pending=graph_pending,
            graph_waiting=self._outbox.waiting,
            rebuilt=self._database.generation > 0,
            size_bytes=self._database.size_bytes(),
        )

    @handles(KnowledgeStatsSummary)
    async def knowledge_stats_summary(self, params: KnowledgeStatsSummary, ctx: Context) -> StatsSummary:
        held = await ctx.call(RetrieveStatus(collection=COLLECTION))
        note_count, edge_count = await self._database.read(lambda db: (nodes.count(db), edges.count(db)))
        megabytes = (self._database.size_bytes() + held.size_bytes) / (1024 * 1024)
        return StatsSummary(
            text=f"Nodes: {note_count}\nEdges: {edge_count}\nVectors: {held.vectors}\nSize: {megabytes:.2f} MB"
        )
