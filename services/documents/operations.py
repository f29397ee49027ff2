"""The operations that read the store, and those that change it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import apsw
import msgspec
import trio

from proto.errors import InvalidParams, LinckiaError, OperationError
from proto.ops.documents.change import (
    AddResult,
    DeleteResult,
    DocumentsAdd,
    DocumentsDelete,
    DocumentsRestore,
    DocumentsUpdate,
    RestoreResult,
    UpdateResult,
)
from proto.ops.documents.find import DocumentsGrep, DocumentsSearch, GrepResult, SearchResult
from proto.ops.documents.graph import DocumentsGraph, GraphAnswer
from proto.ops.documents.reading import (
    CORPUS,
    CollectionsResult,
    DocumentsGet,
    DocumentsList,
    DocumentsListCollections,
    DocumentsListSnapshots,
    DocumentsStatus,
    DocumentsVerify,
    GetResult,
    ListResult,
    SnapshotsResult,
    StatusResult,
    VerifyResult,
    pairs,
)
from proto.ops.retrieve import RetrieveStatus
from services.documents import changing, reading, restore, verify
from services.documents.add import places
from services.documents.add.folders import Walk
from services.documents.add.pipeline import add_directory
from services.documents.graph import answers
from services.documents.parts import Parts
from services.documents.store import snapshots
from services.documents.store.rows import Given
from services.documents.text import grep, searching
from services.runtime.handlers import Context, handles

T = TypeVar("T")

MAX_CONTENT_BYTES = 64 * 1024 * 1024
PARSING_PATIENCE_S = 2.0


class Reading:
    """Documents found, listed and read, and the store in numbers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._store = parts.store

    @handles(DocumentsSearch)
    async def search(self, params: DocumentsSearch, ctx: Context) -> SearchResult:
        if params.query is None and params.hash is None:
            raise InvalidParams("missing required parameter `query`", field="query")
        answer = await searching.search(params, self._store, self._parts.codec, self._parts.feed, ctx)
        return msgspec.structs.replace(answer, degraded=[*answer.degraded, *self._store.lacks()])

    @handles(DocumentsGrep)
    async def grep(self, params: DocumentsGrep, ctx: Context) -> GrepResult:
        answer = await self._store.read(partial(grep.grep, codec=self._parts.codec, params=params))
        return msgspec.structs.replace(answer, degraded=[*answer.degraded, *self._store.lacks()])

    @handles(DocumentsList)
    async def list_documents(self, params: DocumentsList, ctx: Context) -> ListResult:
        return await self._store.read(lambda db: reading.listed(db, params))

    @handles(DocumentsListCollections)
    async def list_collections(self, params: DocumentsListCollections, ctx: Context) -> CollectionsResult:
        found = await self._store.read(reading.collections)
        return CollectionsResult(collections=found, total=len(found))

    @handles(DocumentsListSnapshots)
    async def list_snapshots(self, params: DocumentsListSnapshots, ctx: Context) -> SnapshotsResult:
        limit = -1 if params.limit is None else params.limit
        return await self._store.read(
            lambda db: SnapshotsResult(snapshots=snapshots.all_of(db, limit, params.offset), total=snapshots.count(db))
        )

    @handles(DocumentsGet)
    async def get(self, params: DocumentsGet, ctx: Context) -> GetResult:
        roots = self._parts.adding.roots
        target = None if params.outputPath is None else places.to_be_written(params.outputPath, "outputPath", roots)

        def get(db: apsw.Connection) -> GetResult:
            return reading.get(db, self._parts.codec, params, target)

        def get_related(lacks: list[str], db: apsw.Connection) -> GetResult:
            answer = get(db)
            related, edges, cut = answers.around(db, answer.path, params.depth)
            return msgspec.structs.replace(answer, related=related, edges=edges, graph_truncated=cut, degraded=lacks)

        return await (self._of_graph(get_related) if params.graph else self._store.read(get))

    @handles(DocumentsGraph)
    async def graph(self, params: DocumentsGraph, ctx: Context) -> GraphAnswer:
        return await self._of_graph(lambda lacks, db: answers.answer(db, params, lacks))

    @handles(DocumentsStatus)
    async def status(self, params: DocumentsStatus, ctx: Context) -> StatusResult:
        parts = self._parts
        waiting = (parts.indexing.waiting, parts.search.waiting, parts.graph.waiting)
        degraded = [*self._store.lacks(), *(reason for reason in waiting if reason)]
        vectors: int | None = None
        try:
            vectors = (await ctx.call(RetrieveStatus(collection=CORPUS), timeout_s=5)).vectors_waiting
        except LinckiaError as error:
            degraded.append(f"vectors: {error}")
        disk = await trio.to_thread.run_sync(self._store.size_bytes)
        return await self._store.read(lambda db: verify.status(db, params, disk, vectors, degraded))

    @handles(DocumentsVerify)
    async def verify(self, params: DocumentsVerify, ctx: Context) -> VerifyResult:
        return await verify.verify(self._store, self._parts.codec, ctx)

    async def _of_graph(self, query: Callable[[list[str], apsw.Connection], T]) -> T:
        """What `query` answers, given what is not parsed yet after a moment in which it may be."""
        while True:
            left = await self._parts.parsing.settle(PARSING_PATIENCE_S)
            lacks = [f"{left} documents are still to be looked at for what they define, call and import"] * bool(left)
            generation = self._store.index.generation
            answer = await self._store.read(partial(query, lacks + self._store.lacks()))
            if generation == self._store.index.generation:
                return answer
            # It found the index damaged, and what was parsed gone.


