"""Inspecting a file: from the cache, or made now by `decode`, which may die of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any, Final

import apsw
import trio

from proto.errors import Kind, LinckiaError, OperationError
from proto.ops.decode import Decoded, DecodeFile
from proto.ops.media import MediaInspection, MediaKind
from services.media import store
from services.media.kinds import HEAD_BYTES, kind_of
from services.media.reading import Opened, counts, digest, opened, version_of
from services.media.store import Content
from services.runtime.database import Database
from services.runtime.handlers import Context
from services.runtime.storage import DiskFull

MAX_DEATHS: Final = 2
MAX_CHANGES: Final = 3
SOON_MS: Final = 1000

_MADE_OF: Final = (MediaKind.IMAGE, MediaKind.VIDEO, MediaKind.AUDIO, MediaKind.PDF, MediaKind.TEXT)

_DEADLY = f"decoding it has ended the decoder {MAX_DEATHS} times; it is not tried again"


class Inspection:
    """Makes one thing at a time for each content."""

    def __init__(self, database: Database, roots: Sequence[str], cache_bytes: int) -> None:
        self._database = database
        self._cache_bytes = cache_bytes
        self._roots = roots
        self._reading = trio.CapacityLimiter(4)
        self._busy: dict[bytes, trio.Lock] = {}

    async def inspect(self, path: str, ctx: Context) -> MediaInspection:
        """Raises Forbidden, OperationError."""
        for _ in range(MAX_CHANGES):
            found = await self._inspect(path, ctx)
            if found is not None:
                return found
        raise OperationError(f"{path[:200]} changes again and again while it is looked at")

    async def _inspect(self, path: str, ctx: Context) -> MediaInspection | None:
        """None where the file changed meanwhile."""

        def look() -> tuple[str, os.stat_result, str, MediaKind, str]:
            with opened(path, self._roots) as found:
                head = found.file.read(HEAD_BYTES)
                return found.path, found.status, found.version, *kind_of(os.path.basename(found.path), head)

        real, status, version, kind, mime = await trio.to_thread.run_sync(look, limiter=self._reading)
        hash_: bytes | None = None
        content = Content({}, [], None, 0.0)
        if kind in _MADE_OF and status.st_size:
            hash_ = await self._hash(real, version)
            if hash_ is None:
                return None
            lock = self._busy.setdefault(hash_, trio.Lock())
            try:
                async with lock:
                    made = await self._content(real, version, kind, hash_, ctx)
            finally:
                if not lock.statistics().tasks_waiting and not lock.locked():
                    self._busy.pop(hash_, None)
            if made is None:
                return None
            content = made
        return MediaInspection(
            path=os.fsencode(real).decode("utf-8", "replace"),
            kind=kind,
            mime_type=mime,
            size=status.st_size,
            hash=None if hash_ is None else hash_.hex(),
            metadata=content.metadata,
            artifacts=content.artifacts,
            problem=content.problem,
        )

    async def _hash(self, path: str, version: str) -> bytes | None:
        """Of a file's content; None where it is another file by now."""
        known = await self._database.read(lambda db: store.hash_of(db, version))
        if known is not None:
            return known

        def read() -> bytes | None:
            with opened(path, self._roots) as found:
                if found.version != version:
                    return None
                made = digest(found.file, trio.from_thread.check_cancelled)
                return made if _still(found, version) else None

        found = await trio.to_thread.run_sync(read, limiter=self._reading)
        if found is not None:
            await self._database.write(lambda db: store.has_hash(db, version, found))
        return found

    async def _content(self, path: str, version: str, kind: MediaKind, hash_: bytes, ctx: Context) -> Content | None:
        kept = await self._database.read(lambda db: store.content(db, hash_))
        if kept is not None:
            if kept.used_at < time.time() - store.USE_STEP_S:
                with contextlib.suppress(DiskFull):
                    # Answered on a full disk as well; only the age in the cache is not renewed.
                    await self._database.write(lambda db: store.used(db, hash_))
            return kept
        if kind is MediaKind.TEXT:
            metadata = await self._counted(path, version)
            if metadata is None:
                return None
            made = Decoded(metadata=metadata, pictures=[], problem=None)
        else:
            made = await self._decoded(path, version, kind, hash_, ctx)
            if made.changed:
                return None

        def keep(db: apsw.Connection) -> Content | None:
            store.keep(db, hash_, made.metadata, made.pictures, made.problem, self._cache_bytes)
            return store.content(db, hash_)

        return await self._database.write(keep)

    async def _counted(self, path: str, version: str) -> dict[str, Any] | None:
        def count() -> dict[str, Any] | None:
            with opened(path, self._roots) as found:
                told = counts(found.file, trio.from_thread.check_cancelled)
                return told if _still(found, version) else None

        return await trio.to_thread.run_sync(count, limiter=self._reading)

    async def _decoded(self, path: str, version: str, kind: MediaKind, hash_: bytes, ctx: Context) -> Decoded:
        """Raises LinckiaError where the decoder is not there for now."""
        while True:
            deaths = await self._database.write(lambda db: store.begin(db, hash_))
            if deaths >= MAX_DEATHS:
                await self._end(hash_, 0)
                return Decoded(metadata={}, pictures=[], problem=_DEADLY)
            try:
                made = await ctx.call(DecodeFile(path=path, kind=kind, version=version))
            except LinckiaError as error:
                if error.failure.kind in (Kind.MAYBE_EXECUTED, Kind.QUARANTINED):
                    # It died with this in its hands: counted already.
                    continue
                await self._end(hash_, deaths)
                wait_ms = error.failure.retry_after_ms
                if error.failure.kind is Kind.UNAVAILABLE and wait_ms is not None and wait_ms <= SOON_MS:
                    # Another file has ended its process; the deadline bounds how often.
                    await trio.sleep(wait_ms / 1000)
                    continue
                raise
            except trio.Cancelled:
                # The caller has gone; that says nothing of the file.
                with trio.CancelScope(shield=True):
                    await self._end(hash_, deaths)
                raise
            await self._end(hash_, 0)
            return made

    async def _end(self, hash_: bytes, times: int) -> None:
        await self._database.write(lambda db: store.end(db, hash_, times))


def _still(found: Opened, version: str) -> bool:
    return version == version_of(os.fstat(found.file.fileno()))
