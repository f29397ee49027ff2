"""One collection: its database, and its vectors in memory.

Vectors in memory change in the writer's thread right after the commit that they follow: what is committed and what is
searched never part for longer than that.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw
import trio

from linckia.proto.errors import OperationError, Unavailable
from linckia.proto.frames import Backlog
from linckia.proto.ops.retrieve import CollectionStatus, Group, Scrubbed
from linckia.services.retrieve import lexical, schema, store, vector_store
from linckia.services.retrieve.filters import Where
from linckia.services.retrieve.lexical import WordsDamaged
from linckia.services.retrieve.live_vectors import LiveVectors
from linckia.services.retrieve.rate import Rate
from linckia.services.retrieve.segment import DEFAULT_LIMITS, Limits
from linckia.services.retrieve.store import Change, Found
from linckia.services.retrieve.vector_store import Model, Waiting
from linckia.services.retrieve.word_index import FoundWords, WordIndex
from linckia.services.runtime.database import Database, Kind, beside
from linckia.services.runtime.outbox import Outbox

T = TypeVar("T")

_log = logging.getLogger("linckia.retrieve")

SCRUB_WAIT_S, CHECKPOINT_PAUSE_S = 30.0, 0.05
"""For files that hold words, and for those that hold vectors, of what was deleted to go; and for the log."""

GIVEN = "given:"
"""The fingerprint of vectors that are given begins so."""

MOST_HURRIED = 256
"""Groups whose vectors come before others'; of more, those that were asked for last."""


