"""The service `media`: file types, derived pictures and metadata, and file contents for the web."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import AsyncIterator
from typing import Annotated

import apsw
import msgspec
import trio
from msgspec import Meta

from proto.errors import InvalidParams, OperationError
from proto.ops import media as ops
from proto.ops.pages import place
from services.media import cache
from services.media.files import opened
from services.media.inspection import Inspection
from services.runtime.database import Database, Kind
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.runtime.roots import Roots

_ARTIFACT = re.compile(r"cache/([0-9a-f]{2})/([0-9a-f]{2})/(\1\2[0-9a-f]{60})/([a-z0-9_]{1,40}\.jpg)")


class MediaSettings(msgspec.Struct, frozen=True):
    """Settings of `[services.media]`."""

    cache_bytes: Annotated[int, Meta(gt=0)] = 1024**3
    """Size of the cache of thumbnails, frames and metadata."""


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service; ready once the database is open. Raises msgspec.ValidationError if a setting is invalid."""
    cache_bytes = msgspec.convert(env.settings, MediaSettings).cache_bytes
    database = await env.opened(Database, env.data_dir / "media.db", cache.SCHEMA, kind=Kind.DERIVED)
    yield Handlers(Media(database, env.roots, cache_bytes))


class Media:
    def __init__(self, database: Database, roots: Roots, cache_bytes: int) -> None:
        self._database = database
        self._roots = roots
        self._inspection = Inspection(database, roots, cache_bytes)
        self._reading = trio.CapacityLimiter(8)

    @handles(ops.MediaInspect)
    async def inspect(self, params: ops.MediaInspect, ctx: Context) -> ops.MediaInspection:
        return await self._inspection.inspect(params.path, ctx)

    @handles(ops.MediaBytes)
    async def part(self, params: ops.MediaBytes, ctx: Context) -> ops.FilePart:
        return ops.FilePart(data=await self._inspection.part(params))

    @handles(ops.MediaThumbnails)
    async def thumbnails(self, params: ops.MediaThumbnails, ctx: Context) -> ops.KnownThumbnails:
        def known(db: apsw.Connection) -> ops.KnownThumbnails:
            return ops.KnownThumbnails(paths=[cache.thumbnail(db, version) for version in params.versions])

        return await self._database.read(known)

    @handles(ops.MediaArtifactParams)
    async def artifact(self, params: ops.MediaArtifactParams, ctx: Context) -> ops.ArtifactContent:
        data = await self._picture(bytes.fromhex(params.hash), params.name)
        return ops.ArtifactContent(mime_type="image/jpeg", data=data)

    @handles(ops.MediaContent)
    async def content(self, params: ops.MediaContent, ctx: Context) -> ops.ContentChunk:
        known = _ARTIFACT.fullmatch(params.path)
        if known is not None:
            data = await self._picture(bytes.fromhex(known[3]), known[4])
            return ops.ContentChunk(
                data=data[params.offset : params.offset + params.limit],
                size=len(data),
                mime_type="image/jpeg",
                version=f"{known[3]}-{known[4]}-{len(data)}",
                modified=0,
            )

        def read() -> ops.ContentChunk:
            with opened(params.path, self._roots) as found:
                _, mime = found.kind()
                data = os.pread(found.file.fileno(), params.limit, params.offset) if params.limit else b""
                return ops.ContentChunk(
                    data=data,
                    size=found.status.st_size,
                    mime_type=mime,
                    version=found.version,
                    modified=found.status.st_mtime,
                )

        return await trio.to_thread.run_sync(read, limiter=self._reading)

    async def _picture(self, hash_: bytes, name: str) -> bytes:
        query = "SELECT data FROM picture WHERE hash=? AND name=?"
        found: bytes | None = await self._database.read(lambda db: db.execute(query, (hash_, name)).get)
        if found is None:
            raise OperationError(f"no artefact {name} of {hash_.hex()}; `files_inspect` creates and lists artefacts")
        return found

    # Results as resources: read from the cache, without updating the time of last use

    @handles(ops.AllMetadata)
    async def all_metadata(self, params: ops.AllMetadata, ctx: Context) -> ops.MetadataRecords:
        def query(db: apsw.Connection) -> ops.MetadataRecords:
            page = cache.contents(db, "ORDER BY hash LIMIT ? OFFSET ?", params.limit, params.offset)
            found = [_record(content) for content in page]
            total = db.execute("SELECT count(*) FROM content WHERE version=?", (cache.VERSION,)).get
            return ops.MetadataRecords(metadata=found, **place("metadata", params, len(found), total))

        return await self._database.read(query)

    @handles(ops.AllThumbnails)
    async def all_thumbnails(self, params: ops.AllThumbnails, ctx: Context) -> ops.ThumbnailRecords:
        def query(db: apsw.Connection) -> ops.ThumbnailRecords:
            rows = db.execute(
                f"SELECT hash, {cache.PICTURE} FROM picture WHERE type=? ORDER BY hash, position LIMIT ? OFFSET ?",
                (ops.THUMBNAIL, params.limit, params.offset),
            )
            found = [
                ops.ThumbnailRecord(hash=hash_.hex(), **msgspec.structs.asdict(cache.artifact_of(hash_, *picture)))
                for hash_, *picture in rows
            ]
            total = db.execute("SELECT count(*) FROM picture WHERE type=?", (ops.THUMBNAIL,)).get
            return ops.ThumbnailRecords(thumbnails=found, **place("metadata/thumbnails", params, len(found), total))

        return await self._database.read(query)

    @handles(ops.MetadataOf)
    async def metadata_of(self, params: ops.MetadataOf, ctx: Context) -> ops.MetadataRecord:
        found = await self._database.read(lambda db: cache.contents(db, "AND hash=?", bytes.fromhex(params.hash)))
        if not found:
            raise InvalidParams(
                f"`hash`: no metadata for the content {params.hash}; `files_inspect` creates it, and"
                " synthesis://metadata lists the existing ones",
                field="hash",
            )
        return _record(found[0])


def _record(content: cache.CachedResult) -> ops.MetadataRecord:
    hash_ = content.hash.hex()
    return ops.MetadataRecord(
        hash=hash_,
        uri=f"synthesis://metadata/{hash_}",
        metadata=content.metadata,
        artifacts=content.artifacts,
        used_at=datetime.datetime.fromtimestamp(content.used_at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        problem=content.problem,
    )
