"""Storing: one text, one file, or a directory in bulk, each acknowledged once it is on disk.

A directory's files are read, hashed and compressed by a few threads while the writer puts what is ready into one
transaction after another, each of a good many files, so that a file costs no fsync of its own.  A file that has not
changed since it was last added (same size, times and inode) is not even read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import apsw
import trio

from proto.cores import usable_cores
from proto.errors import OperationError
from proto.ops.documents_change import AddResult
from services.documents import objects, rows, snapshots
from services.documents.compress import Codec
from services.documents.folders import Walk
from services.documents.incoming import Incoming
from services.documents.kinds import SNIFF_BYTES, nature
from services.documents.objects import CHUNKED_FROM_BYTES, Block, Content, Vanished
from services.documents.places import NotARegularFile, open_regular, printable
from services.documents.rows import ADDED, UNCHANGED, UPDATED, Given
from services.documents.store import Store
from services.documents.training import Trainer
from services.runtime.handlers import Context

READ_BYTES = 1024 * 1024
GROUP_FILES = 128
GROUP_BYTES = 8 * 1024 * 1024
COMMIT_FILES = 4096
COMMIT_BYTES = 48 * 1024 * 1024
MAX_FAILED = 100
GIVE_WAY_S = 5.0
"""Long enough for thousands of files; after that a step is made in between, so that nothing waits for ever."""
_RACY_NS = 20_000_000
"""Time stamps tick with the kernel's timer: shortly after a change, another may go unseen."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A file that was read."""

    path: str
    stamp: str
    modified_ns: int
    mode: int
    hash: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """A file that was read, ready to be stored."""

    path: str
    stamp: str
    modified_ns: int
    mode: int
    content: Content


@dataclass(frozen=True, slots=True)
class Same:
    """A file that is stored as it is already."""

    path: str
    object: int
    size: int
    modified_ns: int
    mode: int


