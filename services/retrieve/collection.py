"""One collection: its database, its vectors in memory, and the threads that work on them.

One writer at a time, several readers beside it, all in worker threads, so that the event loop answers pings whatever
a query costs. Vectors in memory change in the same thread right after the commit that they follow: what is committed
and what is searched never part for longer than that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import trio

from proto.errors import OperationError, Unavailable
from proto.ops.retrieve import CollectionStatus, Group, GroupIds
from services.retrieve import lexical, schema, store
from services.retrieve.filters import Where, allowed_items
from services.retrieve.live_vectors import LiveVectors
from services.retrieve.segmented import DEFAULT_LIMITS, Limits
from services.retrieve.store import Change, Found, Waiting
from services.retrieve.vectors import Matrix
from services.retrieve.word_index import FoundWords, WordIndex
from services.runtime.readers import Readers
from services.runtime.sqlite_files import let_pages_go, size_bytes

T = TypeVar("T")

_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CORRUPT | 1 << 8})
"""What FTS5 answers where its tables are damaged (the second is SQLITE_CORRUPT_VTAB)."""


CHECK_WAIT_S = 1.0
"""So long a search waits for FTS5 to be counted, or tantivy to be opened; then it answers from what there is, and says
so."""

CHECK_AFTER_S = 2.0
"""So long FTS5 is not counted while tantivy, which answers in its place, is being opened."""


SCRUB_WAIT_S = 30.0
"""For files that hold words, and for those that hold vectors, of what was deleted to go."""


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
        self._db = db
        self._read_turn = readers
        self._writer = trio.CapacityLimiter(1)
        self._readers = Readers(lambda: schema.open_reader(path))
        self.vectors = LiveVectors(path.with_suffix(".vectors"), limits, store.current_model(db))
        self._checker = trio.CapacityLimiter(1)
        self.waiting = store.count_waiting(db)
        self.outbox_trouble = ""
        """What the outbox failed by last time; empty where it works."""
        self.loaded = trio.Event()
        self.has_work = trio.Event()
        self.wants_tending = trio.Event()
        self._rebuilding = False
        self.words = WordIndex(path.with_suffix(".words"), large_words)
        self.words_changed = trio.Event()
        self.words_ready = trio.Event()
        """Whoever is asked for words has all of them, for all that is known."""
        self.words_settled = trio.Event()
        """It is known by now who is asked."""
        if large_words is None or not store.has_items(db, large_words):
            self.words_settled.set()
        self.words_wanted = trio.Event()
        """A call waits, or has waited, for words; likewise below."""
        self.vectors_wanted = trio.Event()
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
        return None if self.vectors.model is None else self.vectors.model.fingerprint

    @property
    def vectors_awaited(self) -> str:
        """How many pieces wait for their vectors, and what for where that is known; empty where none does."""
        if not self.waiting:
            return ""
        count = str(self.waiting) if len(self.vectors) else f"all {self.waiting}"
        trouble = f" ({self.outbox_trouble})" if self.outbox_trouble else ""
        return f"{count} pieces still wait for their vectors{trouble}"

    # Writing

    async def put(self, groups: Sequence[Group]) -> Change:
        """Set groups in one transaction; on disk and found by words when this returns.

        Cancellation: before the transaction nothing is done, after its start it is done as a whole.

        Raises:
            InvalidParams: a group or a key stands twice.
            OperationError: the disk is full or failing; nothing was changed.
        """
        store.check(groups)
        change = await self.write(lambda db: store.put(db, groups), self._follow)
        self.waiting = change.waiting
        if change.waiting:
            self.has_work.set()
        return change

    async def delete(self, ids: Sequence[str]) -> Change:
        """Remove groups in one transaction; found no more by any means when this returns."""
        change = await self.write(lambda db: store.delete(db, ids), self._follow)
        self.waiting = change.waiting
        return change

    async def scrub(self) -> None:
        """Leave nothing of what was deleted in any file: text, words or vectors.

        Raises:
            Unavailable: somebody still reads a state of before.
            OperationError: the disk fails.
        """
        await self.until_loaded()
        if not await self.vectors.scrub(self, lambda: self.wants_tending.set(), SCRUB_WAIT_S):
            raise Unavailable(f"the vectors of collection {self.name} are being written anew", retry_after_ms=500)
        await self.write(lexical.merge, lambda _: None)
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

        await self.write(
            lambda db: store.adopt_model(db, fingerprint, dimensions), lambda model: self.vectors.load(self._db, model)
        )
        await self.count_waiting()
        self.has_work.set()

    async def settle(self, fingerprint: str, done: Sequence[tuple[Waiting, bytes]]) -> int:
        """Keep vectors (float16 bytes) of that model; answers how many still had their item."""
        model = self.vectors.model
        if model is None or model.fingerprint != fingerprint:
            return 0
        kept = await self.write(
            lambda db: store.settle(db, model, done), lambda kept: self._follow(Change(reused=kept))
        )
        return len(kept)

    async def postpone(self, item: Waiting, until: float, error: str) -> None:
        """See `store.postpone`."""
        await self.write(lambda db: store.postpone(db, item, until, error), lambda _: None)
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
            await self.write(lexical.rebuild, lambda _: None)
        finally:
            self._rebuilding = False
        self.words.rebuilt()
        self.words_ready.set()

    async def load(self) -> None:
        """Bring the vectors into memory, after which `loaded` is set."""

        def load() -> None:
            self.vectors.load(self._db, self.vectors.model)
            # What it read is not read again; it would fill the writer's cache, and stay there.
            self._db.execute("PRAGMA shrink_memory")

        await self.exclusive(load)
        self.loaded.set()

    async def until_loaded(self) -> None:
        """Until the vectors are in memory."""
        self.vectors_wanted.set()
        await self.loaded.wait()

    async def check_words(self) -> str:
        """Look whether FTS5 is whole; answers what is wrong with it, for which it is to be rebuilt."""
        with trio.move_on_after(CHECK_AFTER_S):
            await self.words_settled.wait()
        await trio.to_thread.run_sync(self.words.check, self._path, limiter=self._checker)
        if not self.words.damage:
            self.words_ready.set()
        return self.words.damage

    # Reading

    async def trust_words(self) -> None:
        """Until all words are known to be there, so long at most as a search may wait for that."""
        self.words_wanted.set()
        if not self.words.trusted:
            with trio.move_on_after(CHECK_WAIT_S):
                await self.words_ready.wait()

    async def find_words(self, query: str, limit: int, where: Where | None) -> FoundWords:
        """Raises sqlite3.DatabaseError where the word index is damaged."""
        await self.trust_words()
        return await self._read(lambda db: self.words.search(db, query, limit, where))

    async def find_vectors(self, query: Matrix, limit: int, where: Where | None) -> list[tuple[int, float]]:
        """Item ids and cosines, best first.  Raises VectorsLoading."""
        return await self._read(
            lambda db: self.vectors.near(query, limit, None if where is None else allowed_items(db, where))
        )  # fmt: skip

    async def items(self, ids: Sequence[int], full: int | None = None) -> dict[int, Found]:
        """The items of these ids that are still there; all but the first `full` with their ids alone."""
        return await self._read(lambda db: store.items(db, ids, full))

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a worker thread on one snapshot of the database, which it must not change."""
        return await self._read(work)

    def read_here(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in the worker thread that calls this, each statement on a snapshot of its own."""
        with self._readers.one() as db:
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
        return CollectionStatus(
            collection=self.name,
            groups=groups,
            items=items,
            vectors=vectors,
            vectors_waiting=waiting,
            vectors_failed=failed,
            fingerprint=self.fingerprint,
            size_bytes=size_bytes(self._path) + self.vectors.size_bytes + self.words.size_bytes(),
            index=self.vectors.kind,
            words=self.words.kind,
        )

    # For whoever works beside searches

    async def tend(self) -> bool:
        """See `LiveVectors.tend`; `run_tending` calls this, one at a time."""
        return await self.vectors.tend(self)

    async def exclusive(self, work: Callable[[], T]) -> T:
        """Run `work`, which does not write, in the writer's thread."""
        return await trio.to_thread.run_sync(work, limiter=self._writer)

    async def give_back(self) -> None:
        """Let the pages go that the connections keep, and all connections that are there to read at the same time."""
        await trio.to_thread.run_sync(self._readers.give_back, limiter=self._read_turn)
        await trio.to_thread.run_sync(let_pages_go, self._db, limiter=self._writer)

    def close(self) -> None:
        """Close all connections; blocks for the last checkpoint."""
        self._readers.close()
        self._db.close()

    # In worker threads

    async def write(self, work: Callable[[sqlite3.Connection], T], follow: Callable[[T], None]) -> T:
        """Run `work` in one transaction, and right after it `follow`; on disk when this returns.

        Raises:
            OperationError: the disk is full or failing; nothing was changed.
        """

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
        if self.vectors.due:
            self.wants_tending.set()
        self.words_changed.set()
        return result

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def snapshot() -> T:
            with self._readers.one() as db:
                # One snapshot for all that the work reads.
                db.execute("BEGIN")
                try:
                    return work(db)
                finally:
                    db.execute("ROLLBACK")

        return await trio.to_thread.run_sync(snapshot, limiter=self._read_turn)

    def _follow(self, change: Change) -> None:
        self.words.follow(change.rows, change.gone)
        self.vectors.follow(change)


def is_index_damage(error: BaseException) -> bool:
    """Whether a search failed because the word index, which can be made anew, is damaged."""
    return isinstance(error, sqlite3.DatabaseError) and getattr(error, "sqlite_errorcode", None) in _CORRUPT
