"""What was made from contents, as resources: read from what is kept, without a mark that it was used."""

from __future__ import annotations

import datetime
from typing import Any

import apsw
import msgspec

from proto.errors import InvalidParams
from proto.ops.media import THUMBNAIL
from proto.ops.media_uris import (
    AllMetadata,
    AllThumbnails,
    MetadataOf,
    MetadataRecord,
    MetadataRecords,
    ThumbnailRecord,
    ThumbnailRecords,
)
from services.media.store import VERSION, Store, artifact_of
from services.runtime.handlers import Context, Handlers

_CONTENT = "SELECT hash, metadata, problem, used_at FROM content"
_PICTURE = "name, type, width, height, metadata, length(data)"


def add_uris(handlers: Handlers, store: Store) -> None:
    """The operations of `proto.ops.media_uris`."""

    @handlers.handle(AllMetadata)
    async def everything(params: AllMetadata, ctx: Context) -> MetadataRecords:
        def query(db: apsw.Connection) -> MetadataRecords:
            rows = db.execute(
                f"{_CONTENT} WHERE version = ? ORDER BY hash LIMIT ? OFFSET ?", (VERSION, params.limit, params.offset)
            )
            found = [_record(db, *row) for row in rows]
            total = _count(db, "SELECT count(*) FROM content WHERE version = ?", VERSION)
            end = params.offset + len(found)
            return MetadataRecords(
                metadata=found, total=total, offset=params.offset, has_more=end < total,
                next=_next("metadata", end, params.limit) if end < total else "",
            )  # fmt: skip

        return await store.use(query)

    @handlers.handle(AllThumbnails)
    async def thumbnails(params: AllThumbnails, ctx: Context) -> ThumbnailRecords:
        def query(db: apsw.Connection) -> ThumbnailRecords:
            rows = db.execute(
                f"SELECT hash, {_PICTURE} FROM picture WHERE type = ? ORDER BY hash, position LIMIT ? OFFSET ?",
                (THUMBNAIL, params.limit, params.offset),
            )
            found = [
                ThumbnailRecord(hash=hash_.hex(), **msgspec.structs.asdict(artifact_of(hash_, *picture)))
                for hash_, *picture in rows
            ]
            total = _count(db, "SELECT count(*) FROM picture WHERE type = ?", THUMBNAIL)
            end = params.offset + len(found)
            return ThumbnailRecords(
                thumbnails=found, total=total, offset=params.offset, has_more=end < total,
                next=_next("metadata/thumbnails", end, params.limit) if end < total else "",
            )  # fmt: skip

        return await store.use(query)

    @handlers.handle(MetadataOf)
    async def one(params: MetadataOf, ctx: Context) -> MetadataRecord:
        def query(db: apsw.Connection) -> MetadataRecord:
            hash_ = bytes.fromhex(params.hash)
            row = db.execute(f"{_CONTENT} WHERE hash = ? AND version = ?", (hash_, VERSION)).fetchone()
            if row is None:
                raise InvalidParams(
                    f"`hash`: nothing was made from a content {params.hash}; `inspect` makes it, and"
                    " synthesis://metadata lists what there is",
                    field="hash",
                )
            return _record(db, *row)

        return await store.use(query)


def _record(db: apsw.Connection, hash_: bytes, metadata: bytes, problem: str | None, used_at: float) -> MetadataRecord:
    pictures = db.execute(f"SELECT {_PICTURE} FROM picture WHERE hash = ? ORDER BY position", (hash_,))
    known: dict[str, Any] = msgspec.json.decode(metadata)
    return MetadataRecord(
        hash=hash_.hex(),
        uri=f"synthesis://metadata/{hash_.hex()}",
        metadata=known,
        artifacts=[artifact_of(hash_, *picture) for picture in pictures],
        used_at=datetime.datetime.fromtimestamp(used_at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        problem=problem,
    )


def _count(db: apsw.Connection, query: str, binding: object) -> int:
    count: int = next(db.execute(query, (binding,)))[0]
    return count


def _next(uri: str, offset: int, limit: int) -> str:
    return f"synthesis://{uri}?offset={offset}&limit={limit}"