class Collection:
    """Opening blocks; the methods are for the event loop.

    A damaged database is begun again, under another epoch: this object then answers Unavailable (`begun_again`).

    Args:
        readers: of all collections.
        large_words: items from which tantivy is asked for words; None: never.
        on_rebuilt: called on trio's thread when the database was begun again.

    Raises:
        OperationError: the file cannot be opened, or the disk is full.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        readers: trio.CapacityLimiter,
        limits: Limits = DEFAULT_LIMITS,
        large_words: int | None = None,
        on_rebuilt: Callable[[], object] | None = None,
        kind: Kind = Kind.DERIVED,
    ) -> None:
        self.name = name
        path = folder / f"{name}.db"
        try:
            self._database = Database(
                path, schema.SCHEMA, kind=kind, readers=readers, pragmas=schema.PRAGMAS, on_rebuilt=on_rebuilt
            )
        except (apsw.Error, OSError) as error:
            raise OperationError(f"collection {name} cannot be opened: {error}") from error
        self.epoch = ""
        """Another one stands for another database: ids of this one mean nothing in it."""
        self.refilling = ""
        """Why the collection is not full; empty where it is, for all that is known."""
        self.progress = vector_store.NONE
        """How far the vectors are, by the last count."""
        self.coming: Model | None = None
        """The model whose vectors are being made, while those of another are searched."""
        self.rate = Rate()
        """At which these come."""
        self.hurried: dict[str, None] = {}
        """Groups that were asked for or found while pieces of them had no vector: theirs come first."""
        try:
            try:
                is_large, model = self._look(large_words)
            except Unavailable:
                # Damage was found just now, and the database begun again.
                is_large, model = self._look(large_words)
        except BaseException:
            self._database.close()
            raise
        self._generation = self._database.generation
        self.give_back, self.close = self._database.give_back, self._database.close
        self.ended = trio.Event()
        """Set once another object has taken the place of this one."""
        self.words = WordIndex(path, large_words, self.epoch, is_large=is_large)
        self._rebuilding = False
        self.vectors = LiveVectors(path.with_suffix(".vectors"), limits, model)
        self.outbox: Outbox[Any] | None = None
        self.loaded = trio.Event()
        self.has_work = trio.Event()
        self.vectors_wanted = trio.Event()
        """A call waits, or has waited, for vectors."""

    def _look(self, large_words: int | None) -> tuple[bool, Model | None]:
        """Learn what the database holds: whether so many items, and the model of its vectors."""
        # By the writer: a start need not wait for a reader.
        with self._database.transaction() as db:
            if not lexical.is_current(db):
                lexical.rebuild(db)
            self.epoch = store.meta(db, "epoch") or ""
            reason = store.meta(db, "refilling")
            self.refilling = f"collection {self.name} {reason}" if reason else ""
            self.progress, self.coming = vector_store.progress(db), vector_store.coming_model(db)
            return large_words is not None and store.has_items(db, large_words), vector_store.current_model(db)

    @property
    def begun_again(self) -> bool:
        """Whether the database was found damaged: this object is to be closed and another one opened in its place."""
        return self._database.generation != self._generation

    @property
    def version(self) -> int:
        """Rises with each commit."""
        return self._database.version

    @property
    def fingerprint(self) -> str | None:
        """Of the model whose vectors are searched."""
        return None if self.vectors.model is None else self.vectors.model.fingerprint

    @property
    def is_given(self) -> bool:
        """Whether its vectors are given, and none is made here."""
        return (self.fingerprint or "").startswith(GIVEN)

    @property
    def vectors_awaited(self) -> str:
        """How many pieces wait for their vectors, and what for where that is known; empty where none does."""
        if not (lacking := self.progress.lacking):
            return ""
        reason = f" ({self.outbox.waiting})" if self.outbox is not None and self.outbox.waiting else ""
        return f"{'' if len(self.vectors) else 'all '}{lacking} pieces still wait for their vectors{reason}"

    @property
    def becoming(self) -> str:
        """How far the vectors of another model are, after what keeps those there are from being compared."""
        return "" if self.coming is None else self.progress.towards(self.coming)

    def backlog(self) -> Backlog | None:
        """How far its vectors are; None where none is still to come, or that is not known yet."""
        waiting, made, _ = self.progress
        return self.rate.backlog(made, waiting) if waiting and self.loaded.is_set() else None

    def hurry(self, groups: Iterable[str]) -> None:
        """Have the vectors of these groups made before others'."""
        if self.waiting:
            for group in groups:
                self.hurried.pop(group, None)
                self.hurried[group] = None
            while len(self.hurried) > MOST_HURRIED:
                del self.hurried[next(iter(self.hurried))]

    @property
    def waiting(self) -> int:
        return self.progress.waiting

    # Writing

    async def put(self, groups: Sequence[Group], admit: Callable[[apsw.Connection], object] = lambda _: None) -> Change:
        """Set groups in one transaction, which `admit` may refuse; on disk and found by words when this returns.

        Cancellation: before the transaction nothing is done, after its start it is done as a whole.

        Raises:
            InvalidParams: a group or a key stands twice.
            DiskFull: nothing was changed.
        """
        store.check(groups)

        def put(db: apsw.Connection) -> Change:
            admit(db)
            return store.put(db, groups)

        return await self._change(put)

    async def delete(self, ids: Sequence[str] | Callable[[apsw.Connection], Sequence[str]]) -> Change:
        """Remove groups, perhaps chosen in that transaction; found no more by any means when this returns."""
        return await self._change(lambda db: store.delete(db, ids(db) if callable(ids) else ids))

    async def settle(self, fingerprint: str, done: Sequence[tuple[Waiting, bytes]]) -> None:
        """Keep vectors (float16 bytes) of that model."""
        before = self.waiting
        await self._change(lambda db: store.settle(db, fingerprint, done))
        self.rate.add(max(0, before - self.waiting))

    async def _change(self, work: Callable[[apsw.Connection], Change]) -> Change:
        change = await self.write(work, self._follow)
        before, self.progress = self.waiting, change.progress
        if self.waiting and (change.rows or self.waiting > before):
            if not before:
                self.rate.begin()
            self.has_work.set()
        return change

    async def scrub(self) -> Scrubbed:
        """Leave nothing of what was deleted in any file: text, words or vectors.

        Raises:
            Unavailable: an older state is still being read.
            DiskFull: what was to be rewritten is as it was.
        """
        await self.until_loaded()
        if not await self.vectors.scrub(self, SCRUB_WAIT_S):
            raise Unavailable(f"the vectors of collection {self.name} are being rewritten", retry_after_ms=500)
        await self.write(lexical.merge)
        with _in_time(f"the words of collection {self.name} are being read"):
            await self.words.scrub()
        for path in beside.damaged_files(self._database.path):
            path.unlink(missing_ok=True)
        with _in_time(f"collection {self.name} is being read"):
            # A reader still needs it; it ends, of which SQLite tells nothing.
            while not await self._database.checkpoint():  # noqa: ASYNC110
                await trio.sleep(CHECKPOINT_PAUSE_S)
        return Scrubbed()

    async def adopt(self, fingerprint: str, dimensions: int) -> None:
        """Have every item get a vector of this model; those of another one are searched until all are there."""
        if fingerprint == (self.fingerprint if self.coming is None else self.coming.fingerprint):
            return

        def adopt(db: apsw.Connection) -> apsw.Connection:
            vector_store.adopt_model(db, fingerprint, dimensions)
            return db

        await self.write(adopt, self.follow_models)
        if self.coming is not None:
            _log.info(
                "%s: vectors of %s are made; until then those of %s are searched",
                self.name,
                fingerprint,
                self.fingerprint,
            )
        self.rate.begin()
        self.has_work.set()

    def follow_models(self, db: apsw.Connection) -> None:
        """What was committed a moment ago of whose vectors there are; in the writer's thread."""
        self.coming, self.progress = vector_store.coming_model(db), vector_store.progress(db)
        if (model := vector_store.current_model(db)) != self.vectors.model:
            self.vectors.load(db, model)

    async def switch(self) -> None:
        """Search the vectors of the model that was coming: there are as many of them as there can be."""
        if self.coming is not None:
            await self.vectors.become(self, self.coming)

    async def filled(self) -> None:
        """The corpus has brought the collection in step with itself: it is no longer `refilling`."""
        if self.refilling:
            await self.write(lambda db: db.execute("DELETE FROM meta WHERE key = 'refilling'"))
            self.refilling = ""

    async def rebuild_words(self) -> None:
        """Rebuild the word index from the text, unless that is under way.

        Raises:
            Unavailable: more than the index is damaged.
            DiskFull: there is no room for it; the index is as it was.
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
        """Bring the vectors into memory, after which `loaded` is set."""

        def load(db: apsw.Connection) -> None:
            self.vectors.load(db, self.vectors.model)
            # What it read is not read again; it would fill the writer's cache, and stay there.
            db.execute("PRAGMA shrink_memory").fetchall()

        await self._database.exclusive(load)
        self.loaded.set()

    async def until_loaded(self) -> None:
        """Until the vectors are in memory."""
        self.vectors_wanted.set()
        await self.loaded.wait()

    # Reading

    async def find_words(
        self, query: str, limit: int, where: Where | None,
        then: Callable[[apsw.Connection, FoundWords], object] = lambda db, found: None,
    ) -> FoundWords:  # fmt: skip
        """`then` is called with them, on the same snapshot."""

        def find(db: apsw.Connection) -> FoundWords:
            found = self.words.search(db, query, limit, where)
            then(db, found)
            return found

        await self.words.trust()
        return await self.read(find)

    async def items(self, ids: Sequence[int], full: int | None = None) -> dict[int, Found]:
        return await self.read(lambda db: store.items(db, ids, full))

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` in a worker thread on one snapshot of the database, which it must not change."""
        return await self._database.read(self._of_this_epoch(work))

    def read_here(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` in the worker thread that calls this, each statement on a snapshot of its own."""
        with self._database.reader() as db:
            return self._of_this_epoch(work)(db)

    async def count_waiting(self) -> int:
        """Items whose vector is still to come; `progress` holds the last count."""
        self.progress = await self.read(vector_store.progress)
        return self.waiting

    async def status(self) -> CollectionStatus:
        """How much there is."""
        groups, items, vectors, failed = await self.read(store.counts)
        await self.count_waiting()
        return CollectionStatus(
            collection=self.name,
            groups=groups,
            items=items,
            vectors=vectors,
            # Those that were committed in this moment are searched in the next.
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
        """Run `work` in one transaction, and right after it `follow`; a damaged word index is rebuilt on the way.

        Raises:
            DiskFull: nothing was changed.
            Unavailable: the database was damaged, and is begun again.
        """
        try:
            return await self._transact(work, follow)
        except (WordsDamaged, apsw.CorruptError):
            # FTS5 may notice it in COMMIT only; of other damage the database makes Unavailable.
            await self.rebuild_words()
            return await self._transact(work, follow)

    async def _transact(self, work: Callable[[apsw.Connection], T], follow: Callable[[T], object] | None = None) -> T:
        result = await self._database.write(self._of_this_epoch(work), follow)
        self.vectors.changed()
        self.words.changed()
        return result

    def _of_this_epoch(self, work: Callable[[apsw.Connection], T]) -> Callable[[apsw.Connection], T]:
        """`work`, unless the database is another by then: what is in memory is not of that one."""

        def run(db: apsw.Connection) -> T:
            if self.begun_again:
                raise Unavailable(f"collection {self.name} was damaged and is being begun again", retry_after_ms=100)
            return work(db)

        return run

    def _follow(self, change: Change) -> None:
        self.words.follow(change.rows, change.gone)
        self.vectors.follow(change)


@contextlib.contextmanager
def _in_time(otherwise: str) -> Iterator[None]:
    with trio.move_on_after(SCRUB_WAIT_S) as waiting:
        yield
    if waiting.cancelled_caught:
        raise Unavailable(otherwise, retry_after_ms=500)