class Changing:
    """Documents added, described, deleted, and written out."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._store = parts.store

    @handles(DocumentsAdd)
    async def add(self, params: DocumentsAdd, ctx: Context) -> AddResult:
        adding = self._parts.adding
        metadata = pairs(params.metadata)
        wanted = params.session
        session = None
        if wanted is not None:
            session = (await self._store.read(lambda db: changing.session(db, wanted, field="session")))[0]
        given = Given(tuple(dict.fromkeys(params.tags)), metadata, params.collection, params.mimeType, session)
        if params.content is not None:
            assert params.name is not None
            if len(params.content) > MAX_CONTENT_BYTES:
                raise InvalidParams(
                    f"parameter `content` has more than {MAX_CONTENT_BYTES} characters", field="content"
                )
            return await self._parts.added(*await adding.text(params.name, params.content, given))
        assert params.path is not None
        path, is_folder = await trio.to_thread.run_sync(places.examined, params.path, "path", adding.roots)
        if not is_folder:
            return await self._parts.added(*await adding.file(path, given, ctx))
        walk = Walk(
            path,
            adding.roots,
            recursive=params.recursive,
            include=params.include,
            exclude=params.exclude,
            honour_ignores=not params.no_ignore,
            avoid=(str(self._parts.env.data_dir), str(self._parts.env.data_dir.parent)),
        )
        return await self._parts.added(*await add_directory(adding, walk, given, params.snapshot_label, ctx))

    @handles(DocumentsUpdate)
    async def update(self, params: DocumentsUpdate, ctx: Context) -> UpdateResult:
        answer = await self._store.write(lambda db: changing.update(db, params))
        self._parts.hurry()
        return answer

    @handles(DocumentsDelete)
    async def delete(self, params: DocumentsDelete, ctx: Context) -> DeleteResult:
        if params.dry_run:
            return await self._store.read(lambda db: changing.delete(db, params))
        answer = await self._store.write(lambda db: changing.delete(db, params))
        self._parts.hurry()
        return answer

    @handles(DocumentsRestore)
    async def restore(self, params: DocumentsRestore, ctx: Context) -> RestoreResult:
        target = places.to_be_written(params.output_directory, "output_directory", self._parts.adding.roots)

        def progress(done: int, total: int) -> None:
            trio.from_thread.run_sync(ctx.progress, done, total, "files")

        try:
            return await self._store.read(lambda db: restore.restored(db, self._parts.codec, params, target, progress))
        except OSError as error:
            raise OperationError(f"{target} cannot be written: {error.strerror}", field="output_directory") from None
