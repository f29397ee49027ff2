"""Inspecting a file: from the cache, or made now by `decode`, which may die of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import BinaryIO, Final, TypeVar

import trio

from proto.errors import Kind, LinckiaError, OperationError
from proto.ops.decode import Decoded, DecodeFile, version_of
from proto.ops.media import MediaInspection, MediaKind
from services.media import store
from services.media.files import counts, digest, opened
from services.media.store import Content
from services.runtime.database import Database
from services.runtime.handlers import Context
from services.runtime.roots import Roots
from services.runtime.storage import DiskFull

T = TypeVar("T")

MAX_DEATHS: Final = 2
MAX_CHANGES: Final = 3
SOON_MS: Final = 1000

_MADE_OF: Final = (MediaKind.IMAGE, MediaKind.VIDEO, MediaKind.AUDIO, MediaKind.PDF, MediaKind.TEXT)

_DEADLY = f"decoding it has ended the decoder {MAX_DEATHS} times; it is not tried again"


class _Changed(Exception):
    """It is another file by now than was looked at."""


class Inspection:
    """Makes one thing at a time for each content."""

    def __init__(self, database: Database, roots: Roots, cache_bytes: int) -> None:
        self._database = database
        self._cache_bytes = cache_bytes
        self._roots = roots
        self._reading = trio.CapacityLimiter(4)
        self._busy: dict[bytes, trio.Lock] = {}

    async def inspect(self, path: str, ctx: Context) -> MediaInspection:
        """Raises Forbidden, OperationError."""
        for _ in range(MAX_CHANGES):
            with contextlib.suppress(_Changed):
                return await self._inspect(path, ctx)
        raise OperationError(f"{path[:200]} changes again and again while it is looked at")

    async def _inspect(self, path: str, ctx: Context) -> MediaInspection:
        def look() -> tuple[str, int, str, MediaKind, str]:
            with opened(path, self._roots) as found:
                return found.path, found.status.st_size, found.version, *found.kind()

        real, size, version, kind, mime = await trio.to_thread.run_sync(look, limiter=self._reading)
        hash_: bytes | None = None
        content = Content({}, [], None, 0.0)
        if kind in _MADE_OF and size:
            hash_ = await self._hash(real, version)
            lock = self._busy.setdefault(hash_, trio.Lock())
            try:
                async with lock:
                    content = await self._content(real, version, kind, hash_, ctx)
            finally:
                if not lock.statistics().tasks_waiting and not lock.locked():
                    self._busy.pop(hash_, None)
        return MediaInspection(
            path=os.fsencode(real).decode("utf-8", "replace"),
            kind=kind,
            mime_type=mime,
            size=size,
            hash=None if hash_ is None else hash_.hex(),
            metadata=content.metadata,
            artifacts=content.artifacts,
            problem=content.problem,
        )

    async def _read(self, path: str, version: str, work: Callable[[BinaryIO, Callable[[], None]], T]) -> T:
        """What `work` makes of a file.  Raises _Changed."""

        def read() -> T:
            with opened(path, self._roots) as found:
                if found.version == version:
                    made = work(found.file, trio.from_thread.check_cancelled)
                    if version_of(os.fstat(found.file.fileno())) == version:
                        return made
            raise _Changed

        return await trio.to_thread.run_sync(read, limiter=self._reading)

    async def _hash(self, path: str, version: str) -> bytes:
        """Of a file's content."""
        known = await self._database.read(lambda db: store.hash_of(db, version))
        if known is None:
            known = found = await self._read(path, version, digest)
            await self._database.write(lambda db: store.has_hash(db, version, found))
        return known

    async def _content(self, path: str, version: str, kind: MediaKind, hash_: bytes, ctx: Context) -> Content:
        kept = await self._database.read(lambda db: store.content(db, hash_))
        if kept is not None:
            if kept.used_at < time.time() - store.USE_STEP_S:
                with contextlib.suppress(DiskFull):
                    # Answered on a full disk as well; only the age in the cache is not renewed.
                    await self._database.write(lambda db: store.used(db, hash_))
            return kept
        if kind is MediaKind.TEXT:
            made = Decoded(metadata=await self._read(path, version, counts), pictures=[], problem=None)
        else:
            made = await self._decoded(path, version, kind, hash_, ctx)
            if made.changed:
                raise _Changed
        return await self._database.write(lambda db: store.keep(db, hash_, made, self._cache_bytes))

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
