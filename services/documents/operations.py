"""The operations on an open store."""

from __future__ import annotations

import apsw
import trio

from proto.errors import InvalidParams, LinckiaError, OperationError
from proto.ops.documents import (
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
from proto.ops.documents_change import (
    AddResult,
    DeleteResult,
    DocumentsAdd,
    DocumentsDelete,
    DocumentsPutAbandon,
    DocumentsPutBegin,
    DocumentsPutCommit,
    DocumentsPutPiece,
    DocumentsRestore,
    DocumentsUpdate,
    RestoreResult,
    UpdateResult,
    UploadAbandoned,
    UploadBegun,
    UploadProgress,
)
from proto.ops.documents_find import DocumentsGrep, DocumentsSearch, GrepResult, SearchResult
from proto.ops.documents_graph import DocumentsGraph, GraphAnswer
from proto.ops.retrieve import RetrieveStatus
from services.documents import changing, reading, restore, sessions, verify
from services.documents.add import places
from services.documents.add.folders import Walk
from services.documents.follower import Watching
from services.documents.graph import answers
from services.documents.parts import Parts
from services.documents.store import snapshots
from services.documents.store.rows import Given
from services.documents.text import grep, searching
from services.runtime.handlers import Context, Handlers

MAX_CONTENT_BYTES = 64 * 1024 * 1024
EXTRACTION_PATIENCE_S = 10.0
PARSING_PATIENCE_S = 2.0


def handlers_of(parts: Parts, watching: Watching) -> Handlers:
    """The operations of the service."""
    handlers = Handlers()
    _add_reading(handlers, parts)
    _add_changing(handlers, parts)
    _add_uploads(handlers, parts)
    sessions.add_sessions(handlers, parts, watching)
    return handlers


def _add_reading(handlers: Handlers, parts: Parts) -> None:
    store, codec = parts.store, parts.codec

    @handlers.handle(DocumentsSearch)
    async def documents_search(params: DocumentsSearch, ctx: Context) -> SearchResult:
        if params.query is None and params.hash is None:
            raise InvalidParams("missing required parameter `query`", field="query")
        return await searching.search(params, store, codec, parts.feed, ctx)

    @handlers.handle(DocumentsGrep)
    async def documents_grep(params: DocumentsGrep, ctx: Context) -> GrepResult:
        return await store.read(lambda db: grep.grep(db, codec, params))

    @handlers.handle(DocumentsList)
    async def documents_list(params: DocumentsList, ctx: Context) -> ListResult:
        return await store.read(lambda db: reading.listed(db, params))

    @handlers.handle(DocumentsListCollections)
    async def documents_list_collections(params: DocumentsListCollections, ctx: Context) -> CollectionsResult:
        found = await store.read(reading.collections)
        return CollectionsResult(collections=found, total=len(found))

    @handlers.handle(DocumentsListSnapshots)
    async def documents_list_snapshots(params: DocumentsListSnapshots, ctx: Context) -> SnapshotsResult:
        limit = -1 if params.limit is None else params.limit
        return await store.read(
            lambda db: SnapshotsResult(snapshots=snapshots.all_of(db, limit, params.offset), total=snapshots.count(db))
        )

    @handlers.handle(DocumentsGet)
    async def documents_get(params: DocumentsGet, ctx: Context) -> GetResult:
        roots = parts.adding.roots
        target = None if params.outputPath is None else places.to_be_written(params.outputPath, "outputPath", roots)

        def get(db: apsw.Connection) -> GetResult:
            found, stored = reading.picked(db, params)
            first = found[0]
            text = encoding = None
            length = 0
            if params.include_content:
                text, encoding, length = reading.content(db, codec, stored, params.offset, params.length)
            written = None
            if target is not None:
                written = target / first.name if target.is_dir() else target
                reading.copy_to(db, codec, stored, written)
            related, edges, cut = answers.around(db, first.path, params.depth) if params.graph else ([], [], False)
            return GetResult(
                **{name: getattr(first, name) for name in first.__struct_fields__},
                paths=[document.path for document in found],
                content=text,
                content_encoding=encoding,
                content_offset=params.offset if params.include_content else None,
                content_length=length if params.include_content else None,
                content_truncated=params.include_content and params.offset + length < stored.size,
                output_path=None if written is None else str(written),
                graph_enabled=params.graph,
                related=related,
                edges=edges,
                graph_truncated=cut,
                degraded=degraded,
            )

        degraded = await _graph_lacks(parts) if params.graph else []
        return await store.read(get)

    @handlers.handle(DocumentsGraph)
    async def documents_graph(params: DocumentsGraph, ctx: Context) -> GraphAnswer:
        degraded = await _graph_lacks(parts)
        return await store.read(lambda db: answers.answer(db, params, degraded))

    @handlers.handle(DocumentsStatus)
    async def documents_status(params: DocumentsStatus, ctx: Context) -> StatusResult:
        degraded: list[str] = []
        degraded += [waiting for waiting in (parts.feed.waiting, parts.graph.waiting) if waiting]
        vectors: int | None = None
        try:
            vectors = (await ctx.call(RetrieveStatus(collection=CORPUS), timeout_s=5)).vectors_waiting
        except LinckiaError as error:
            degraded.append(f"vectors: {error}")
        disk = await trio.to_thread.run_sync(store.size_bytes)
        return await store.read(lambda db: verify.status(db, params, disk, vectors, degraded))

    @handlers.handle(DocumentsVerify)
    async def documents_verify(params: DocumentsVerify, ctx: Context) -> VerifyResult:
        return await verify.verify(store, codec, ctx)


async def _graph_lacks(parts: Parts) -> list[str]:
    """What is not parsed yet, after a moment in which it may be."""
    left = await parts.parsing.settle(PARSING_PATIENCE_S)
    return [f"{left} documents are still to be looked at for what they define, call and import"] if left else []


def _add_changing(handlers: Handlers, parts: Parts) -> None:
    store = parts.store

    async def acknowledged(answer: AddResult, ids: list[int]) -> AddResult:
        parts.hurry()
        left = await parts.indexing.settled(ids, EXTRACTION_PATIENCE_S)
        if not left:
            return answer
        return AddResult(
            **{name: getattr(answer, name) for name in answer.__struct_fields__ if name != "text_waiting"},
            text_waiting=left,
        )

    @handlers.handle(DocumentsAdd)
    async def documents_add(params: DocumentsAdd, ctx: Context) -> AddResult:
        metadata = pairs(params.metadata)
        wanted = params.session
        session = None
        if wanted is not None:
            session = (await store.read(lambda db: changing.session(db, wanted, field="session")))[0]
        given = Given(
            tuple(dict.fromkeys(params.tags)), metadata, params.collection, params.mimeType, session,
        )  # fmt: skip
        if params.content is not None:
            assert params.name is not None
            if len(params.content) > MAX_CONTENT_BYTES:
                raise InvalidParams(
                    f"parameter `content` has more than {MAX_CONTENT_BYTES} characters", field="content"
                )
            return await acknowledged(*await parts.adding.text(params.name, params.content, given))
        assert params.path is not None
        path, is_folder = await trio.to_thread.run_sync(places.examined, params.path, "path", parts.adding.roots)
        if not is_folder:
            return await acknowledged(*await parts.adding.file(path, given, ctx))
        walk = Walk(
            path,
            parts.adding.roots,
            recursive=params.recursive,
            include=params.include,
            exclude=params.exclude,
            honour_ignores=not params.no_ignore,
            avoid=(str(parts.env.data_dir), str(parts.env.data_dir.parent)),
        )
        return await acknowledged(*await parts.adding.directory(walk, given, params.snapshot_label, ctx))

    @handlers.handle(DocumentsUpdate)
    async def documents_update(params: DocumentsUpdate, ctx: Context) -> UpdateResult:
        answer = await store.write(lambda db: changing.update(db, params))
        parts.hurry()
        return answer

    @handlers.handle(DocumentsDelete)
    async def documents_delete(params: DocumentsDelete, ctx: Context) -> DeleteResult:
        if params.dry_run:
            return await store.read(lambda db: changing.delete(db, params))
        answer = await store.write(lambda db: changing.delete(db, params))
        parts.hurry()
        return answer

    @handlers.handle(DocumentsRestore)
    async def documents_restore(params: DocumentsRestore, ctx: Context) -> RestoreResult:
        return await _restore(params, ctx, parts)


async def _restore(params: DocumentsRestore, ctx: Context, parts: Parts) -> RestoreResult:
    target = places.to_be_written(params.output_directory, "output_directory", parts.adding.roots)

    def work(db: apsw.Connection) -> restore.Outcome:
        if params.snapshot_id is not None:
            snapshot = snapshots.find(db, params.snapshot_id)
            if snapshot is None:
                raise OperationError(f"Snapshot not found: {params.snapshot_id}", field="snapshot_id")
            wanted = restore.of_snapshot(db, snapshot.id, snapshot.directory)
        else:
            assert params.collection is not None
            wanted = restore.of_collection(db, params.collection)
            if not wanted:
                raise OperationError(f"Collection not found: {params.collection}", field="collection")
        wanted = restore.matching(wanted, params.include_patterns, params.exclude_patterns)

        def progress(done: int) -> None:
            trio.from_thread.run_sync(ctx.progress, done, len(wanted), "files")

        return restore.restore(
            db, parts.codec, wanted, target, overwrite=params.overwrite, dry_run=params.dry_run, progress=progress
        )

    try:
        done = await parts.store.read(work)
    except OSError as error:
        raise OperationError(f"{target} cannot be written: {error.strerror}", field="output_directory") from None
    return RestoreResult(
        files_restored=done.restored,
        skipped=done.skipped,
        bytes_restored=done.bytes,
        files=done.files,
        output_directory=str(target),
        dry_run=params.dry_run,
    )


def _add_uploads(handlers: Handlers, parts: Parts) -> None:
    uploads = parts.uploads

    @handlers.handle(DocumentsPutBegin)
    async def put_begin(params: DocumentsPutBegin, ctx: Context) -> UploadBegun:
        return UploadBegun(upload_id=uploads.begin(params))

    @handlers.handle(DocumentsPutPiece)
    async def put_piece(params: DocumentsPutPiece, ctx: Context) -> UploadProgress:
        return UploadProgress(received=await uploads.piece(params))

    @handlers.handle(DocumentsPutCommit)
    async def put_commit(params: DocumentsPutCommit, ctx: Context) -> AddResult:
        answer, ids = await uploads.commit(params)
        parts.hurry()
        await parts.indexing.settled(ids, EXTRACTION_PATIENCE_S)
        return answer

    @handlers.handle(DocumentsPutAbandon)
    async def put_abandon(params: DocumentsPutAbandon, ctx: Context) -> UploadAbandoned:
        return UploadAbandoned(was_there=uploads.abandon(params.upload_id))
