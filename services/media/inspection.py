"""Inspects files: returns cached results, or has `decode` make them, which may crash on a file."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import BinaryIO, Final, TypeVar

import trio

from proto.errors import OperationError, Overloaded
from proto.ops.decode import Decoded, DecodeFile
from proto.ops.media import MediaBytes, MediaInspection, MediaKind
from services.media import cache
from services.media.cache import CachedResult
from services.media.files import counts, digest, opened, version_of
from services.runtime.calls import Undecodable, decoded
from services.runtime.database import Database
from services.runtime.handlers import Context
from services.runtime.roots import Roots
from services.runtime.storage import DiskFull

T = TypeVar("T")

MAX_CHANGES: Final = 3
MAX_LENT: Final = 128
"""Most files waiting for the decoder, each with an open file and a call in flight. This is half of the calls that this
service may have, so that the decoder's own calls always find room."""

_MADE_OF: Final = (MediaKind.IMAGE, MediaKind.VIDEO, MediaKind.AUDIO, MediaKind.PDF, MediaKind.TEXT)


class _Changed(Exception):
    """The file changed since it was opened."""


class Inspection:
    """Makes results, one at a time for each content."""

    def __init__(self, database: Database, roots: Roots, cache_bytes: int) -> None:
        self._database = database
        self._cache_bytes = cache_bytes
        self._roots = roots
        self._reading = trio.CapacityLimiter(4)
        self._busy: weakref.WeakValueDictionary[bytes, trio.Lock] = weakref.WeakValueDictionary()
        self._lent: dict[str, int] = {}
        """Descriptors of the files that `decode` is working on, by their hashes."""

    async def inspect(self, path: str, ctx: Context) -> MediaInspection:
        """Raises Forbidden or OperationError."""
        for _ in range(MAX_CHANGES):
            with contextlib.suppress(_Changed):
                return await self._inspect(path, ctx)
        raise OperationError(f"{path[:200]} keeps changing while it is being inspected")

    async def _inspect(self, path: str, ctx: Context) -> MediaInspection:
        def look() -> tuple[str, int, str, MediaKind, str]:
            with opened(path, self._roots) as found:
                return found.path, found.status.st_size, found.version, *found.kind()

        real, size, version, kind, mime = await trio.to_thread.run_sync(look, limiter=self._reading)
        content = CachedResult(b"", {}, None, 0.0, [])
        if kind in _MADE_OF and size:
            hash_ = await self._hash(real, version)
            lock = self._busy.setdefault(hash_, trio.Lock())
            async with lock:
                content = await self._content(real, version, kind, hash_, ctx)
        return MediaInspection(
            path=os.fsencode(real).decode("utf-8", "replace"),
            kind=kind,
            mime_type=mime,
            size=size,
            hash=content.hash.hex() or None,
            metadata=content.metadata,
            artifacts=content.artifacts,
            problem=content.problem,
        )

    async def _read(self, path: str, version: str, work: Callable[[BinaryIO, Callable[[], None]], T]) -> T:
        """Return the result of `work` for a file. Raises _Changed."""

        def read() -> T:
            with opened(path, self._roots) as found:
                if found.version == version:
                    made = work(found.file, trio.from_thread.check_cancelled)
                    if version_of(os.fstat(found.file.fileno())) == version:
                        return made
            raise _Changed

        return await trio.to_thread.run_sync(read, limiter=self._reading)

    async def _hash(self, path: str, version: str) -> bytes:
        query = "SELECT hash FROM seen WHERE version=?"
        known: bytes | None = await self._database.read(lambda db: db.execute(query, (version,)).get)
        if known is not None:
            return known
        found = await self._read(path, version, digest)
        await self._database.write(lambda db: cache.store_hash(db, version, found))
        return found

    async def _content(self, path: str, version: str, kind: MediaKind, hash_: bytes, ctx: Context) -> CachedResult:
        kept = await self._database.read(lambda db: cache.contents(db, "AND hash=?", hash_))
        if kept:
            if kept[0].used_at < (now := time.time()) - cache.USE_STEP_S:
                with contextlib.suppress(DiskFull):
                    # Also answered on a full disk; only the time of last use is not updated.
                    use = "UPDATE content SET used_at=? WHERE hash=?"
                    await self._database.write(lambda db: db.execute(use, (now, hash_)).fetchall())
            return kept[0]
        if kind is MediaKind.TEXT:
            made = Decoded(metadata=await self._read(path, version, counts), pictures=[], problem=None)
        else:
            made = await self._decoded(path, version, kind, hash_.hex(), ctx)
        if not made.is_final:
            return CachedResult(hash_, made.metadata, made.problem, time.time(), [])
        return await self._database.write(lambda db: cache.store_result(db, hash_, made, self._cache_bytes))

    async def _decoded(self, path: str, version: str, kind: MediaKind, hash_: str, ctx: Context) -> Decoded:
        """Raises _Changed, or LinckiaError if the decoder is unavailable."""
        if len(self._lent) >= MAX_LENT:
            raise Overloaded(f"{MAX_LENT} files are waiting for the decoder; try again shortly", retry_after_ms=1000)
        descriptor = await self._read(path, version, lambda file, check: os.dup(file.fileno()))
        self._lent[hash_] = descriptor
        try:
            made = await decoded(ctx.call, DecodeFile(hash=hash_, size=os.fstat(descriptor).st_size, kind=kind))
        except Undecodable as error:
            made = Decoded(metadata={}, pictures=[], problem=str(error))
        finally:
            now = version_of(os.fstat(descriptor))
            del self._lent[hash_]
            os.close(descriptor)
        if now != version:
            raise _Changed
        return made

    async def part(self, params: MediaBytes) -> bytes:
        """Return part of a file that is being decoded. Raises OperationError if it is not, or cannot be read."""
        lent = self._lent.get(params.hash)
        if lent is None:
            raise OperationError("this file is not being decoded")
        # Use a duplicate: the original may be closed, and its number reused, before a thread has read.
        descriptor = os.dup(lent)
        try:
            read = partial(os.pread, descriptor, params.limit, params.offset)
            return await trio.to_thread.run_sync(read, limiter=self._reading)
        except OSError as error:
            raise OperationError(f"cannot read the file: {error.strerror}") from None
        finally:
            os.close(descriptor)
