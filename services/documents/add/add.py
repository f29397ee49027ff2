"""Storing: one text, one file, or a directory in bulk, each acknowledged once it is on disk.

A directory's files are read, hashed and compressed by a few threads (`intake`) while the writer puts what is ready
into one transaction after another (`bulk`), each of a good many files, so that a file costs no fsync of its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import apsw
import trio

from proto.cores import usable_cores
from proto.errors import Executed, LinckiaError, OperationError
from proto.ops.documents_change import AddResult
from services.documents.add import bulk, intake
from services.documents.add.folders import Walk
from services.documents.add.intake import Ready, Taken, stamp_of
from services.documents.add.places import NotARegularFile, open_regular
from services.documents.add.progress import Progress
from services.documents.store import objects, rows, snapshots
from services.documents.store.compress import Codec
from services.documents.store.incoming import Incoming
from services.documents.store.objects import Content
from services.documents.store.rows import Given
from services.documents.store.store import Store
from services.documents.store.training import Trainer
from services.runtime.handlers import Context

READ_BYTES = 1024 * 1024
COMMIT_FILES = 4096
COMMIT_BYTES = 24 * 1024 * 1024
"""As they are stored; twice as many may be in memory, one transaction being gathered while another is written."""
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
        self._cores = max(1, usable_cores())
        self._threads = trio.CapacityLimiter(self._cores)
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
    def _in_bulk(self) -> Iterator[None]:
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

        def change(db: apsw.Connection) -> None:
            self.put(db, progress, name, content, given, now_ns, now_ns, "", name=None)

        with self.receiving_chunks():
            content = await self.whole(Incoming(self.codec), iter((data,)), name, given.mime)
            await self.store.write(change)
        return progress.answer(name, hash_=content.hash.hex(), name=name.rsplit("/", 1)[-1]), progress.objects

    async def file(self, path: str, given: Given, ctx: Context) -> tuple[AddResult, list[int]]:
        """Store one file.  Raises OperationError where it cannot be read."""
        progress = Progress()

        def change(db: apsw.Connection) -> None:
            self.put(db, progress, path, taken.content, given, time.time_ns(), taken.modified_ns, taken.stamp)

        with self.receiving_chunks():
            taken = await self.large(path, given.mime, ctx)
            await self.store.write(change)
        return progress.answer(path, hash_=taken.content.hash.hex(), name=os.path.basename(path)), progress.objects

    async def large(self, path: str, mime: str | None, ctx: Context | None = None) -> Taken:
        """Read a file of any size, storing the chunks of a large one as they come."""
        now_ns = time.time_ns()
        try:
            descriptor, status = await trio.to_thread.run_sync(open_regular, path, self.roots, limiter=self._threads)
        except OSError as error:
            raise OperationError(f"{path} cannot be read: {error.strerror}", field="path") from None
        except NotARegularFile as error:
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

        while await trio.to_thread.run_sync(feed, limiter=self._threads):
            await self.store.write(incoming.settle)
        if incoming.chunked:
            await self.store.write(incoming.settle)
        elif self.trainer.see(incoming.small, is_text=True):
            await self.trainer.train_if_due()
        return await trio.to_thread.run_sync(incoming.content, name, mime, limiter=self._threads)

    def put(self, db: apsw.Connection, progress: Progress, path: str, content: Content, given: Given, now_ns: int,
             modified_ns: int, stamp: str, name: str | None = None) -> int:  # fmt: skip
        id_, new = objects.put(db, content)
        outcome = rows.write(db, path, id_, given, now_ns=now_ns, modified_ns=modified_ns, name=name, stamp=stamp)
        progress.count(outcome, content.size)
        if new:
            progress.stored += content.size
            progress.objects.append(id_)
        return id_

    async def directory(self, walk: Walk, given: Given, label: str | None, ctx: Context) -> tuple[AddResult, list[int]]:
        """Store the files of a directory, and a snapshot of it."""
        progress = Progress()
        listing: list[snapshots.Entry] = []
        # Until the snapshot is written: what it lists and nothing else holds must not go meanwhile.
        with self.receiving_chunks(), self._in_bulk(), _one_failure():
            await self._all(walk, given, progress, listing, ctx.progress)
            snapshot = await self.store.write(
                lambda db: snapshots.take(db, walk.directory, label, given.collection, listing, time.time_ns())
            )
        name = os.path.basename(walk.directory)
        return progress.answer(
            walk.directory, hash_=None, name=name, skipped=walk.skipped, snapshot=snapshot
        ), progress.objects

    async def changes(self, walk: Walk, given: Given) -> int:
        """Store those files of a directory that are new or have changed; answers how many."""
        progress = Progress()
        with self.receiving_chunks(), _one_failure():
            await self._all(walk, given, progress, [], lambda done, total, message: None, keep_same=False)
        return progress.added + progress.updated

    async def _all(
        self,
        walk: Walk,
        given: Given,
        progress: Progress,
        listing: list[snapshots.Entry],
        report: Callable[[float, float | None, str | None], None],
        *,
        keep_same: bool = True,
    ) -> None:
        """Four stages at work at once: one looks at the files, a few read and compress, one gathers, one writes."""
        held = await self.store.read(lambda db: intake.known(db, walk.directory))
        to_read, names = trio.open_memory_channel[list[str]](2 * self._cores)
        to_gather, packed = trio.open_memory_channel[Ready](1)
        to_write, batches = trio.open_memory_channel[Ready](0)
        found = done = 0
        walked = False

        async def look(read: trio.MemorySendChannel[list[str]], gather: trio.MemorySendChannel[Ready]) -> None:
            nonlocal found, walked
            groups = intake.groups(walk, held)
            async with read, gather:
                while (group := await trio.to_thread.run_sync(next, groups, None, limiter=self._threads)) is not None:
                    found += len(group.names) + len(group.same)
                    if group.same:
                        await gather.send(Ready(same=group.same))
                    if group.names:
                        await read.send(group.names)
            walked = True

        def take_at_once(group: list[str]) -> Ready:
            raw = intake.read(walk.directory, group, self.roots, self.trainer)
            return intake.pack(raw, (), given.mime, self.codec)

        async def take(groups: trio.MemoryReceiveChannel[list[str]], gather: trio.MemorySendChannel[Ready]) -> None:
            async with groups, gather:
                async for group in groups:
                    if not held and self.trainer.is_done:
                        # Nothing to be asked of the store in between.
                        await gather.send(await trio.to_thread.run_sync(take_at_once, group, limiter=self._threads))
                        continue
                    raw = await trio.to_thread.run_sync(
                        intake.read, walk.directory, group, self.roots, self.trainer, limiter=self._threads
                    )
                    hashes = {one.hash for one in raw if not isinstance(one, str)}
                    there = await self.store.read(partial(objects.there, hashes=hashes)) if held else {}
                    await self.trainer.train_if_due()
                    await gather.send(
                        await trio.to_thread.run_sync(
                            intake.pack, raw, there, given.mime, self.codec, limiter=self._threads
                        )
                    )

        async def write() -> None:
            nonlocal done
            async with batches:
                async for batch in batches:
                    await self._commit(batch, given, progress, listing)
                    done += len(batch.taken) + len(batch.same)
                    report(done, found if walked else None, "files")

        async with trio.open_nursery() as nursery:
            async with to_read, to_gather:
                nursery.start_soon(look, to_read.clone(), to_gather.clone())
                for _ in range(self._cores):
                    nursery.start_soon(take, names.clone(), to_gather.clone())
            names.close()
            nursery.start_soon(write)
            async with packed, to_write:
                ready = Ready()
                async for some in packed:
                    for name in some.alone:
                        whole = await self._alone(os.path.join(walk.directory, name), given, progress)
                        ready.taken += [] if whole is None else [whole]
                    ready.taken += some.taken
                    ready.bytes += some.bytes
                    if keep_same:
                        ready.same += some.same
                    if len(ready.taken) >= COMMIT_FILES or ready.bytes >= COMMIT_BYTES:
                        await to_write.send(ready)
                        ready = Ready()
                await to_write.send(ready)
        progress.fail(walk.failed)

    async def _alone(self, path: str, given: Given, progress: Progress) -> Taken | None:
        """A file that is read by itself: it is large, or could not be read."""
        try:
            return await self.large(path, given.mime)
        except OperationError as error:
            progress.fail([str(error)])
            return None

    async def _commit(self, ready: Ready, given: Given, progress: Progress, listing: list[snapshots.Entry]) -> None:
        while ready.taken or ready.same:
            now_ns = time.time_ns()
            written = await self.store.write(
                partial(bulk.write, ready=ready, given=given, progress=progress, now_ns=now_ns)
            )
            listing += written.entries
            # What has gone from the store while it was thought to be there.
            again = [await self._alone(path, given, progress) for path in written.again]
            ready = Ready(taken=[one for one in again if one is not None])


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
        failure = first.failure
        raise type(first)(
            failure.message, executed=Executed.MAYBE, field=failure.field, retry_after_ms=failure.retry_after_ms,
            data=failure.data,
        ) from first  # fmt: skip
