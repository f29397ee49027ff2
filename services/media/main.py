"""The service `media`: what files are, what is made from them, and their bytes for the web."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

import apsw
import msgspec
import trio
from msgspec import Meta

from proto.errors import InvalidParams, OperationError
from proto.ops.media import (
    THUMBNAIL,
    AllMetadata,
    AllThumbnails,
    ArtifactContent,
    ContentChunk,
    FilePart,
    KnownThumbnails,
    MediaArtifactParams,
    MediaBytes,
    MediaContent,
    MediaInspect,
    MediaInspection,
    MediaThumbnails,
    MetadataOf,
    MetadataRecord,
    MetadataRecords,
    ThumbnailRecord,
    ThumbnailRecords,
)
from proto.ops.pages import place
from services.media.files import opened
from services.media.inspection import Inspection
from services.media.store import (
    PICTURE,
    SCHEMA,
    VERSION,
    artifact_of,
    artifacts,
    picture,
    thumbnail,
)
from services.runtime.database import Database, Kind
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.runtime.roots import Roots

_CONTENT = "SELECT hash, metadata, problem, used_at FROM content"
_ARTIFACT = re.compile(r"cache/([0-9a-f]{2})/([0-9a-f]{2})/(\1\2[0-9a-f]{60})/([a-z0-9_]{1,40}\.jpg)")


class Settings(msgspec.Struct, frozen=True):
    """Of the table `services.media`."""

    cache_bytes: Annotated[int, Meta(gt=0)] = 1024**3


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the database is open.  Raises msgspec.ValidationError where a setting is no good."""
    cache_bytes = msgspec.convert(env.settings, Settings).cache_bytes
    database = await trio.to_thread.run_sync(partial(Database, env.data_dir / "media.db", SCHEMA, kind=Kind.DERIVED))
    try:
        yield Handlers(Media(database, env.roots, cache_bytes), Resources(database))
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(database.close)


class Media:
    """What files are, what is made from them, and their bytes."""

    def __init__(self, database: Database, roots: Roots, cache_bytes: int) -> None:
        self._database = database
        self._roots = roots
        self._inspection = Inspection(database, roots, cache_bytes)
        self._reading = trio.CapacityLimiter(8)

    @handles(MediaInspect)
    async def inspect(self, params: MediaInspect, ctx: Context) -> MediaInspection:
        return await self._inspection.inspect(params.path, ctx)

    @handles(MediaBytes)
    async def part(self, params: MediaBytes, ctx: Context) -> FilePart:
        return FilePart(data=await self._inspection.part(params))

    @handles(MediaThumbnails)
    async def thumbnails(self, params: MediaThumbnails, ctx: Context) -> KnownThumbnails:
        def known(db: apsw.Connection) -> KnownThumbnails:
            return KnownThumbnails(paths=[thumbnail(db, version) for version in params.versions])

        return await self._database.read(known)

    @handles(MediaArtifactParams)
    async def artifact(self, params: MediaArtifactParams, ctx: Context) -> ArtifactContent:
        data = await self._picture(bytes.fromhex(params.hash), params.name)
        return ArtifactContent(mime_type="image/jpeg", data=data)

    @handles(MediaContent)
    async def content(self, params: MediaContent, ctx: Context) -> ContentChunk:
        known = _ARTIFACT.fullmatch(params.path)
        if known is not None:
            data = await self._picture(bytes.fromhex(known[3]), known[4])
            return ContentChunk(
                data=data[params.offset : params.offset + params.limit],
                size=len(data),
                mime_type="image/jpeg",
                version=f"{known[3]}-{known[4]}-{len(data)}",
                modified=0,
            )

        def read() -> ContentChunk:
            with opened(params.path, self._roots) as found:
                _, mime = found.kind()
                data = os.pread(found.file.fileno(), params.limit, params.offset) if params.limit else b""
                return ContentChunk(
                    data=data,
                    size=found.status.st_size,
                    mime_type=mime,
                    version=found.version,
                    modified=found.status.st_mtime,
                )

        return await trio.to_thread.run_sync(read, limiter=self._reading)

    async def _picture(self, hash_: bytes, name: str) -> bytes:
        found = await self._database.read(lambda db: picture(db, hash_, name))
        if found is None:
            raise OperationError(f"there is no artefact {name} of {hash_.hex()}; `inspect` makes and names them")
        return found


class Resources:
    """What was made from contents, as resources: read from the cache, without a mark that it was used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @handles(AllMetadata)
    async def metadata(self, params: AllMetadata, ctx: Context) -> MetadataRecords:
        def query(db: apsw.Connection) -> MetadataRecords:
            rows = db.execute(
                f"{_CONTENT} WHERE version=? ORDER BY hash LIMIT ? OFFSET ?", (VERSION, params.limit, params.offset)
            )
            found = [_record(db, *row) for row in rows]
            total = db.execute("SELECT count(*) FROM content WHERE version=?", (VERSION,)).get
            return MetadataRecords(metadata=found, **place("metadata", params, len(found), total))

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
            total = db.execute("SELECT count(*) FROM picture WHERE type=?", (THUMBNAIL,)).get
            return ThumbnailRecords(thumbnails=found, **place("metadata/thumbnails", params, len(found), total))

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
