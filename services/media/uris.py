"""What was made from contents, as resources: read from the cache, without a mark that it was used."""

from __future__ import annotations

import datetime

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
from services.media.store import PICTURE, VERSION, artifact_of, artifacts
from services.runtime.database import Database
from services.runtime.handlers import Context, handles

_CONTENT = "SELECT hash, metadata, problem, used_at FROM content"


class Resources:
    """The operations of `proto.ops.media_uris`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @handles(AllMetadata)
    async def metadata(self, params: AllMetadata, ctx: Context) -> MetadataRecords:
        def query(db: apsw.Connection) -> MetadataRecords:
            rows = db.execute(
                f"{_CONTENT} WHERE version=? ORDER BY hash LIMIT ? OFFSET ?", (VERSION, params.limit, params.offset)
            )
            found = [_record(db, *row) for row in rows]
            total = _count(db, "SELECT count(*) FROM content WHERE version=?", VERSION)
            end = params.offset + len(found)
            return MetadataRecords(
                metadata=found, total=total, offset=params.offset, has_more=end < total,
                next=_next("metadata", end, params.limit) if end < total else "",
            )  # fmt: skip

        return await self._database.read(query)

    @handles(AllThumbnails)
    async def thumbnails(self, params: AllThumbnails, ctx: Context) -> ThumbnailRecords:
        def query(db: apsw.Connection) -> ThumbnailRecords:
            rows = db.execute(
                f"SELECT hash, {PICTURE} FROM picture WHERE type=? ORDER BY hash, position LIMIT ? OFFSET ?",
                (THUMBNAIL, params.limit, params.offset),
            )
            found = [
                ThumbnailRecord(hash=hash_.hex(), **msgspec.structs.asdict(artifact_of(hash_, *picture)))
                for hash_, *picture in rows
            ]
            total = _count(db, "SELECT count(*) FROM picture WHERE type=?", THUMBNAIL)
            end = params.offset + len(found)
            return ThumbnailRecords(
                thumbnails=found, total=total, offset=params.offset, has_more=end < total,
                next=_next("metadata/thumbnails", end, params.limit) if end < total else "",
            )  # fmt: skip

        return await self._database.read(query)

    @handles(MetadataOf)
    async def one(self, params: MetadataOf, ctx: Context) -> MetadataRecord:
        def query(db: apsw.Connection) -> MetadataRecord:
            hash_ = bytes.fromhex(params.hash)
            row = db.execute(f"{_CONTENT} WHERE hash=? AND version=?", (hash_, VERSION)).fetchone()
            if row is None:
                raise InvalidParams(
                    f"`hash`: nothing was made from a content {params.hash}; `inspect` makes it, and"
                    " synthesis://metadata lists what there is",
                    field="hash",
                )
            return _record(db, *row)

        return await self._database.read(query)


def _record(db: apsw.Connection, hash_: bytes, metadata: bytes, problem: str | None, used_at: float) -> MetadataRecord:
    return MetadataRecord(
        hash=hash_.hex(),
        uri=f"synthesis://metadata/{hash_.hex()}",
        metadata=msgspec.json.decode(metadata, type=dict),
        artifacts=artifacts(db, hash_),
        used_at=datetime.datetime.fromtimestamp(used_at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        problem=problem,
    )


def _count(db: apsw.Connection, query: str, binding: str | int) -> int:
    (count,) = next(db.execute(query, (binding,)))
    return int(count)


def _next(uri: str, offset: int, limit: int) -> str:
    return f"synthesis://{uri}?offset={offset}&limit={limit}"
