"""Storing: one text, one file, or a directory in bulk, each acknowledged once it is on disk.

A directory goes through four stages that work at the same time.  One looks at the files, a few threads read, hash and
compress them (`intake`), one gathers what is ready, and one writes it in transactions of many files (`bulk`), so that a
file costs no fsync of its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import msgspec
import trio

from proto.errors import Executed, LinckiaError, OperationError, from_failure
from proto.machine import usable_cores
from proto.ops.documents.change import AddResult
from services.documents.add import bulk, intake
from services.documents.add.bulk import Progress
from services.documents.add.folders import Walk
from services.documents.add.intake import Held, Ready, Taken, stamp_of
from services.documents.store import objects, snapshots
from services.documents.store.compress import Codec, Trainer
from services.documents.store.incoming import Incoming
from services.documents.store.objects import Content
from services.documents.store.rows import Given
from services.documents.store.snapshots import Entry
from services.documents.store.store import Store
from services.runtime.handlers import Context
from services.runtime.roots import OutsideRoots, Roots
from services.runtime.storage import DiskFull

T = TypeVar("T")

READ_BYTES = 1024 * 1024
COMMIT_FILES = 4096
COMMIT_BYTES = 24 * 1024 * 1024
"""As they are stored; twice as many may be in memory, one transaction being gathered while another is written."""
GIVE_WAY_S = 30.0
"""Long enough for a hundred thousand files; after that a step is made in between, so that nothing waits for ever."""


class Adding:
    """Everything that an `add` needs; one for the service."""

    def __init__(
        self, store: Store, codec: Codec, trainer: Trainer, roots: Roots, *, takes_generated: bool = False
    ) -> None:
        self.store = store
        self.takes_generated = takes_generated
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

    async def text(self, name: str, text: str, given: Given) -> tuple[AddResult, Progress]:
        """Store a text under a name."""
        data = text.encode("utf-8", "surrogatepass")
        with self.receiving_chunks():
            content = await self.whole(Incoming(self.codec), iter((data,)), name, given.mime)
            return await self.write(Taken(name, "", time.time_ns(), 0, content), given)

    async def file(self, path: str, given: Given, ctx: Context) -> tuple[AddResult, Progress]:
        """Store one file.  Raises OperationError where it cannot be read."""
        with self.receiving_chunks():
            return await self.write(await self.large(path, given.mime, ctx), given)

    async def write(self, taken: Taken, given: Given) -> tuple[AddResult, Progress]:
        """Write a document whose chunks (if any) are stored; answers with the contents that are new."""
        progress = Progress()
        await self.store.write(lambda db: bulk.write(db, Ready(taken=[taken]), given, progress))
        name = taken.name or os.path.basename(taken.path.rstrip("/")) or taken.path
        return progress.answer(taken.path, name, taken.content.hash.hex()), progress

    async def large(self, path: str, mime: str | None, ctx: Context | None = None) -> Taken:
        """Read a file of any size, storing the chunks of a large one as they come."""
        now_ns = time.time_ns()
        incoming = Incoming(self.codec)

        def pieces(descriptor: int, expected: int) -> Iterator[bytes]:
            while data := os.read(descriptor, READ_BYTES):
                if ctx is not None and incoming.size:
                    done = incoming.size
                    trio.from_thread.run_sync(ctx.progress, done, max(done, expected), "bytes")
                yield data

        try:
            descriptor, status = await trio.to_thread.run_sync(self.roots.open, path, limiter=self.threads)
            try:
                content = await self.whole(incoming, pieces(descriptor, status.st_size), path, mime)
                after = os.fstat(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise OperationError(f"{path} cannot be read: {error.strerror}", field="path") from None
        except OutsideRoots as error:
            raise OperationError(str(error), field="path") from None
        settled = incoming.size == status.st_size == after.st_size and status.st_mtime_ns == after.st_mtime_ns
        stamp = stamp_of(status, now_ns) if settled else ""
        return Taken(path, stamp, status.st_mtime_ns, status.st_mode, content)

    async def whole(self, incoming: Incoming, pieces: Iterator[bytes], name: str, mime: str | None) -> Content:
        """The content of these pieces, its chunks (if any) stored."""

        def take() -> Content | None:
            for piece in pieces:
                incoming.feed(piece)
                if incoming.full:
                    return None
            incoming.finish()
            if incoming.pending or self.trainer.see(incoming.small):
                return None
            return incoming.content(name, mime)

        while (content := await trio.to_thread.run_sync(take, limiter=self.threads)) is None:
            if incoming.chunked:
                await self.store.write(incoming.settle)
            else:
                await self.trainer.train_if_due()
        return content


async def add_directory(
    adding: Adding, walk: Walk, given: Given, label: str | None, ctx: Context
) -> tuple[AddResult, Progress]:
    """Store the files of a directory, and a snapshot of it."""
    # Until the snapshot is written: what it lists and nothing else holds must not go meanwhile.
    with adding.receiving_chunks(), adding.in_bulk(), _one_failure():
        pipeline = Pipeline(adding, walk, given, ctx.progress)
        await pipeline.run()
        snapshot = await adding.store.write(
            lambda db: snapshots.take(db, walk.directory, label, given.collection, pipeline.listing)
        )
    progress, name = pipeline.progress, os.path.basename(walk.directory)
    answer = progress.answer(walk.directory, name, skipped=walk.skipped, snapshot=snapshot, ignored=walk.ignored)
    return answer, progress


async def add_changes(adding: Adding, walk: Walk, given: Given) -> int:
    """Store those files of a directory that are new or have changed; answers how many."""
    with adding.receiving_chunks(), _one_failure():
        pipeline = Pipeline(adding, walk, given)
        await pipeline.run()
    return pipeline.progress.added + pipeline.progress.updated


class Pipeline:
    """One directory, once."""

    def __init__(
        self, adding: Adding, walk: Walk, given: Given,
        report: Callable[[float, float | None, str | None], object] | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            report: told how many files are done, of how many; None: only what is new or has changed is of interest,
                and files that are stored already are neither listed nor described.
        """
        self.progress = Progress()
        self.listing: list[Entry] = []
        """An entry for each file that is stored."""
        self._adding = adding
        self._walk = walk
        self._given = given
        self._report = report
        self._held: dict[str, Held] = {}
        self._found = self._done = 0
        self._is_walked = False

    async def run(self) -> None:
        """Raises LinckiaError, perhaps in a group, after some of the files may have been stored."""
        self._held = await self._adding.store.read(lambda db: intake.known(db, self._walk.directory))
        to_read, names = trio.open_memory_channel[list[str]](2 * self._adding.cores)
        to_gather, packed = trio.open_memory_channel[Ready](1)
        to_write, batches = trio.open_memory_channel[Ready](0)
        async with trio.open_nursery() as nursery:
            async with to_read, to_gather:
                nursery.start_soon(self._look, to_read.clone(), to_gather.clone())
                for _ in range(self._adding.cores):
                    nursery.start_soon(self._take, names.clone(), to_gather.clone())
            names.close()
            nursery.start_soon(self._write, batches)
            await self._gather(packed, to_write)
        self.progress.fail(self._walk.failed)

    async def _look(self, read: trio.MemorySendChannel[list[str]], gather: trio.MemorySendChannel[Ready]) -> None:
        groups = intake.groups(self._walk, self._held)
        async with read, gather:
            while (group := await self._in_thread(partial(next, groups, None))) is not None:
                same, names = group
                self._found += len(names) + len(same)
                if same and self._report is not None:
                    await gather.send(Ready(same=same))
                if names:
                    await read.send(names)
        self._is_walked = True

    async def _take(self, groups: trio.MemoryReceiveChannel[list[str]], gather: trio.MemorySendChannel[Ready]) -> None:
        adding = self._adding
        async with groups, gather:
            async for group in groups:
                read = partial(intake.read, self._walk.directory, group, adding.roots, adding.trainer)
                raw = await self._in_thread(read)
                hashes = {one.hash for one in raw if not isinstance(one, str)}
                # Into a store that has nothing below this directory, what is added is mostly new.
                there = await adding.store.read(partial(objects.there, hashes=hashes)) if self._held else {}
                await adding.trainer.train_if_due()
                pack = partial(intake.pack, raw, there, self._given.mime, adding.codec)
                await gather.send(await self._in_thread(pack))

    async def _gather(self, packed: trio.MemoryReceiveChannel[Ready], write: trio.MemorySendChannel[Ready]) -> None:
        async with packed, write:
            ready = Ready()
            async for some in packed:
                for name in some.alone:
                    ready.taken += await self._alone(os.path.join(self._walk.directory, name))
                ready.taken += some.taken
                ready.bytes += some.bytes
                ready.same += some.same
                if len(ready.taken) >= COMMIT_FILES or ready.bytes >= COMMIT_BYTES:
                    await write.send(ready)
                    ready = Ready()
            await write.send(ready)

    async def _write(self, batches: trio.MemoryReceiveChannel[Ready]) -> None:
        async with batches:
            async for ready in batches:
                self._done += len(ready.taken) + len(ready.same)
                await self._commit(ready)
                if self._report is not None:
                    self._report(self._done, self._found if self._is_walked else None, "files")

    async def _commit(self, ready: Ready) -> None:
        while ready.taken or ready.same:
            write = partial(bulk.write, ready=ready, given=self._given, progress=self.progress)
            written = await self._adding.store.write(write)
            self.listing += written.entries
            # What has gone from the store while it was thought to be there.
            ready = Ready(taken=[one for path in written.again for one in await self._alone(path)])

    async def _alone(self, path: str) -> list[Taken]:
        """A file that is read by itself, because it is large or could not be read; nothing where it cannot be."""
        try:
            return [await self._adding.large(path, self._given.mime)]
        except DiskFull:
            raise
        except OperationError as error:
            self.progress.fail([str(error)])
            return []

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._adding.threads)


@contextlib.contextmanager
def _one_failure() -> Iterator[None]:
    """Of what several tasks have failed with, the first; some of the files may have been stored before."""
    try:
        yield
    except BaseExceptionGroup as group:
        failed, rest = group.split(LinckiaError)
        if failed is None or rest is not None:
            raise
        first: BaseException = failed
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        assert isinstance(first, LinckiaError)
        raise from_failure(msgspec.structs.replace(first.failure, executed=Executed.MAYBE)) from first
