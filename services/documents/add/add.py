"""Storing: one text, one file, or a directory in bulk, each acknowledged once it is on disk.

Of a directory, a few tasks take one group of files after the other: they are read, hashed and compressed in a thread
and written in one transaction, so that a file costs no fsync of its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import msgspec
import trio

from linckia.proto.errors import Executed, LinckiaError, OperationError, from_failure
from linckia.proto.machine import usable_cores
from linckia.proto.ops.documents.change import AddResult
from linckia.services.documents.add import intake
from linckia.services.documents.add.folders import Walk
from linckia.services.documents.add.intake import READ_BYTES, Held, Progress, Raw, Same, Taken, stamp_of
from linckia.services.documents.store import objects, snapshots
from linckia.services.documents.store.incoming import Incoming
from linckia.services.documents.store.kinds import SNIFF_BYTES, nature
from linckia.services.documents.store.objects import Block, Content
from linckia.services.documents.store.rows import Given
from linckia.services.documents.store.store import Store
from linckia.services.documents.store.training import Trainer
from linckia.services.runtime.handlers import Context
from linckia.services.runtime.roots import OutsideRoots, Roots
from linckia.services.runtime.storage import DiskFull

T = TypeVar("T")

GIVE_WAY_S = 30.0
"""Long enough for a hundred thousand files; after that a step is made in between, so that nothing waits for ever."""


class Adding:
    def __init__(self, store: Store, roots: Roots, *, takes_generated: bool = False) -> None:
        self.store, self.codec, self.trainer = store, store.codec, Trainer(store)
        self.roots, self.takes_generated = roots, takes_generated
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
        self._bulk += 1
        try:
            yield
        finally:
            self._bulk -= 1
            if not self._bulk:
                self._over.set()
                self._over = trio.Event()

    async def text(self, name: str, text: str, given: Given) -> tuple[AddResult, Progress]:
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
        await self.store.write(lambda db: intake.write(db, [taken], (), given, progress))
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
        bulk = Bulk(adding, walk, given, ctx.progress)
        await bulk.run()
        progress, collection = bulk.progress, given.collection
        snapshot = await adding.store.write(
            lambda db: snapshots.take(db, walk.directory, label, collection, progress.listing)
        )
    name = os.path.basename(walk.directory)
    answer = progress.answer(walk.directory, name, skipped=walk.skipped, snapshot=snapshot, ignored=walk.ignored)
    return answer, progress


async def add_changes(adding: Adding, walk: Walk, given: Given) -> int:
    """Store those files of a directory that are new or have changed; answers how many."""
    with adding.receiving_chunks(), _one_failure():
        bulk = Bulk(adding, walk, given)
        await bulk.run()
    return bulk.progress.added + bulk.progress.updated


class Bulk:
    def __init__(
        self, adding: Adding, walk: Walk, given: Given,
        report: Callable[[float, float | None, str | None], object] | None = None,
    ) -> None:  # fmt: skip
        """`report` is told how many files are done, of how many; None: only what is new or has changed is of interest,
        and files that are stored already are neither listed nor described."""
        self.progress = Progress()
        self._adding = adding
        self._walk = walk
        self._given = given
        self._report = report
        self._held: dict[str, Held] = {}
        self._turn = trio.Lock()
        self._found = self._done = 0
        self._is_walked = False

    async def run(self) -> None:
        """Raises LinckiaError, perhaps in a group, after some of the files may have been stored."""
        self._held = await self._adding.store.read(lambda db: intake.known(db, self._walk.directory))
        groups = intake.groups(self._walk, self._held)
        async with trio.open_nursery() as nursery:
            # One more than there are cores, for one of them mostly waits for its transaction.
            for _ in range(self._adding.cores + 1):
                nursery.start_soon(self._work, groups)
        self.progress.fail(self._walk.failed)

    async def _work(self, groups: Iterator[tuple[list[Same], list[str]]]) -> None:
        while True:
            async with self._turn:
                group = await self._in_thread(partial(next, groups, None))
            if group is None:
                self._is_walked = True
                return
            same, names = group
            self._found += len(names) + len(same)
            taken, alone = await self._in_thread(partial(self._take, names))
            for path in alone:
                taken += await self._alone(path)
            await self._write(taken, same if self._report is not None else [])

    def _take(self, names: Sequence[str]) -> tuple[list[Taken], list[str]]:
        """The files of a group, compressed unless the store has them; blocks.

        A large one, and one that cannot be read, is only named: it is read by itself, and that says why it cannot be.
        """
        adding = self._adding
        found: list[Raw] = []
        alone: list[str] = []
        for path in (os.path.join(self._walk.directory, name) for name in names):
            raw = None
            with contextlib.suppress(OSError, OutsideRoots):
                raw = intake.read(path, adding.roots)
            if raw is None:
                alone.append(path)
                continue
            if b"\0" not in raw.data[:SNIFF_BYTES]:
                adding.trainer.see(raw.data)
            found.append(raw)
        # Into a store that has nothing below this directory, what is added is mostly new.
        query = partial(objects.there, hashes={one.hash for one in found} if self._held else ())
        there = trio.from_thread.run(adding.store.read, query)
        trio.from_thread.run(adding.trainer.train_if_due)
        blocks: dict[bytes, Block] = {}
        taken: list[Taken] = []
        for one in found:
            if (block := blocks.get(one.hash)) is None:
                block = Block(0, None) if one.hash in there else Block(*adding.codec.pack(one.data))
                blocks[one.hash] = block
            content_nature = nature(one.data, one.path, self._given.mime)
            content = Content(one.hash, len(one.data), content_nature, block)
            taken.append(Taken(one.path, one.stamp, one.modified_ns, one.mode, content))
        return taken, alone

    async def _write(self, taken: list[Taken], same: Sequence[Same]) -> None:
        done = len(taken) + len(same)
        while taken or same:
            write = partial(intake.write, taken=taken, same=same, given=self._given, progress=self.progress)
            again = await self._adding.store.write(write)
            taken, same = [one for path in again for one in await self._alone(path)], ()
        self._done += done
        if self._report is not None:
            self._report(self._done, self._found if self._is_walked else None, "files")

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
