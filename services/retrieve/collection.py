"""One collection: its database, its vectors in memory, and the threads that work on them.

One writer at a time, several readers beside it, all in worker threads, so that the event loop answers pings whatever
a query costs. Vectors in memory change in the same thread right after the commit that they follow: what is committed
and what is searched never part for longer than that.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import trio

from proto.errors import OperationError, Unavailable
from proto.ops.retrieve import CollectionStatus, Group, GroupIds
from services.retrieve import lexical, schema, store, vector_store
from services.retrieve.filters import Where
from services.retrieve.segment import Damaged, Segment
from services.retrieve.segmented import DEFAULT_LIMITS, Built, Job, Limits, SegmentedIndex
from services.retrieve.store import Change, Found, Model, Stored, Waiting
from services.retrieve.vectors import HalfMatrix, ItemIds, Matrix, VectorIndex
from services.retrieve.word_index import WordIndex, allowed_items

T = TypeVar("T")

_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CORRUPT | 1 << 8})
"""What FTS5 answers where its tables are damaged (the second is SQLITE_CORRUPT_VTAB)."""


CHECK_WAIT_S = 1.0
"""A search waits for the word index to be looked through, which takes a second for half a million items; then it
answers from what there is, and says so."""


SCRUB_WAIT_S = 30.0
"""For tantivy to let go of files that hold words of what was deleted."""


class VectorsLoading(Exception):
    """The vectors are still being read from the database."""


class Collection:
    """Made by `open`, which blocks; the methods are for the event loop.

    Args:
        readers: shared by all collections: how many threads may read at once.
        limits: when vectors become segments.
        large_words: items from which tantivy is asked for words; None: never.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        db: sqlite3.Connection,
        readers: trio.CapacityLimiter,
        limits: Limits,
        large_words: int | None,
    ) -> None:
        self.name = name
        self._path = path
        self._limits = limits
        self._segments_folder = path.with_suffix(".vectors")
        self._db = db
        self._readers = readers
        self._writer = trio.CapacityLimiter(1)
        self._idle: list[sqlite3.Connection] = []
        self._idle_lock = threading.Lock()
        self._model: Model | None = store.current_model(db)
        self._index: SegmentedIndex | None = None
        self._tender = trio.CapacityLimiter(1)
        self.waiting = store.count_waiting(db)
        self.outbox_trouble = ""
        """What the outbox failed by last time; empty where it works."""
        self.loaded = trio.Event()
        self.has_work = trio.Event()
        self.wants_tending = trio.Event()
        self._rebuilding = False
        self.words = WordIndex(path.with_suffix(".words"), large_words)
        self.words_changed = trio.Event()
        self.words_checked = trio.Event()
        self.words_damage = ""
        self._steps = trio.lowlevel.ParkingLot()
        self.version = 0
        """Rises with each commit."""

    @classmethod
    def open(
        cls,
        name: str,
        folder: Path,
        readers: trio.CapacityLimiter,
        limits: Limits = DEFAULT_LIMITS,
        large_words: int | None = None,
    ) -> Collection:
        """Open or make the collection's database in `folder`.

        Raises:
            OperationError: the file is damaged, or was written by a newer version.
        """
        path = folder / f"{name}.db"
        try:
            return cls(name, path, schema.open_writer(path), readers, limits, large_words)
        except sqlite3.Error as error:
            raise OperationError(f"collection {name} cannot be opened: {error}") from error

    @property
    def fingerprint(self) -> str | None:
        """Of the model whose vectors are searched."""
        return None if self._model is None else self._model.fingerprint

    @property
    def vector_count(self) -> int:
        """Vectors that a search would look at."""
        return 0 if self._index is None else len(self._index)

    @property
    def vectors_awaited(self) -> str:
        """How many pieces wait for their vectors, and what for where that is known; empty where none does."""
        if not self.waiting:
            return ""
        count = str(self.waiting) if self.vector_count else f"all {self.waiting}"
        trouble = f" ({self.outbox_trouble})" if self.outbox_trouble else ""
        return f"{count} pieces still wait for their vectors{trouble}"

    @property
    def vectors_behind(self) -> str:
        """Why a search by vectors may not be all that it should be; empty where it is."""
        if (index := self._index) is None:
            return ""
        if index.missing:
            total = index.missing + len(index)
            return f"{index.missing} of {total} vectors are not searched yet, the index is being rebuilt"
        return "the saved index is still being checked" if index.unchecked else ""

    # Writing

    async def put(self, groups: Sequence[Group]) -> Change:
        """Set groups in one transaction; on disk and found by words when this returns.

        Cancellation: before the transaction nothing is done, after its start it is done as a whole.

        Raises:
            InvalidParams: a group or a key stands twice.
            OperationError: the disk is full or failing; nothing was changed.
        """
        store.check(groups)
        change = await self._write(lambda db: store.put(db, groups), self._follow)
        self.waiting = change.waiting
        if change.waiting:
            self.has_work.set()
        return change

    async def delete(self, ids: Sequence[str]) -> Change:
        """Remove groups in one transaction; found no more by any means when this returns."""
        change = await self._write(lambda db: store.delete(db, ids), self._follow)
        self.waiting = change.waiting
        return change

    async def scrub(self) -> None:
        """Leave nothing of what was deleted in the database's files.

        Raises:
            Unavailable: somebody still reads a state of before.
            OperationError: the disk fails.
        """
        await self._write(lexical.merge, lambda _: None)
        if self.words.start_anew():
            self.words_changed.set()
            with trio.move_on_after(SCRUB_WAIT_S):
                while self.words.wanted_anew and self.words.has_large:  # noqa: ASYNC110  # its thread tells nobody
                    await trio.sleep(0.02)
            if self.words.wanted_anew and self.words.has_large:
                raise Unavailable(f"the words of collection {self.name} are being read", retry_after_ms=500)

        def truncate() -> bool:
            return bool(self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])

        if await trio.to_thread.run_sync(truncate, limiter=self._writer):
            raise Unavailable(f"collection {self.name} is being read", retry_after_ms=500)

    async def adopt(self, fingerprint: str, dimensions: int) -> None:
        """Make `fingerprint` the model of this collection's vectors; those that lack are queued."""
        if self.fingerprint == fingerprint:
            return

        def load(model: Model) -> None:
            self._model = model
            self._load()

        await self._write(lambda db: store.adopt_model(db, fingerprint, dimensions), load)
        await self.count_waiting()
        self.has_work.set()

    async def settle(self, fingerprint: str, done: Sequence[tuple[Waiting, bytes]]) -> int:
        """Keep vectors (float16 bytes) of that model; answers how many still had their item."""
        model = self._model
        if model is None or model.fingerprint != fingerprint:
            return 0
        kept = await self._write(
            lambda db: store.settle(db, model, done), lambda kept: self._follow(Change(reused=kept))
        )
        return len(kept)

    async def postpone(self, item: Waiting, until: float, error: str) -> None:
        """See `store.postpone`."""
        await self._write(lambda db: store.postpone(db, item, until, error), lambda _: None)
        self._steps.unpark_all()

    async def rebuild_words(self) -> None:
        """Make the word index anew from the text; does nothing while that is under way already.

        Raises:
            sqlite3.DatabaseError: more than the index is damaged.
        """
        if self._rebuilding:
            return
        self._rebuilding = True
        try:
            await self._write(lexical.rebuild, lambda _: None)
        finally:
            self._rebuilding = False
        self.words_damage = ""
        self.words_checked.set()

    async def load(self) -> None:
        """Bring the vectors into memory, after which `loaded` is set, and look whether the word index is whole.

        If it is, `words_checked` is set; else `words_damage` says what is wrong, and it is to be rebuilt.
        """
        await trio.to_thread.run_sync(self._load, limiter=self._writer)
        self.loaded.set()
        self.words_damage = await trio.to_thread.run_sync(self._check_words, limiter=self._tender)
        if not self.words_damage:
            self.words_checked.set()

    # Reading

    async def find_words(self, query: str, limit: int, where: Where | None) -> list[tuple[int, float]]:
        """Item ids and BM25 scores, best first.  Raises sqlite3.DatabaseError where the word index is damaged."""
        if not self.words_checked.is_set():
            with trio.move_on_after(CHECK_WAIT_S):
                await self.words_checked.wait()
            if self.words_damage:
                raise sqlite3.DatabaseError(f"the word index is damaged ({self.words_damage}) and is being made anew")
        return await self._read(lambda db: self.words.search(db, query, limit, where))

    async def find_vectors(self, query: Matrix, limit: int, where: Where | None) -> list[tuple[int, float]]:
        """Item ids and cosines, best first.  Raises VectorsLoading."""
        return await self._read(
            lambda db: self.near(query, limit, None if where is None else allowed_items(db, where))
        )  # fmt: skip

    def near(self, query: Matrix, limit: int, allowed: ItemIds | None) -> list[tuple[int, float]]:
        """Item ids (among `allowed`, where given) and cosines, best first; blocks.  Raises VectorsLoading."""
        if (index := self._index) is None:
            if self._model is not None and not self.loaded.is_set():
                raise VectorsLoading
            return []
        return index.search(query, limit, allowed)

    def cosines(self, query: Matrix, ids: Sequence[int]) -> dict[int, float]:
        """Cosines of those of `ids` that have a vector; blocks."""
        index = self._index
        return {} if index is None or not ids else index.cosines(query, ids)

    async def items(self, ids: Sequence[int]) -> dict[int, Found]:
        """The items of these ids that are still there."""
        return await self._read(lambda db: store.items(db, ids))

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a worker thread on one snapshot of the database, which it must not change."""
        return await self._read(work)

    def read_here(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in the worker thread that calls this, each statement on a snapshot of its own."""
        with self._reader() as db:
            return work(db)

    async def group_ids(self, after: str, limit: int) -> GroupIds:
        """A page of ids."""
        return await self._read(lambda db: store.group_ids(db, after, limit))

    async def due(self, now: float, limit: int) -> tuple[list[Waiting], float | None]:
        """See `store.waiting`."""
        return await self._read(lambda db: store.waiting(db, now, limit))

    async def count_waiting(self) -> int:
        """Items whose vector is still to come; `waiting` holds the last count."""
        self.waiting = await self._read(store.count_waiting)
        self._steps.unpark_all()
        return self.waiting

    async def next_step(self) -> None:
        """Until vectors were kept, an item was postponed or the items that wait were counted."""
        await self._steps.park()

    async def status(self) -> CollectionStatus:
        """How much there is."""
        groups, items, vectors, waiting, failed = await self._read(store.counts)
        self.waiting = waiting
        files = (self._path, self._path.with_name(self._path.name + "-wal"))
        segments_bytes = 0 if self._index is None else self._index.size_bytes
        return CollectionStatus(
            collection=self.name,
            groups=groups,
            items=items,
            vectors=vectors,
            vectors_waiting=waiting,
            vectors_failed=failed,
            fingerprint=self.fingerprint,
            size_bytes=sum(file.stat().st_size for file in files if file.exists())
            + segments_bytes
            + self.words.size_bytes(),
            index="none" if self._index is None else self._index.kind,
            words=self.words.kind,
        )

    # Tending

    async def tend(self) -> bool:
        """Check, rebuild or compact a part of the index, if need be; whether there was need.

        Searches and writes go on meanwhile; `run_tending` calls this, one at a time.

        Cancellation: what was built is given up.

        Raises:
            OSError, OperationError, sqlite3.Error: the disk is full or failing; all is searched as before.
        """
        index = self._index
        if index is None:
            return False
        for segment in index.unchecked:
            if not await trio.to_thread.run_sync(_is_right, segment, limiter=self._tender):
                await trio.to_thread.run_sync(index.drop, segment, limiter=self._writer)
                await trio.to_thread.run_sync(segment.remove_files, limiter=self._tender)
            return True
        job = await trio.to_thread.run_sync(index.begin, limiter=self._writer)
        if job is None:
            return False
        try:
            built = await trio.to_thread.run_sync(self._build, index, job, limiter=self._tender)
            await self._switch(index, job, built)
        except OSError:
            # Another model was adopted meanwhile, and the files of this one were cleared away.
            if self._index is index:
                raise
        finally:
            index.abandon(job)
        return True

    def _build(self, index: SegmentedIndex, job: Job) -> Built:
        def read(ids: ItemIds) -> tuple[ItemIds, HalfMatrix]:
            # No transaction around it all: one that lasts keeps the log from being cut, and what changes is noted.
            model = self._model
            if model is None or model.dimensions != index.dimensions:
                # Another one is being adopted; what is built now will not be taken.
                return ids[:0], np.empty((0, index.dimensions), np.float16)
            with self._reader() as db:
                return vector_store.vectors_by_id(db, model, ids)

        return index.build(job, read, trio.from_thread.check_cancelled)

    async def _switch(self, index: SegmentedIndex, job: Job, built: Built) -> None:
        def save(db: sqlite3.Connection) -> bool:
            if self._index is not index or self._model is None:
                return False
            vector_store.save(db, self._model, index.records_after(job, built))
            return True

        def follow(saved: bool) -> None:
            if saved:
                index.switch(job, built)

        unused: Sequence[Segment] = () if built.opened is None else (built.opened,)
        try:
            if await self._write(save, follow):
                unused = job.segments
        finally:
            with trio.CancelScope(shield=True):
                for segment in unused:
                    await trio.to_thread.run_sync(segment.remove_files, limiter=self._tender)

    def close(self) -> None:
        """Close all connections; blocks for the last checkpoint."""
        for db in self._idle:
            db.close()
        self._db.close()

    # In worker threads

    async def _write(self, work: Callable[[sqlite3.Connection], T], follow: Callable[[T], None]) -> T:
        def transaction() -> T:
            db = self._db
            db.execute("BEGIN IMMEDIATE")
            try:
                result = work(db)
                db.execute("COMMIT")
            except BaseException:
                # Some errors (a full disk) have rolled back already.
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            self.version += 1
            follow(result)
            return result

        try:
            result = await trio.to_thread.run_sync(transaction, limiter=self._writer)
        except sqlite3.OperationalError as error:
            raise OperationError(f"collection {self.name} cannot be written ({error}); nothing was changed") from error
        if self._index is not None and self._index.due:
            self.wants_tending.set()
        self.words_changed.set()
        return result

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def snapshot() -> T:
            with self._reader() as db:
                # One snapshot for all that the work reads.
                db.execute("BEGIN")
                try:
                    return work(db)
                finally:
                    db.execute("ROLLBACK")

        return await trio.to_thread.run_sync(snapshot, limiter=self._readers)

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        with self._idle_lock:
            db = self._idle.pop() if self._idle else None
        db = db or schema.open_reader(self._path)
        try:
            yield db
        finally:
            with self._idle_lock:
                self._idle.append(db)

    def _check_words(self) -> str:
        # A connection of its own: what the check is made by stays on it.
        db = sqlite3.connect(self._path, isolation_level=None)
        with contextlib.closing(db):
            try:
                lexical.prepare_check(db)
                db.execute("BEGIN")
            except sqlite3.DatabaseError as error:
                return str(error)
            return lexical.check(db)

    def _follow(self, change: Change) -> None:
        self.words.follow(change.rows, change.gone)
        if self._index is not None:
            self._index.remove(change.gone)
            _add(self._index, change.reused)

    def _load(self) -> None:
        if self._model is not None:
            self._index = vector_store.load(self._db, self._segments_folder, self._model, self._limits)


def is_index_damage(error: BaseException) -> bool:
    """Whether a search failed because the word index, which can be made anew, is damaged."""
    return isinstance(error, sqlite3.DatabaseError) and getattr(error, "sqlite_errorcode", None) in _CORRUPT


def _is_right(segment: Segment) -> bool:
    try:
        segment.check_rows(trio.from_thread.check_cancelled)
    except Damaged:
        return False
    return True


def _add(index: VectorIndex, stored: Sequence[Stored]) -> None:
    if stored:
        matrix = np.frombuffer(b"".join(each.vector for each in stored), dtype="<f2").astype(np.float32)
        index.add([each.item_id for each in stored], matrix.reshape(len(stored), -1))
