"""The service `media`: what files are, what is made from them, and their bytes for the web."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
import trio

from proto.errors import OperationError
from proto.operation import Params
from proto.ops.media import (
    ArtifactContent,
    ContentChunk,
    KnownThumbnails,
    MediaArtifactParams,
    MediaContent,
    MediaInspect,
    MediaInspection,
    MediaThumbnails,
)
from services.media.inspection import Inspection
from services.media.kinds import HEAD_BYTES, kind_of
from services.media.reading import opened
from services.media.store import CACHE_BYTES, open_database, picture, thumbnail
from services.media.uris import Resources
from services.runtime.database import Database
from services.runtime.handlers import Context, Environment, Handlers, handles

_ARTIFACT = re.compile(r"cache/([0-9a-f]{2})/([0-9a-f]{2})/(\1\2[0-9a-f]{60})/([a-z0-9_]{1,40}\.jpg)")


def rehearse(root: Path, settings: Mapping[str, Any]) -> Sequence[Params[Any]]:
    """A text, looked at and read."""
    note = root / "note.txt"
    note.write_text("text\n", encoding="utf-8")
    return [MediaInspect(path=str(note)), MediaContent(path=str(note))]


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the database is open."""
    cache_bytes = env.settings.get("cache_bytes", CACHE_BYTES)
    if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, int) or cache_bytes <= 0:
        raise ValueError(f"setting `cache_bytes` of media: {cache_bytes!r} is not a number of bytes above 0")
    database = await trio.to_thread.run_sync(open_database, env.data_dir / "media.db")
    try:
        yield Handlers(Media(database, tuple(str(root) for root in env.roots), cache_bytes), Resources(database))
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(database.close)


class Media:
    """What files are, what is made from them, and their bytes."""

    def __init__(self, database: Database, roots: tuple[str, ...], cache_bytes: int) -> None:
        self._database = database
        self._roots = roots
        self._inspection = Inspection(database, roots, cache_bytes)
        self._reading = trio.CapacityLimiter(8)

    @handles(MediaInspect)
    async def inspect(self, params: MediaInspect, ctx: Context) -> MediaInspection:
        return await self._inspection.inspect(params.path, ctx)

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
                head = found.file.read(HEAD_BYTES)
                _, mime = kind_of(os.path.basename(found.path), head)
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
