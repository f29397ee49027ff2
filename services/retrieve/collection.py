"""One collection: what all stores share.  `LocalCollection` keeps it in files, `PostgresCollection` on a server."""

from __future__ import annotations

import abc
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import trio

from proto.errors import Unavailable
from proto.ops.embed import MODEL_MISSING
from proto.ops.retrieve import CollectionStatus, Filter, Group, Scrubbed
from proto.wire.frames import Backlog
from services.retrieve import item_store, vector_store
from services.retrieve.item_store import Change, ItemDetails
from services.retrieve.rate import Rate
from services.retrieve.store import FoundWords, SearchedVectors, Snapshot, Transaction
from services.retrieve.vector_store import Model, Waiting
from services.shared.outbox import Outbox

T = TypeVar("T")

_log = logging.getLogger("linckia.retrieve")

CLIENT_VECTORS = "given:"
"""Fingerprint prefix of vectors that the client supplies."""

MAX_PRIORITIZED = 256
"""Maximum number of groups whose vectors are made first; the most recently requested are kept."""


class Keeper(Protocol):
    """What a collection's background work needs of the service."""

    def report(self, collection: Collection, of: str, trouble: str) -> None:
        """Show `trouble` in the service's status; empty once it is over."""

    async def retry_when_full(self, collection: Collection, of: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work`, pausing while the disk is full."""

    async def wanted_or_calm(self, wanted: trio.Event) -> None:
        """Wait until a call needs it, or the rush after a restart is over."""


class Collection(abc.ABC):
    """An open collection.  The methods run on the event loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = ""
        """Identity of the data.  Item ids are valid only within one epoch."""
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
        self.ended = trio.Event()
        """Set once another object has replaced this one."""
        self.outbox: Outbox[Any] | None = None
        self.loaded = trio.Event()
        """Set once vectors can be searched."""
        self.leads = trio.Event()
        """Set once this kernel is the one that embeds what waits."""
        self.has_work = trio.Event()
        self.written_at = -math.inf
        """Trio time of the last write that added items to embed."""
        self.vectors_wanted = trio.Event()
        """Set once a call has waited for vectors."""
        self.changed: set[str] | None = None
        """Groups that this process changed while a migration copies the collection; None if none does."""
        self._frozen = False
        self._uses = 0
        self._idle = trio.lowlevel.ParkingLot()

    @property
    def was_recreated(self) -> bool:
        """Whether this object must be closed and a new one opened, because its data is elsewhere by now."""
        return self._frozen

    # Migration

    async def freeze(self) -> None:
        """Let calls end, and new ones wait for the collection's successor."""
        self._frozen = True
        while self._uses:
            await self._idle.park()

    async def changed_by_others(self) -> list[str]:
        """Return, and forget, the groups that other processes changed while a migration copies the collection."""
        await trio.lowlevel.checkpoint()
        return []

    @contextlib.asynccontextmanager
    async def _used(self) -> AsyncIterator[None]:
        if self._frozen:
            await self.ended.wait()
        if self._frozen:
            raise Unavailable(f"collection {self.name} has just moved", retry_after_ms=10)
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
            if not self._uses:
                self._idle.unpark_all()

    @property
    @abc.abstractmethod
    def model(self) -> Model | None:
        """The model whose vectors are searched; None before the first."""

    @property
    @abc.abstractmethod
    def vector_count(self) -> int:
        """How many vectors are searched, about."""

    @abc.abstractmethod
    def searched_vectors(self) -> SearchedVectors:
        """Return the vectors that a search compares with its query.  Raises VectorsLoading."""

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the model whose vectors are searched."""
        return None if self.model is None else self.model.fingerprint

    @property
    def has_client_vectors(self) -> bool:
        """Whether clients supply the vectors, so that nothing is embedded."""
        return (self.fingerprint or "").startswith(CLIENT_VECTORS)

    @property
    def no_model(self) -> str:
        """Why no vectors come, if that is because no model is installed; else empty."""
        failure = None if self.outbox is None else self.outbox.failure
        return failure.message if failure is not None and MODEL_MISSING in failure.data else ""

    @property
    def vectors_awaited(self) -> str:
        """How many pieces wait for their vectors, and why if that is known; empty if none do."""
        if not (lacking := self.progress.lacking):
            return ""
        if self.no_model:
            return f"{lacking} pieces have no vectors, which are unavailable: {self.no_model}"
        reason = f" ({self.outbox.waiting})" if self.outbox is not None and self.outbox.waiting else ""
        return f"{'' if self.vector_count else 'all '}{lacking} pieces are still waiting for vectors{reason}"

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

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in one transaction, in a worker thread.  On return it is on disk.

        Cancellation: before the transaction starts, nothing is done; after that it completes.

        Raises:
            DiskFull: nothing was changed.
            Unavailable: nothing was changed; it may be tried again.
        """
        async with self._used():
            return await self.write_frozen(work)

    @abc.abstractmethod
    async def write_frozen(self, work: Callable[[Transaction], T]) -> T:
        """Like `write`, also while the collection is frozen."""

    async def put(self, groups: Sequence[Group], admit: Callable[[Transaction], object] = lambda _: None) -> Change:
        """Store groups in one transaction, which `admit` may reject by raising.

        On return they are on disk and word searches find them.

        Cancellation: before the transaction starts, nothing is done; after that it completes.

        Raises:
            InvalidParams: a group id or key is repeated.
            DiskFull: nothing was changed.
        """
        item_store.check(groups)

        def put(store: Transaction) -> Change:
            admit(store)
            return store.put(groups)

        return await self._change(put, [group.id for group in groups])

    async def delete(self, ids: Sequence[str] | Callable[[Transaction], Sequence[str]]) -> Change:
        """Remove groups, optionally chosen inside the transaction.  On return no search finds them."""

        chosen: list[str] = []

        def delete(store: Transaction) -> Change:
            chosen[:] = ids(store) if callable(ids) else ids
            return store.delete(chosen)

        return await self._change(delete, chosen)

    async def settle(self, fingerprint: str, done: Sequence[tuple[Waiting, bytes]]) -> None:
        """Store vectors (float16 bytes) of the model `fingerprint`."""
        before = self.waiting
        await self._change(lambda store: store.settle(fingerprint, done))
        self.rate.add(max(0, before - self.waiting))

    async def _change(self, work: Callable[[Transaction], Change], ids: Sequence[str] = ()) -> Change:
        async with self._used():
            try:
                change = await self._apply(work)
            finally:
                # Not before: a migration would copy them without the change.
                if self.changed is not None:
                    self.changed.update(ids)
        before, self.progress = self.waiting, change.progress
        if self.waiting and (change.rows or self.waiting > before):
            if not before:
                self.rate.begin()
            self.written_at = trio.current_time()
            self.has_work.set()
        return change

    async def _apply(self, work: Callable[[Transaction], Change]) -> Change:
        """Run `work` in one transaction, and update what is in memory."""
        return await self.write_frozen(work)

    @abc.abstractmethod
    async def scrub(self) -> Scrubbed:
        """Purge deleted text, words and vectors from all files."""

    async def adopt(self, fingerprint: str, dimensions: int) -> None:
        """Start making vectors of this model for every item.  The existing vectors are searched until it is done."""
        if fingerprint == (self.fingerprint if self.coming is None else self.coming.fingerprint):
            return
        await self._adopt(fingerprint, dimensions)
        if self.coming is not None:
            _log.info(
                "%s: making vectors of %s; the vectors of %s are searched until they are complete",
                self.name,
                fingerprint,
                self.fingerprint,
            )
        self.rate.begin()
        self.has_work.set()

    @abc.abstractmethod
    async def _adopt(self, fingerprint: str, dimensions: int) -> None:
        """Store the model, and update `model`, `coming` and `progress`."""

    @abc.abstractmethod
    async def switch(self) -> None:
        """Switch to the coming model, whose vectors are complete."""

    @abc.abstractmethod
    async def filled(self) -> None:
        """Record that the corpus has finished refilling the collection."""

    @abc.abstractmethod
    async def rebuild_words(self) -> None:
        """Rebuild the word index from the text, unless a rebuild is already running."""

    @abc.abstractmethod
    async def maintain(self, keeper: Keeper) -> None:
        """Do the background work, until cancelled, and set `loaded`."""

    @abc.abstractmethod
    async def give_back(self) -> None:
        """Release memory while nothing is to be done."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close it.  Blocks."""

    async def until_loaded(self) -> None:
        """Wait until vectors can be searched."""
        self.vectors_wanted.set()
        await self.loaded.wait()

    # Reading

    async def read(self, work: Callable[[Snapshot], T]) -> T:
        """Run `work` in a worker thread on one snapshot."""
        async with self._used():
            return await self.read_frozen(work)

    @abc.abstractmethod
    async def read_frozen(self, work: Callable[[Snapshot], T]) -> T:
        """Like `read`, also while the collection is frozen."""

    @abc.abstractmethod
    async def version(self) -> object:
        """Return a value that changes with each commit."""

    async def find_words(
        self, query: str, limit: int, filters: Sequence[Filter],
        then: Callable[[Snapshot, FoundWords], object] = lambda store, found: None,
    ) -> FoundWords:  # fmt: skip
        """Search for words, then call `then` with the results on the same snapshot."""

        def find(store: Snapshot) -> FoundWords:
            found = store.find_words(query, limit, filters)
            then(store, found)
            return found

        return await self.read(find)

    async def items(self, ids: Sequence[int], full: int | None = None) -> dict[int, ItemDetails]:
        return await self.read(lambda store: store.items(ids, full))

    async def count_waiting(self) -> int:
        """Recount the items waiting for a vector and update `progress`."""
        self.progress = await self.read(lambda store: store.progress())
        return self.waiting

    async def status(self) -> CollectionStatus:
        """Return the collection's sizes and state."""
        groups, items, vectors, failed = await self.read(lambda store: store.counts())
        await self.count_waiting()
        size_bytes, index, words = await self._shape()
        return CollectionStatus(
            collection=self.name,
            groups=groups,
            items=items,
            vectors=vectors,
            # Vectors that are committed but not yet in memory still count as waiting.
            vectors_waiting=self.waiting + (max(0, vectors - self.vector_count) if self.loaded.is_set() else 0),
            vectors_failed=failed,
            backlog=self.backlog(),
            fingerprint=self.fingerprint,
            coming=None if self.coming is None else self.coming.fingerprint,
            no_model=self.no_model,
            size_bytes=size_bytes,
            index=index,
            words=words,
            epoch=self.epoch,
            degraded=[self.refilling] if self.refilling else [],
        )

    @abc.abstractmethod
    async def _shape(self) -> tuple[int, str, str]:
        """Return the bytes on disk, and the kinds of the indexes of vectors and of words."""
