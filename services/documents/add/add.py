"""Storing: one text, one file, or a directory in bulk, each acknowledged once it is on disk.

A directory goes through a `pipeline`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence

import trio

from proto.errors import OperationError
from proto.machine import usable_cores
from proto.ops.documents.change import AddResult
from services.documents.add import bulk
from services.documents.add.intake import Ready, Taken, stamp_of
from services.documents.add.progress import Progress
from services.documents.store.compress import Codec
from services.documents.store.incoming import Incoming
from services.documents.store.objects import Content
from services.documents.store.rows import Given
from services.documents.store.store import Store
from services.documents.store.training import Trainer
from services.runtime.handlers import Context
from services.runtime.roots import OutsideRoots, open_regular

READ_BYTES = 1024 * 1024
GIVE_WAY_S = 30.0
"""Long enough for a hundred thousand files; after that a step is made in between, so that nothing waits for ever."""


class Adding:
    """Everything that an `add` needs; one for the service."""

    def __init__(self, store: Store, codec: Codec, trainer: Trainer, roots: Sequence[str]) -> None:
        self.store = store
        self.codec = codec
        self.trainer = trainer
        self.roots = roots
        self.receiving = 0
        """Large contents on their way in: their chunks belong to nothing yet, and must not be collected."""
        self.cores = max(1, usable_cores())
        self.threads = trio.CapacityLimiter(self.cores)
        self._bulk = 0
        self._over = trio.Event()

    @contextlib.contextmanager
    def receiving_chunks(self) -> Iterator[None]:
        """From before the first chunk is stored until the document is written."""
        self.receiving += 1
        try:
            yield
        finally:
            self.receiving -= 1

    async def give_way(self) -> None:
        """For work in the background: waits while a directory is being added, though never for long."""
        if self._bulk:
            with trio.move_on_after(GIVE_WAY_S):
                await self._over.wait()

    @contextlib.contextmanager
    def in_bulk(self) -> Iterator[None]:
        """While a directory is being added."""
        self._bulk += 1
        try:
            yield
        finally:
            self._bulk -= 1
            if not self._bulk:
                self._over.set()
                self._over = trio.Event()

    async def text(self, name: str, text: str, given: Given) -> tuple[AddResult, list[int]]:
        """Store a text under a name."""
        progress = Progress()
        now_ns = time.time_ns()
        data = text.encode("utf-8", "surrogatepass")
        with self.receiving_chunks():
            content = await self.whole(Incoming(self.codec), iter((data,)), name, given.mime)
            ready = Ready(taken=[Taken(name, "", now_ns, 0, content)])
            await self.store.write(lambda db: bulk.write(db, ready, given, progress, now_ns))
        return progress.answer(name, hash_=content.hash.hex(), name=name.rsplit("/", 1)[-1]), progress.objects

    async def file(self, path: str, given: Given, ctx: Context) -> tuple[AddResult, list[int]]:
        """Store one file.  Raises OperationError where it cannot be read."""
        progress = Progress()
        with self.receiving_chunks():
            taken = await self.large(path, given.mime, ctx)
            ready = Ready(taken=[taken])
            await self.store.write(lambda db: bulk.write(db, ready, given, progress, time.time_ns()))
        return progress.answer(path, hash_=taken.content.hash.hex(), name=os.path.basename(path)), progress.objects

    async def large(self, path: str, mime: str | None, ctx: Context | None = None) -> Taken:
        """Read a file of any size, storing the chunks of a large one as they come."""
        now_ns = time.time_ns()
        try:
            descriptor, status = await trio.to_thread.run_sync(open_regular, path, self.roots, limiter=self.threads)
        except OSError as error:
            raise OperationError(f"{path} cannot be read: {error.strerror}", field="path") from None
        except OutsideRoots as error:
            raise OperationError(str(error), field="path") from None
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            incoming = Incoming(self.codec)

            def pieces() -> Iterator[bytes]:
                while data := file.read(READ_BYTES):
                    if ctx is not None and incoming.size:
                        done = incoming.size
                        trio.from_thread.run_sync(ctx.progress, done, max(done, status.st_size), "bytes")
                    yield data

            try:
                content = await self.whole(incoming, pieces(), path, mime)
            except OSError as error:
                raise OperationError(f"{path} cannot be read: {error.strerror}", field="path") from None
            after = os.fstat(descriptor)
            settled = (after.st_size, after.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
        stamp = stamp_of(status, now_ns) if settled and incoming.size == status.st_size else ""
        return Taken(path, stamp, status.st_mtime_ns, status.st_mode, content)

    async def whole(self, incoming: Incoming, pieces: Iterator[bytes], name: str, mime: str | None) -> Content:
        """The content of these pieces, its chunks (if any) stored."""

        def feed() -> bool:
            for piece in pieces:
                incoming.feed(piece)
                if incoming.full:
                    return True
            incoming.finish()
            return False

        while await trio.to_thread.run_sync(feed, limiter=self.threads):
            await self.store.write(incoming.settle)
        if incoming.chunked:
            await self.store.write(incoming.settle)
        elif self.trainer.see(incoming.small, is_text=True):
            await self.trainer.train_if_due()
        return await trio.to_thread.run_sync(incoming.content, name, mime, limiter=self.threads)
