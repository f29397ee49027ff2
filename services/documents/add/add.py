"""Store a text, a file or a whole directory; calls return once the data is on disk.

For a directory, a few tasks process groups of files: a worker thread reads, hashes and compresses a group, and one
transaction writes it, so that files do not need an fsync each.
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

from proto.errors import Executed, LinckiaError, OperationError, from_failure
from proto.host.machine import usable_cores
from proto.ops.documents.change import AddResult
from services.documents.add import intake
from services.documents.add.folders import Walk
from services.documents.add.intake import (
    READ_BYTES,
    Progress,
    RawFile,
    ReadDocument,
    StoredState,
    Unchanged,
    stamp_of,
)
from services.documents.store import objects, snapshots
from services.documents.store.databases import Store
from services.documents.store.incoming import Incoming
from services.documents.store.kinds import SNIFF_BYTES, nature
from services.documents.store.objects import Block, PackedContent
from services.documents.store.rows import DocumentAttributes
from services.documents.store.training import Trainer
from services.runtime.handlers import Context
from services.runtime.roots import OutsideRoots, Roots
from services.runtime.storage import DiskFull

T = TypeVar("T")

GIVE_WAY_S = 30.0
"""How long background work yields to a bulk add before it does one step.  A hundred thousand files take less."""


class Adding:
    def __init__(self, store: Store, roots: Roots, *, takes_generated: bool = False) -> None:
        self.store, self.codec, self.trainer = store, store.codec, Trainer(store)
        self.roots, self.takes_generated = roots, takes_generated
        self.receiving = 0
        """Number of large contents being received.  Their chunks belong to no content yet and must not be collected."""
        self.cores = max(1, usable_cores())
        self.threads = trio.CapacityLimiter(self.cores)
        self._bulk = 0
        self._over = trio.Event()

    @contextlib.contextmanager
    def receiving_chunks(self) -> Iterator[None]:
        """Prevent chunk collection from before the first chunk is stored until the document is written."""
        self.receiving += 1
        try:
            yield
        finally:
            self.receiving -= 1

    async def give_way(self) -> None:
        """Let background work wait while a directory is being added, for at most `GIVE_WAY_S`."""
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

    async def text(self, name: str, text: str, given: DocumentAttributes) -> tuple[AddResult, Progress]:
        data = text.encode("utf-8", "surrogatepass")
        with self.receiving_chunks():
            content = await self.whole(Incoming(self.codec), iter((data,)), name, given.mime)
            return await self.write(ReadDocument(name, "", time.time_ns(), 0, content), given)

    async def file(self, path: str, given: DocumentAttributes, ctx: Context) -> tuple[AddResult, Progress]:
        """Store one file.  Raises OperationError if it cannot be read."""
        with self.receiving_chunks():
            return await self.write(await self.large(path, given.mime, ctx), given)

    async def write(self, taken: ReadDocument, given: DocumentAttributes) -> tuple[AddResult, Progress]:
        """Write a document whose chunks (if any) are stored."""
        progress = Progress()
        await self.store.write(lambda db: intake.write(db, [taken], (), given, progress))
        name = taken.name or os.path.basename(taken.path.rstrip("/")) or taken.path
        return progress.answer(taken.path, name, taken.content.hash.hex()), progress

    async def large(self, path: str, mime: str | None, ctx: Context | None = None) -> ReadDocument:
        """Read a file of any size, storing the chunks of a large one as they are read."""
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
        return ReadDocument(path, stamp, status.st_mtime_ns, status.st_mode, content)

    async def whole(self, incoming: Incoming, pieces: Iterator[bytes], name: str, mime: str | None) -> PackedContent:
        """Return the content made of `pieces`, after storing its chunks, if any."""

        def take() -> PackedContent | None:
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
    adding: Adding, walk: Walk, given: DocumentAttributes, label: str | None, ctx: Context
) -> tuple[AddResult, Progress]:
    """Store the files of a directory, and a snapshot of it."""
    # Until the snapshot is written, contents that only it refers to must not be collected.
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


async def add_changes(adding: Adding, walk: Walk, given: DocumentAttributes) -> int:
    """Store the new and changed files of a directory.  Returns their number."""
    with adding.receiving_chunks(), _one_failure():
        bulk = Bulk(adding, walk, given)
        await bulk.run()
    return bulk.progress.added + bulk.progress.updated


class Bulk:
    def __init__(
        self, adding: Adding, walk: Walk, given: DocumentAttributes,
        report: Callable[[float, float | None, str | None], object] | None = None,
    ) -> None:  # fmt: skip
        """Prepare a bulk add.

        Args:
            report: called with the number of files done and the total.  If it is None, only new and changed files
                matter, and unchanged files are neither listed nor updated.
        """
        self.progress = Progress()
        self._adding = adding
        self._walk = walk
        self._given = given
        self._report = report
        self._held: dict[str, StoredState] = {}
        self._turn = trio.Lock()
        self._found = self._done = 0
        self._is_walked = False

    async def run(self) -> None:
        """Run the bulk add.  Raises LinckiaError, possibly in a group; some files may be stored already."""
        self._held = await self._adding.store.read(lambda db: intake.known(db, self._walk.directory))
        groups = intake.groups(self._walk, self._held)
        async with trio.open_nursery() as nursery:
            # One more task than cores, because one mostly waits for its transaction.
            for _ in range(self._adding.cores + 1):
                nursery.start_soon(self._work, groups)
        self.progress.fail(self._walk.failed)

    async def _work(self, groups: Iterator[tuple[list[Unchanged], list[str]]]) -> None:
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

    def _take(self, names: Sequence[str]) -> tuple[list[ReadDocument], list[str]]:
        """Read and compress the files of a group, except contents that are already stored.  Blocks.

        Also returns the paths of large and unreadable files. They are read individually, which reports any error.
        """
        adding = self._adding
        found: list[RawFile] = []
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
        # If nothing below this directory is stored, the contents are probably new.
        query = partial(objects.stored_ids, hashes={one.hash for one in found} if self._held else ())
        there = trio.from_thread.run(adding.store.read, query)
        trio.from_thread.run(adding.trainer.train_if_due)
        blocks: dict[bytes, Block] = {}
        taken: list[ReadDocument] = []
        for one in found:
            if (block := blocks.get(one.hash)) is None:
                block = Block(0, None) if one.hash in there else Block(*adding.codec.pack(one.data))
                blocks[one.hash] = block
            content_nature = nature(one.data, one.path, self._given.mime)
            content = PackedContent(one.hash, len(one.data), content_nature, block)
            taken.append(ReadDocument(one.path, one.stamp, one.modified_ns, one.mode, content))
        return taken, alone

    async def _write(self, taken: list[ReadDocument], same: Sequence[Unchanged]) -> None:
        done = len(taken) + len(same)
        while taken or same:
            write = partial(intake.write, taken=taken, same=same, given=self._given, progress=self.progress)
            again = await self._adding.store.write(write)
            taken, same = [one for path in again for one in await self._alone(path)], ()
        self._done += done
        if self._report is not None:
            self._report(self._done, self._found if self._is_walked else None, "files")

    async def _alone(self, path: str) -> list[ReadDocument]:
        """Read a large file, or retry one that could not be read.  Returns an empty list if that fails."""
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
    """Raise only the first failure of several tasks, marked as maybe executed, since some files may be stored."""
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