@dataclass(slots=True)
class Tally:
    """What an `add` has done so far."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    size: int = 0
    stored: int = 0
    new: int = 0
    objects: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    failed_count: int = 0

    def count(self, outcome: str, size: int) -> None:
        self.added += outcome is ADDED
        self.updated += outcome is UPDATED
        self.unchanged += outcome is UNCHANGED
        self.size += size

    def fail(self, reasons: Sequence[str]) -> None:
        self.failed_count += len(reasons)
        self.failed += reasons[: MAX_FAILED - len(self.failed)]

    def answer(self, path: str, *, hash_: str | None, name: str, skipped: int = 0, snapshot: str | None = None,
               text_waiting: int = 0) -> AddResult:  # fmt: skip
        return AddResult(
            hash=hash_, path=path, name=name, size=self.size, is_new=self.new > 0, documents_added=self.added,
            documents_updated=self.updated, documents_unchanged=self.unchanged,
            files=self.added + self.updated + self.unchanged, bytes_stored=self.stored, failed=self.failed,
            failed_count=self.failed_count, skipped=skipped, snapshot_id=snapshot, text_waiting=text_waiting,
        )  # fmt: skip


def stamp_of(status: os.stat_result, now_ns: int) -> str:
    """What tells this version of a file from a later one; empty where a later one might look the same."""
    if now_ns - max(status.st_ctime_ns, status.st_mtime_ns) < _RACY_NS:
        return ""
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"


class Adding:
    """Everything that an `add` needs; one for the service."""

    def __init__(self, store: Store, codec: Codec, trainer: Trainer, roots: Sequence[str]) -> None:
        self.store = store
        self.codec = codec
        self.trainer = trainer
        self.roots = roots
        self.receiving = 0
        """Large contents on their way in: their chunks belong to nothing yet, and must not be collected."""
        self._threads = trio.CapacityLimiter(max(1, usable_cores()))
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
        tally = Tally()
        now_ns = time.time_ns()
        data = text.encode("utf-8", "surrogatepass")

        def change(db: apsw.Connection) -> None:
            self.put(db, tally, name, content, given, now_ns, now_ns, "", name=None)

        with self.receiving_chunks():
            content = await self.whole(Incoming(self.codec), iter((data,)), name, given.mime)
            await self.store.write(change)
        return tally.answer(name, hash_=content.hash.hex(), name=name.rsplit("/", 1)[-1]), tally.objects

    async def file(self, path: str, given: Given, ctx: Context) -> tuple[AddResult, list[int]]:
        """Store one file.  Raises OperationError where it cannot be read."""
        tally = Tally()

        def change(db: apsw.Connection) -> None:
            self.put(db, tally, path, taken.content, given, time.time_ns(), taken.modified_ns, taken.stamp)

        with self.receiving_chunks():
            taken = await self.large(path, given.mime, ctx)
            await self.store.write(change)
        return tally.answer(path, hash_=taken.content.hash.hex(), name=os.path.basename(path)), tally.objects

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

    def put(self, db: apsw.Connection, tally: Tally, path: str, content: Content, given: Given, now_ns: int,
             modified_ns: int, stamp: str, name: str | None = None) -> int:  # fmt: skip
        id_, new = objects.put(db, content)
        outcome = rows.write(db, path, id_, given, now_ns=now_ns, modified_ns=modified_ns, name=name, stamp=stamp)
        tally.count(outcome, content.size)
        if new:
            tally.new += 1
            tally.stored += content.size
            tally.objects.append(id_)
        return id_

    async def directory(self, walk: Walk, given: Given, label: str | None, ctx: Context) -> tuple[AddResult, list[int]]:
        """Store the files of a directory, and a snapshot of it."""
        tally = Tally()
        listing: list[snapshots.Entry] = []
        # Until the snapshot is written: what it lists and nothing else holds must not go meanwhile.
        with self.receiving_chunks(), self._in_bulk():
            await self._all(walk, given, tally, listing, ctx.progress)
            snapshot = await self.store.write(
                lambda db: snapshots.take(db, walk.directory, label, given.collection, listing, time.time_ns())
            )
        name = os.path.basename(walk.directory)
        return tally.answer(
            walk.directory, hash_=None, name=name, skipped=walk.skipped, snapshot=snapshot
        ), tally.objects

    async def changes(self, walk: Walk, given: Given) -> int:
        """Store those files of a directory that are new or have changed; answers how many."""
        tally = Tally()
        with self.receiving_chunks():
            await self._all(walk, given, tally, [], lambda done, total, message: None, keep_same=False)
        return tally.added + tally.updated

    async def _all(
        self,
        walk: Walk,
        given: Given,
        tally: Tally,
        listing: list[snapshots.Entry],
        progress: Callable[[float, float | None, str | None], None],
        *,
        keep_same: bool = True,
    ) -> None:
        files = await trio.to_thread.run_sync(lambda: list(walk.files()), limiter=self._threads)
        known = await self.store.read(lambda db: _known(db, walk.directory))
        groups = iter(_groups(files))
        total = len(files)
        send, receive = trio.open_memory_channel[list[Taken | Same | str]](1)

        async def read_on(channel: trio.MemorySendChannel[list[Taken | Same | str]]) -> None:
            async with channel:
                for group in groups:
                    read = await trio.to_thread.run_sync(
                        self._read, walk.directory, group, known, limiter=self._threads
                    )
                    hashes = [one.hash for one in read if isinstance(one, Raw)]
                    there = await self.store.read(partial(objects.there, hashes=hashes))
                    await self.trainer.train_if_due()
                    await channel.send(
                        await trio.to_thread.run_sync(self._pack, read, there, given.mime, limiter=self._threads)
                    )

        async with trio.open_nursery() as nursery:
            async with send:
                for _ in range(max(1, usable_cores())):
                    nursery.start_soon(read_on, send.clone())
            async with receive:
                ready: list[Taken | Same] = []
                size = done = 0
                async for group in receive:
                    for one in group:
                        if isinstance(one, Same) and not keep_same:
                            continue
                        whole = await self._alone(one, walk.directory, given, tally) if isinstance(one, str) else one
                        if whole is not None:
                            ready.append(whole)
                            size += whole.size if isinstance(whole, Same) else whole.content.size
                    done += len(group)
                    if len(ready) >= COMMIT_FILES or size >= COMMIT_BYTES:
                        await self._commit(ready, given, tally, listing)
                        ready, size = [], 0
                    progress(done, total, "files")
                await self._commit(ready, given, tally, listing)
        tally.fail(walk.failed)

    async def _alone(self, name: str, directory: str, given: Given, tally: Tally) -> Taken | None:
        """A file that is read by itself: it is large, or could not be read."""
        try:
            return await self.large(os.path.join(directory, name), given.mime)
        except OperationError as error:
            tally.fail([str(error)])
            return None

    def _read(
        self, directory: str, group: Sequence[tuple[str, int]], known: dict[str, tuple[str, int]]
    ) -> list[Raw | Same | str]:
        """In a thread: the files of a group.  A large one, and one that cannot be read, is only named: it is read
        by itself, and that says why it cannot be."""
        found: list[Raw | Same | str] = []
        now_ns = time.time_ns()
        for name, size in group:
            path = os.path.join(directory, name)
            data: bytes | None = None
            if size < CHUNKED_FROM_BYTES:
                try:
                    descriptor, status = open_regular(path, self.roots)
                    try:
                        stamp = stamp_of(status, now_ns)
                        held = known.get(path)
                        if held is not None and stamp and held[0] == stamp:
                            found.append(Same(path, held[1], status.st_size, status.st_mtime_ns, status.st_mode))
                            continue
                        data = _read_all(descriptor, status.st_size)
                    finally:
                        os.close(descriptor)
                except (OSError, NotARegularFile):
                    data = None
            if data is None:
                found.append(name)
            else:
                digest = hashlib.sha256(data).digest()
                found.append(Raw(path, stamp, status.st_mtime_ns, status.st_mode, digest, data))
                self.trainer.see(data, is_text=b"\0" not in data[:SNIFF_BYTES])
        return found

    def _pack(self, read: Sequence[Raw | Same | str], there: set[bytes], mime: str | None) -> list[Taken | Same | str]:
        """In a thread: what was read, compressed unless the store has it."""
        found: list[Taken | Same | str] = []
        for one in read:
            if isinstance(one, Raw):
                kind = nature(one.data[:SNIFF_BYTES], one.path, mime)
                block = Block(0, None) if one.hash in there else Block(*self.codec.pack(one.data))
                content = Content(one.hash, len(one.data), kind, block)
                found.append(Taken(one.path, one.stamp, one.modified_ns, one.mode, content))
            else:
                found.append(one)
        return found

    async def _commit(
        self, ready: Sequence[Taken | Same], given: Given, tally: Tally, listing: list[snapshots.Entry]
    ) -> None:
        if not ready:
            return
        now_ns = time.time_ns()

        def change(db: apsw.Connection) -> list[Taken]:
            again: list[Taken] = []
            for one in ready:
                if isinstance(one, Same):
                    self._keep(db, one, given, tally, listing, now_ns)
                    continue
                try:
                    id_ = self.put(db, tally, one.path, one.content, given, now_ns, one.modified_ns, one.stamp)
                except Vanished:
                    again.append(one)
                else:
                    listing.append(snapshots.Entry(one.path, one.content.hash, id_, one.content.size,
                                                   one.modified_ns, one.mode))  # fmt: skip
            return again

        for one in await self.store.write(change):
            try:
                taken = await self.large(one.path, given.mime)
            except OperationError as error:
                tally.fail([str(error)])
            else:
                await self._commit([taken], given, tally, listing)

    def _keep(self, db: apsw.Connection, one: Same, given: Given, tally: Tally, listing: list[snapshots.Entry],
              now_ns: int) -> None:  # fmt: skip
        row = db.execute(
            "SELECT object.hash, document.stamp FROM document JOIN object ON object.id = document.object"
            " WHERE path=? AND object=?",
            (one.path, one.object),
        ).fetchone()
        if row is None:
            # Deleted while it was being looked at; the next add stores it.
            tally.fail([f"{printable(one.path)}: was deleted from the store meanwhile; add it again"])
            return
        hash_, stamp = row
        assert isinstance(hash_, bytes)
        rows.write(db, one.path, one.object, given, now_ns=now_ns, modified_ns=one.modified_ns, stamp=str(stamp))
        tally.count(UNCHANGED, one.size)
        listing.append(snapshots.Entry(one.path, hash_, one.object, one.size, one.modified_ns, one.mode))


def _read_all(descriptor: int, size: int) -> bytes | None:
    """All of a file, or None where it has grown large meanwhile."""
    data = os.read(descriptor, size + 1)
    while True:
        more = os.read(descriptor, READ_BYTES)
        if not more:
            return data
        data += more
        if len(data) >= CHUNKED_FROM_BYTES:
            return None


def _groups(files: Sequence[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    rest = iter(files)
    while some := list(islice(rest, GROUP_FILES)):
        group: list[tuple[str, int]] = []
        size = 0
        for one in some:
            group.append(one)
            size += one[1]
            if size >= GROUP_BYTES:
                yield group
                group, size = [], 0
        if group:
            yield group


def _known(db: apsw.Connection, directory: str) -> dict[str, tuple[str, int]]:
    """Stamp and content of each path below a directory."""
    base = directory.rstrip("/")
    found: dict[str, tuple[str, int]] = {}
    for path, stamp, object_ in db.execute(
        "SELECT path, stamp, object FROM document WHERE path>=? AND path<? AND stamp <> ''", (base + "/", base + "0")
    ):
        assert isinstance(object_, int)
        found[str(path)] = (str(stamp), object_)
    return found
