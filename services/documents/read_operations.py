"""The read operations: search, list and get documents, and the status of the store."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import apsw
import msgspec
import trio

from proto.errors import InvalidParams, LinckiaError, OperationError
from proto.ops.completing import NAMES_LIKE
from proto.ops.documents import reading as ops
from proto.ops.retrieve import RetrieveStatus
from services.documents import restore, verify
from services.documents.add import folders
from services.documents.code import traversal
from services.documents.components import OperationGroup
from services.documents.operations import find
from services.documents.operations.listing import (
    CollectionCount,
    CollectionsResult,
    DocumentsList,
    DocumentsListCollections,
    DocumentsListSnapshots,
    DocumentsStatus,
    ListResult,
    SnapshotsResult,
    SortBy,
    StatusResult,
)
from services.documents.operations.versions import DocumentsVersion, VersionContent
from services.documents.store import objects, rows, snapshots, texts
from services.documents.store.compress import DamagedContent
from services.documents.store.objects import Stored
from services.documents.store.tables import TEXT_EXTRACTED
from services.documents.text import grep, search
from services.runtime.handlers import Context, handles
from services.runtime.roots import Roots

T = TypeVar("T")

PARSING_PATIENCE_S = 2.0
MAX_LISTED = 200_000
CONTENT_BYTES = 1024 * 1024

_ORDERS = {
    SortBy.NAME: "document.name COLLATE NOCASE {0}, document.name {0}, document.path {0}",
    SortBy.SIZE: "object.size {0}",
    SortBy.CREATED: "document.created_ns {0}",
    SortBy.MODIFIED: "document.modified_ns {0}",
    SortBy.INDEXED: "document.indexed_ns {0}",
}


class ReadOperations(OperationGroup):
    @handles(find.DocumentsSearch)
    async def search(self, params: find.DocumentsSearch, ctx: Context) -> find.SearchResult:
        if params.query is None and params.hash is None:
            raise InvalidParams("missing required parameter `query`", field="query")
        answer = await search.search(params, self._store, self._components.feed, ctx)
        return msgspec.structs.replace(answer, degraded=[*answer.degraded, *self._store.notes()])

    @handles(find.DocumentsGrep)
    async def grep(self, params: find.DocumentsGrep, ctx: Context) -> find.GrepResult:
        answer = await self._store.read(partial(grep.grep, params=params))
        return msgspec.structs.replace(answer, degraded=[*answer.degraded, *self._store.notes()])

    @handles(DocumentsList)
    async def list_documents(self, params: DocumentsList, ctx: Context) -> ListResult:
        return await self._store.read(lambda db: _listed(db, params))

    @handles(ops.DocumentsNames)
    async def names(self, params: ops.DocumentsNames, ctx: Context) -> list[str]:
        if params.argument != "document_name":
            return []
        query = f"SELECT DISTINCT name FROM document WHERE {NAMES_LIKE.format('name')}"
        return await self._store.read(lambda db: [name for (name,) in db.execute(query, (params.value,))])

    @handles(DocumentsListCollections)
    async def list_collections(self, params: DocumentsListCollections, ctx: Context) -> CollectionsResult:
        found = await self._store.read(_collections)
        return CollectionsResult(collections=found, total=len(found))

    @handles(DocumentsListSnapshots)
    async def list_snapshots(self, params: DocumentsListSnapshots, ctx: Context) -> SnapshotsResult:
        def query(db: apsw.Connection) -> SnapshotsResult:
            some = snapshots.latest(db, -1 if params.limit is None else params.limit, params.offset)
            return SnapshotsResult(snapshots=some, total=db.execute("SELECT count(*) FROM snapshot").get)

        return await self._store.read(query)

    @handles(ops.DocumentsCompareSnapshots)
    async def compare_snapshots(self, params: ops.DocumentsCompareSnapshots, ctx: Context) -> ops.SnapshotDifference:
        return await self._store.read(lambda db: snapshots.difference(db, params.before, params.after, params.limit))

    @handles(ops.DocumentsVersions)
    async def versions(self, params: ops.DocumentsVersions, ctx: Context) -> ops.Versions:
        return ops.Versions(versions=await self._store.read(lambda db: snapshots.versions(db, params.path)))

    @handles(DocumentsVersion)
    async def version(self, params: DocumentsVersion, ctx: Context) -> VersionContent:
        def get(db: apsw.Connection) -> VersionContent:
            hash_ = rows.content_hash(db, params.hash)
            stored = objects.by_hash(db, hash_)
            assert stored is not None
            part = _content(db, stored, ops.DocumentsGet(offset=params.offset, length=params.length))
            end = params.offset + part.length
            return VersionContent(
                hash=hash_.hex(), size=stored.size, content=part.text, encoding=part.encoding, source=part.source,
                next_offset=end if end < part.total and part.length else None,
            )  # fmt: skip

        return await self._store.read(get)

    @handles(ops.DocumentsGet)
    async def get(self, params: ops.DocumentsGet, ctx: Context) -> ops.GetResult:
        roots = self._components.adding.roots
        target = None if params.outputPath is None else folders.to_be_written(params.outputPath, "outputPath", roots)

        def get(db: apsw.Connection) -> ops.GetResult:
            return _get(db, params, target, roots)

        def get_related(lacks: list[str], db: apsw.Connection) -> ops.GetResult:
            answer = get(db)
            related, edges, cut = traversal.around(db, answer.path, params.depth)
            return msgspec.structs.replace(answer, related=related, edges=edges, graph_truncated=cut, degraded=lacks)

        return await (self._of_graph(get_related) if params.graph else self._store.read(get))

    @handles(ops.DocumentsContent)
    async def content(self, params: ops.DocumentsContent, ctx: Context) -> ops.StoredContent:
        return await self._store.read(lambda db: _whole(db, params))

    @handles(find.DocumentsGraph)
    async def graph(self, params: find.DocumentsGraph, ctx: Context) -> find.GraphAnswer:
        return await self._of_graph(lambda lacks, db: traversal.answer(db, params, lacks))

    @handles(DocumentsStatus)
    async def status(self, params: DocumentsStatus, ctx: Context) -> StatusResult:
        components = self._components
        waiting = (components.indexing.waiting, components.search.waiting, components.graph.waiting)
        degraded = [*self._store.notes(), *(reason for reason in waiting if reason)]
        vectors: int | None = None
        try:
            vectors = (await ctx.call(RetrieveStatus(collection=ops.CORPUS), timeout_s=5)).vectors_waiting
        except LinckiaError as error:
            degraded.append(f"vectors: {error}")
        disk = await trio.to_thread.run_sync(self._store.size_bytes)
        return await self._store.read(lambda db: verify.status(db, params, disk, vectors, degraded))

    @handles(ops.DocumentsVerify)
    async def verify(self, params: ops.DocumentsVerify, ctx: Context) -> ops.VerifyResult:
        return await verify.verify(self._store, ctx)

    async def _of_graph(self, query: Callable[[list[str], apsw.Connection], T]) -> T:
        """Run `query` after waiting briefly for parsing.  It is passed notes on what is still missing."""
        while True:
            left = await self._components.parsing.settle(PARSING_PATIENCE_S)
            lacks = [f"{left} documents are still to be parsed for definitions, calls and imports"] * bool(left)
            generation = self._store.index.generation
            answer = await self._store.read(partial(query, lacks + self._store.notes()))
            if generation == self._store.index.generation:
                return answer
            # The index was damaged and the parse results are lost: try again.


def _listed(db: apsw.Connection, params: DocumentsList) -> ListResult:
    found = rows.conditions(
        tags=params.tags, collection=params.collection, session=params.session, extension=params.extension,
        pattern=params.pattern, path=params.path, hash_=params.hash, metadata=ops.pairs(params.metadata),
        mime_type=params.mime_type, type_=params.type,
    )  # fmt: skip
    if params.recent is not None:
        latest = (
            f"SELECT document.id FROM document JOIN object ON object.id = document.object{found.where}"
            " ORDER BY document.indexed_ns DESC, document.id DESC LIMIT ?"
        )
        found = rows.Conditions([f"document.id IN ({latest})"], [*found.values, params.recent])
    order = "document.id"
    if params.sort_by is not None or params.sort_order is not None or params.recent is not None:
        by = params.sort_by or SortBy.INDEXED
        downwards = params.sort_order == "desc" if params.sort_order is not None else by is not SortBy.NAME
        direction = "DESC" if downwards else "ASC"
        order = f"{_ORDERS[by].format(direction)}, document.id {direction}"
    total = rows.total(db, found)
    page = list(rows.documents(db, found, order, min(params.limit or MAX_LISTED, MAX_LISTED), params.offset))
    ends = params.offset + len(page)
    return ListResult(
        total=total,
        documents=[] if params.paths_only else page,
        paths=[document.path for document in page] if params.paths_only else None,
        truncated=ends < total,
        next_offset=ends if ends < total and page else None,
    )


def _get(db: apsw.Connection, params: ops.DocumentsGet, target: Path | None, roots: Roots) -> ops.GetResult:
    if params.hash is None and params.name is None and params.path is None:
        raise InvalidParams("missing parameter: give `hash`, `name` or `path`", field="hash")
    found = rows.pick(db, hash_=params.hash, name=params.name, path=params.path)
    first = found[0]
    stored = objects.by_hash(db, bytes.fromhex(first.hash))
    assert stored is not None
    problem, charset = db.execute("SELECT problem, charset FROM object WHERE id=?", (stored.id,)).get
    answer = ops.GetResult(
        **msgspec.structs.asdict(first), paths=[document.path for document in found], graph_enabled=params.graph,
        text_problem=problem, text_charset=charset,
    )  # fmt: skip
    if params.include_content:
        given = _content(db, stored, params)
        answer = msgspec.structs.replace(
            answer, content=given.text, content_encoding=given.encoding, content_source=given.source,
            content_offset=params.offset, content_length=given.length,
            content_truncated=params.offset + given.length < given.total,
        )  # fmt: skip
    if target is not None:
        written = target / first.name if target.is_dir() else target
        restore.copy_to(db, stored, written, roots)
        answer = msgspec.structs.replace(answer, output_path=str(written))
    return answer


def _whole(db: apsw.Connection, params: ops.DocumentsContent) -> ops.StoredContent:
    """Return a content of a document or snapshot.

    Raises:
        InvalidParams: the hash is malformed.
        OperationError: there is no such content or file, or it is damaged or too large.
    """
    if params.hash is not None:
        hash_ = rows.content_hash(db, params.hash)
        path = next((each.path for each in rows.documents(db, rows.conditions(hash_=hash_.hex()), limit=1)), "")
    else:
        entry = snapshots.entry_of(db, params.snapshot, params.path)
        hash_, path = entry.hash, entry.path
    stored = objects.by_hash(db, hash_)
    if stored is None:
        raise OperationError(f"the content of {path[:1000]} is gone from the store", field="path")
    if stored.size > params.most:
        named = f"{path[:1000]} ({hash_.hex()[:12]})"
        raise OperationError(f"{named} has {stored.size} bytes, more than the limit of {params.most}")
    try:
        return ops.StoredContent(hash=hash_.hex(), path=path, data=b"".join(objects.stream(db, stored)))
    except DamagedContent as error:
        raise restore.damage_error(db, error) from None


class _ContentPart(NamedTuple):
    """`length` of the `total` bytes of the original or the extracted text, as `source` says."""

    text: str
    encoding: str
    source: ops.ContentSource
    length: int
    total: int


def _content(db: apsw.Connection, stored: Stored, params: ops.DocumentsGet) -> _ContentPart:
    """Return the requested part of a content.

    Raises:
        InvalidParams: `offset` is past the end.
        OperationError: the content is damaged.
    """
    offset = params.offset
    wanted = CONTENT_BYTES if params.length is None else params.length
    is_extracted = stored.text_state == TEXT_EXTRACTED and not params.original
    try:
        text = b"".join(texts.pieces(db, stored)) if is_extracted else b""
        total = len(text) if is_extracted else stored.size
        if offset > total:
            raise InvalidParams(f"parameter `offset` is {offset}, but the content has {total} bytes", field="offset")
        data = text[offset : offset + wanted] if is_extracted else b"".join(objects.stream(db, stored, offset, wanted))
    except DamagedContent as error:
        raise restore.damage_error(db, error) from None
    source = ops.ContentSource.EXTRACTED if is_extracted else ops.ContentSource.ORIGINAL
    if is_extracted or (stored.is_text and not params.original):
        with suppress(UnicodeDecodeError):
            # A character cut off at the end is left for the next part.
            found, used = codecs.utf_8_decode(data, "strict", offset + len(data) >= total)
            if used or not data:
                return _ContentPart(found, "utf-8", source, used, total)
    return _ContentPart(base64.b64encode(data).decode(), "base64", source, len(data), total)


def _collections(db: apsw.Connection) -> list[CollectionCount]:
    """Return the non-empty collections, ordered by name."""
    counted = db.execute(
        "SELECT collection.name, count(*), sum(object.size) FROM member"
        " JOIN collection ON collection.id = member.collection JOIN document ON document.id = member.document"
        " JOIN object ON object.id = document.object GROUP BY collection.id ORDER BY collection.name"
    )
    return [CollectionCount(name=name, documents=count, bytes=size) for name, count, size in counted]
