"""One collection: its database and its in-memory indexes.

The writer thread updates the in-memory vectors right after each commit, so searches lag behind the database only for
that moment.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw
import trio

from linckia.proto.errors import OperationError, Unavailable
from linckia.proto.frames import Backlog
from linckia.proto.ops.retrieve import CollectionStatus, Group, Scrubbed
from linckia.services.retrieve import collection_schema, item_store, lexical, vector_store
from linckia.services.retrieve.filters import Where
from linckia.services.retrieve.item_store import Change, ItemDetails
from linckia.services.retrieve.lexical import WordsDamaged
from linckia.services.retrieve.live_vectors import LiveVectors
from linckia.services.retrieve.rate import Rate
from linckia.services.retrieve.segment import DEFAULT_LIMITS, VectorLimits
from linckia.services.retrieve.vector_store import Model, Waiting
from linckia.services.retrieve.word_index import FoundWords, WordIndex
from linckia.services.runtime.database import Database, Kind, copies
from linckia.services.runtime.outbox import Outbox

T = TypeVar("T")

_log = logging.getLogger("linckia.retrieve")

SCRUB_WAIT_S, CHECKPOINT_PAUSE_S = 30.0, 0.05
"""Time limit for each step of a scrub, and the pause between attempts to truncate the write-ahead log."""

CLIENT_VECTORS = "given:"
"""Fingerprint prefix of vectors that the client supplies."""

MAX_PRIORITIZED = 256
"""Maximum number of groups whose vectors are made first; the most recently requested are kept."""


class Collection:
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
        self.name = name
        path = folder / f"{name}.db"
        try:
            self._database = Database(
                path,
                collection_schema.SCHEMA,
                kind=kind,
                readers=readers,
                pragmas=collection_schema.PRAGMAS,
                on_rebuilt=on_rebuilt,
            )
        except (apsw.Error, OSError) as error:
            raise OperationError(f"collection {name} cannot be opened: {error}") from error
        self.epoch = ""
        """Identity of the database.  Item ids are valid only within one epoch."""
        self.refilling = ""
        """Why the collection is incomplete; empty if it is not known to be."""
        self.progress = vector_store.NO_PROGRESS
        """Embedding progress as of the last count."""
        self.coming: Model | None = None
        """The model whose vectors are being made while those of another are searched."""
        self.rate = Rate()
        """Throughput of new vectors."""
        self.prioritized: dict[str, None] = {}
        """Groups that were requested or found while some of their pieces had no vector.  They are embedded first."""
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
        self.give_back, self.close = self._database.give_back, self._database.close
        self.ended = trio.Event()
        """Set once another object has replaced this one."""
        self.words = WordIndex(path, large_words, self.epoch, is_large=is_large)
        self._rebuilding = False
        self.vectors = LiveVectors(path.with_suffix(".vectors"), limits, model)
        self.outbox: Outbox[Any] | None = None
        self.loaded = trio.Event()
        self.has_work = trio.Event()
        self.written_at = -math.inf
        """Trio time of the last write that added items to embed."""
        self.vectors_wanted = trio.Event()
        """Set once a call has waited for vectors."""

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
        return self._database.generation != self._generation

    @property
    def version(self) -> int:
        """A number that increases with each commit."""
        return self._database.version

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the model whose vectors are searched."""
        return None if self.vectors.model is None else self.vectors.model.fingerprint

    @property
    def has_client_vectors(self) -> bool:
        """Whether clients supply the vectors, so that nothing is embedded."""
        return (self.fingerprint or "").startswith(CLIENT_VECTORS)

    @property
    def vectors_awaited(self) -> str:
        """How many pieces wait for their vectors, and why if that is known; empty if none do."""
        if not (lacking := self.progress.lacking):
            return ""
        reason = f" ({self.outbox.waiting})" if self.outbox is not None and self.outbox.waiting else ""
        return f"{'' if len(self.vectors) else 'all '}{lacking} pieces are still waiting for vectors{reason}"

    @property
    def coming_progress(self) -> str:
        """Progress of the coming model's vectors, to append to an error message; empty if no model is coming."""
        return "" if self.coming is None else self.progress.towards(self.coming)

    def backlog(self) -> Backlog | None:
        """Embedding backlog; None if it is empty or not known yet."""
        waiting, made, _ = self.progress
        return self.rate.backlog(made, waiting) if waiting and self.loaded.is_set() else None

    def prioritize(self, groups: Iterable[str]) -> None:
        """Embed these groups before others."""
        if self.waiting:
            for group in groups:
                self.prioritized.pop(group, None)
                self.prioritized[group] = None
            while len(self.prioritized) > MAX_PRIORITIZED:
                del self.prioritized[next(iter(self.prioritized))]

    @property
    def waiting(self) -> int:
        return self.progress.waiting

    # Writing

    async def put(self, groups: Sequence[Group], admit: Callable[[apsw.Connection], object] = lambda _: None) -> Change:
        """Store groups in one transaction, which `admit` may reject by raising.

        On return they are on disk and word searches find them.

        Cancellation: before the transaction starts, nothing is done; after that it completes.

        Raises:
            InvalidParams: a group id or key is repeated.
            DiskFull: nothing was changed.
        """
        item_store.check(groups)

        def put(db: apsw.Connection) -> Change:
            admit(db)
            return item_store.put(db, groups)

        return await self._change(put)

    async def delete(self, ids: Sequence[str] | Callable[[apsw.Connection], Sequence[str]]) -> Change:
        """Remove groups, optionally chosen inside the transaction.  On return no search finds them."""
        return await self._change(lambda db: item_store.delete(db, ids(db) if callable(ids) else ids))

    async def settle(self, fingerprint: str, done: Sequence[tuple[Waiting, bytes]]) -> None:
        """Store vectors (float16 bytes) of the model `fingerprint`."""
        before = self.waiting
        await self._change(lambda db: item_store.settle(db, fingerprint, done))
        self.rate.add(max(0, before - self.waiting))

    async def _change(self, work: Callable[[apsw.Connection], Change]) -> Change:
        change = await self.write(work, self._follow)
        before, self.progress = self.waiting, change.progress
        if self.waiting and (change.rows or self.waiting > before):
            if not before:
                self.rate.begin()
            self.written_at = trio.current_time()
            self.has_work.set()
        return change

    async def scrub(self) -> Scrubbed:
        """Purge deleted text, words and vectors from all files.

        Raises:
            Unavailable: a reader still uses an older snapshot.
            DiskFull: the files to be rewritten are unchanged.
        """
        await self.until_loaded()
        if not await self.vectors.scrub(self, SCRUB_WAIT_S):
            raise Unavailable(f"the vectors of collection {self.name} are being rewritten", retry_after_ms=500)
        await self.write(lexical.merge)
        with _scrub_deadline(f"the words of collection {self.name} are being read"):
            await self.words.scrub()
        for path in copies.damaged_files(self._database.path):
            path.unlink(missing_ok=True)
        with _scrub_deadline(f"collection {self.name} is being read"):
            # A reader still needs the log, and SQLite does not notify us when it finishes.
            while not await self._database.checkpoint():  # noqa: ASYNC110
                await trio.sleep(CHECKPOINT_PAUSE_S)
        return Scrubbed()

    async def adopt(self, fingerprint: str, dimensions: int) -> None:
        """Start making vectors of this model for every item.  The existing vectors are searched until it is done."""
        if fingerprint == (self.fingerprint if self.coming is None else self.coming.fingerprint):
            return

        def adopt(db: apsw.Connection) -> apsw.Connection:
            vector_store.adopt_model(db, fingerprint, dimensions)
            return db

        await self.write(adopt, self.follow_models)
        if self.coming is not None:
            _log.info(
                "%s: making vectors of %s; the vectors of %s are searched until they are complete",
                self.name,
                fingerprint,
                self.fingerprint,
            )
        self.rate.begin()
        self.has_work.set()

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
        """SegmentRecord that the corpus has finished refilling the collection."""
        if self.refilling:
            await self.write(lambda db: db.execute("DELETE FROM meta WHERE key = 'refilling'"))
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
            readable = await self.read(lexical.is_readable)
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

    async def until_loaded(self) -> None:
        """Wait until the vectors are in memory."""
        self.vectors_wanted.set()
        await self.loaded.wait()

    # Reading

    async def find_words(
        self, query: str, limit: int, where: Where | None,
        then: Callable[[apsw.Connection, FoundWords], object] = lambda db, found: None,
    ) -> FoundWords:  # fmt: skip
        """Search for words, then call `then` with the results on the same snapshot."""

        def find(db: apsw.Connection) -> FoundWords:
            found = self.words.search(db, query, limit, where)
            then(db, found)
            return found

        await self.words.trust()
        return await self.read(find)

    async def items(self, ids: Sequence[int], full: int | None = None) -> dict[int, ItemDetails]:
        return await self.read(lambda db: item_store.items(db, ids, full))

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work`, which must not write, in a worker thread on one snapshot of the database."""
        return await self._database.read(self._of_this_epoch(work))

    def read_here(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` in the calling worker thread.  Each statement sees its own snapshot."""
        with self._database.reader() as db:
            return self._of_this_epoch(work)(db)

    async def count_waiting(self) -> int:
        """Recount the items waiting for a vector and update `progress`."""
        self.progress = await self.read(vector_store.progress)
        return self.waiting

    async def status(self) -> CollectionStatus:
        """Return the collection's sizes and state."""
        groups, items, vectors, failed = await self.read(item_store.counts)
        await self.count_waiting()
        return CollectionStatus(
            collection=self.name,
            groups=groups,
            items=items,
            vectors=vectors,
            # Vectors that are committed but not yet in memory still count as waiting.
            vectors_waiting=self.waiting + (max(0, vectors - len(self.vectors)) if self.loaded.is_set() else 0),
            vectors_failed=failed,
            backlog=self.backlog(),
            fingerprint=self.fingerprint,
            coming=None if self.coming is None else self.coming.fingerprint,
            size_bytes=self._database.size_bytes() + self.vectors.size_bytes + self.words.size_bytes(),
            index=self.vectors.kind,
            words=self.words.kind,
            epoch=self.epoch,
            degraded=[self.refilling] if self.refilling else [],
        )

    async def write(self, work: Callable[[apsw.Connection], T], follow: Callable[[T], object] | None = None) -> T:
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
            if self.was_recreated:
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
