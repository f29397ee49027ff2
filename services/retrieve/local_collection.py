"""A collection in files of this machine: its SQLite database and its in-memory indexes.

The writer thread updates the in-memory vectors right after each commit, so searches lag behind the database only for
that moment.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw
import trio

from proto.errors import OperationError, Unavailable
from proto.ops.retrieve import Filter, Scrubbed
from services.retrieve import collection_schema, item_store, vector_store
from services.retrieve.collection import Collection, Keeper
from services.retrieve.index import lexical
from services.retrieve.index.lexical import WordsDamaged
from services.retrieve.index.live_vectors import LiveVectors, VectorIndex
from services.retrieve.index.segment import DEFAULT_LIMITS, VectorLimits
from services.retrieve.index.word_index import WordIndex
from services.retrieve.item_store import Change
from services.retrieve.local_store import LocalStore
from services.retrieve.store import FoundWords, Snapshot, Transaction
from services.retrieve.vector_store import Model
from services.runtime.database import Database, Kind, copies

T = TypeVar("T")

_log = logging.getLogger("linckia.retrieve")

SCRUB_WAIT_S, CHECKPOINT_PAUSE_S = 30.0, 0.05
"""Time limit for each step of a scrub, and the pause between attempts to truncate the write-ahead log."""


class LocalCollection(Collection):
    """An open collection.  The constructor blocks; the methods run on the event loop.

    If the database turns out to be damaged, it is recreated under a new epoch. From then on (`was_recreated`) calls on
    this object raise Unavailable.

    Args:
        readers: limits concurrent reads across all collections.
        large_words: number of items from which tantivy answers word searches; None means never.
        on_rebuilt: called on the trio thread after the database was recreated.

    Raises:
        OperationError: the file cannot be opened, or the disk is full.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        readers: trio.CapacityLimiter,
        limits: VectorLimits = DEFAULT_LIMITS,
        large_words: int | None = None,
        on_rebuilt: Callable[[], object] | None = None,
        kind: Kind = Kind.DERIVED,
    ) -> None:
        super().__init__(name)
        path = folder / f"{name}.db"
        try:
            self._database = Database(
                path,
                collection_schema.SCHEMA,
                kind=kind,
                readers=readers,
                pragmas=collection_schema.PRAGMAS,
                on_rebuilt=on_rebuilt,
                keeps_keys=kind is Kind.SOURCE,
            )
        except (apsw.Error, OSError) as error:
            raise OperationError(f"collection {name} cannot be opened: {error}") from error
        try:
            try:
                is_large, model = self._look(large_words)
            except Unavailable:
                # The database was found damaged and has just been recreated.
                is_large, model = self._look(large_words)
        except BaseException:
            self._database.close()
            raise
        self._generation = self._database.generation
        self.words = WordIndex(path, large_words, self.epoch, is_large=is_large)
        self._rebuilding = False
        self.leads.set()
        self.vectors = LiveVectors(path.with_suffix(".vectors"), limits, model)

    def _look(self, large_words: int | None) -> tuple[bool, Model | None]:
        """Read the state of the database.

        Returns whether there are at least `large_words` items, and the model of the vectors.
        """
        # Uses the writer, so that startup does not wait for a reader.
        with self._database.transaction() as db:
            if not lexical.is_current(db):
                lexical.rebuild(db)
            self.epoch = item_store.meta(db, "epoch") or ""
            reason = item_store.meta(db, "refilling")
            self.refilling = f"collection {self.name} {reason}" if reason else ""
            self.progress, self.coming = vector_store.progress(db), vector_store.coming_model(db)
            return large_words is not None and item_store.has_items(db, large_words), vector_store.current_model(db)

    @property
    def was_recreated(self) -> bool:
        """Whether the database was recreated after damage.  This object must then be closed and a new one opened."""
        return self._frozen or self._is_another

    @property
    def _is_another(self) -> bool:
        return self._database.generation != self._generation

    @property
    def model(self) -> Model | None:
        return self.vectors.model

    @property
    def vector_count(self) -> int:
        return len(self.vectors)

    def searched_vectors(self) -> VectorIndex:
        return self.vectors.loaded()

    async def version(self) -> int:
        return self._database.version

    def close(self) -> None:
        self._database.close()

    async def give_back(self) -> None:
        await self._database.give_back()

    async def maintain(self, keeper: Keeper) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._maintain_words, keeper)
            await keeper.wanted_or_calm(self.vectors_wanted)
            await keeper.retry_when_full(self, "vectors", self.load)
            nursery.start_soon(self.vectors.maintain, self, partial(keeper.report, self, "index"))

    async def _maintain_words(self, keeper: Keeper) -> None:
        await keeper.wanted_or_calm(self.words.wanted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.words.maintain, self, partial(keeper.report, self, "words"))
            await keeper.retry_when_full(self, "words", self._check_words)

    async def _check_words(self) -> None:
        if damage := await self.words.check():
            _log.warning("rebuilding the word index of %s: %s", self.name, damage)
            await self.rebuild_words()

    # Writing

    async def write_frozen(self, work: Callable[[Transaction], T]) -> T:
        return await self.on_writer(lambda db: work(LocalStore(db, self.words)))

    async def _apply(self, work: Callable[[Transaction], Change]) -> Change:
        return await self.on_writer(lambda db: work(LocalStore(db, self.words)), self._follow)

    async def scrub(self) -> Scrubbed:
        """Purge deleted text, words and vectors from all files.

        Raises:
            Unavailable: a reader still uses an older snapshot.
            DiskFull: the files to be rewritten are unchanged.
        """
        await self.until_loaded()
        if not await self.vectors.scrub(self, SCRUB_WAIT_S):
            raise Unavailable(f"the vectors of collection {self.name} are being rewritten", retry_after_ms=500)
        await self.on_writer(lexical.merge)
        with _scrub_deadline(f"the words of collection {self.name} are being read"):
            await self.words.scrub()
        for path in copies.damaged_files(self._database.path):
            path.unlink(missing_ok=True)
        with _scrub_deadline(f"collection {self.name} is being read"):
            # A reader still needs the log, and SQLite does not notify us when it finishes.
            while not await self._database.checkpoint():  # noqa: ASYNC110
                await trio.sleep(CHECKPOINT_PAUSE_S)
        return Scrubbed()

    async def _adopt(self, fingerprint: str, dimensions: int) -> None:
        def adopt(db: apsw.Connection) -> apsw.Connection:
            vector_store.adopt_model(db, fingerprint, dimensions)
            return db

        await self.on_writer(adopt, self.follow_models)

    def follow_models(self, db: apsw.Connection) -> None:
        """Apply a committed change of models.  Runs in the writer thread."""
        self.coming, self.progress = vector_store.coming_model(db), vector_store.progress(db)
        if (model := vector_store.current_model(db)) != self.vectors.model:
            self.vectors.load(db, model)

    async def switch(self) -> None:
        """Switch to the coming model, whose vectors are complete."""
        if self.coming is not None:
            await self.vectors.switch_to(self, self.coming)

    async def filled(self) -> None:
        """Record that the corpus has finished refilling the collection."""
        if self.refilling:
            await self.on_writer(lambda db: db.execute("DELETE FROM meta WHERE key = 'refilling'"))
            self.refilling = ""

    async def rebuild_words(self) -> None:
        """Rebuild the word index from the text, unless a rebuild is already running.

        Raises:
            Unavailable: more than the index is damaged.
            DiskFull: there is no room; the index is unchanged.
        """
        if self._rebuilding:
            return
        self._rebuilding = True
        try:
            readable = await self.on_reader(lexical.is_readable)
            await self._transact(lambda db: lexical.rebuild(db, readable))
        finally:
            self._rebuilding = False
        self.words.rebuilt()

    async def load(self) -> None:
        """Load the vectors into memory and set `loaded`."""

        def load(db: apsw.Connection) -> None:
            self.vectors.load(db, self.vectors.model)
            # The pages just read are not needed again; free the writer's cache.
            db.execute("PRAGMA shrink_memory").fetchall()

        await self._database.exclusive(load)
        self.loaded.set()

    # Reading

    async def find_words(
        self, query: str, limit: int, filters: Sequence[Filter],
        then: Callable[[Snapshot, FoundWords], object] = lambda store, found: None,
    ) -> FoundWords:  # fmt: skip
        await self.words.trust()
        return await super().find_words(query, limit, filters, then)

    async def read_frozen(self, work: Callable[[Snapshot], T]) -> T:
        return await self.on_reader(lambda db: work(LocalStore(db, self.words)))

    async def on_reader(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work`, which must not write, in a worker thread on one snapshot of the database."""
        return await self._database.read(self._of_this_epoch(work))

    def read_here(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` in the calling worker thread.  Each statement sees its own snapshot."""
        with self._database.reader() as db:
            return self._of_this_epoch(work)(db)

    async def _shape(self) -> tuple[int, str, str]:
        size_bytes = self._database.size_bytes() + self.vectors.size_bytes + self.words.size_bytes()
        return size_bytes, self.vectors.kind, self.words.kind

    async def on_writer(self, work: Callable[[apsw.Connection], T], follow: Callable[[T], object] | None = None) -> T:
        """Run `work` in one transaction and `follow` right after it.  If the word index is damaged, rebuild and retry.

        Raises:
            DiskFull: nothing was changed.
            Unavailable: the database was damaged and has been recreated.
        """
        try:
            return await self._transact(work, follow)
        except (WordsDamaged, apsw.CorruptError):
            # FTS5 may notice damage only in COMMIT. The database turns other damage into Unavailable.
            await self.rebuild_words()
            return await self._transact(work, follow)

    async def _transact(self, work: Callable[[apsw.Connection], T], follow: Callable[[T], object] | None = None) -> T:
        result = await self._database.write(self._of_this_epoch(work), follow)
        self.vectors.changed()
        self.words.changed()
        return result

    def _of_this_epoch(self, work: Callable[[apsw.Connection], T]) -> Callable[[apsw.Connection], T]:
        """Wrap `work` to raise Unavailable if the database was recreated, as the state in memory is of the old one."""

        def run(db: apsw.Connection) -> T:
            if self._is_another:
                raise Unavailable(f"collection {self.name} was damaged and is being recreated", retry_after_ms=100)
            return work(db)

        return run

    def _follow(self, change: Change) -> None:
        self.words.follow(change.rows, change.gone)
        self.vectors.follow(change)


@contextlib.contextmanager
def _scrub_deadline(message: str) -> Iterator[None]:
    with trio.move_on_after(SCRUB_WAIT_S) as deadline:
        yield
    if deadline.cancelled_caught:
        raise Unavailable(message, retry_after_ms=500)
