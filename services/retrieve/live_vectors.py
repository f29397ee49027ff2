"""The vectors of one open collection: loaded from its database, changed right after each commit, kept in shape.

Searches read them at any time. Beside them `tend` repairs a damaged segment, and compacts what has grown too long; the
database knows of a new segment before it is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import numpy as np
import trio

from services.retrieve import vector_store
from services.retrieve.segment import Damaged, Limits, Segment
from services.retrieve.segmented import Built, Job, SegmentedIndex
from services.retrieve.store import Change, Model, Stored
from services.retrieve.vectors import HalfMatrix, ItemIds, Matrix

if TYPE_CHECKING:
    from services.retrieve.collection import Collection


class VectorsLoading(Exception):
    """The vectors are still being read from the collection."""


class LiveVectors:
    """`load` and `follow` are the writer's thread's, `near` and `cosines` anybody's; all of them block.

    Args:
        folder: of the segments.
        model: whose vectors the collection has; None before the first.
    """

    def __init__(self, folder: Path, limits: Limits, model: Model | None) -> None:
        self._folder = folder
        self._limits = limits
        self.model = model
        self.index: SegmentedIndex | None = None
        self._tender = trio.CapacityLimiter(1)
        self._tended = trio.Event()

    def __len__(self) -> int:
        return 0 if self.index is None else len(self.index)

    @property
    def kind(self) -> str:
        """For `status`."""
        return "none" if self.index is None else self.index.kind

    @property
    def size_bytes(self) -> int:
        """Of the segments' files."""
        return 0 if self.index is None else self.index.size_bytes

    @property
    def due(self) -> bool:
        """Whether `tend` would find something to do."""
        return self.index is not None and self.index.due

    @property
    def behind(self) -> str:
        """Why a search by vectors may not be all that it should be; empty where it is."""
        if (index := self.index) is None:
            return ""
        if index.missing:
            total = index.missing + len(index)
            return f"{index.missing} of {total} vectors are not searched yet, the index is being rebuilt"
        return "the saved index is still being checked" if index.unchecked else ""

    def load(self, db: apsw.Connection, model: Model | None) -> None:
        """Bring the vectors of `model` into memory, in the place of any other's."""
        index = None if model is None else vector_store.load(db, self._folder, model, self._limits)
        self.model, self.index = model, index

    def follow(self, change: Change) -> None:
        """What was committed a moment ago."""
        if self.index is not None:
            self.index.remove(change.gone)
            _add(self.index, change.reused)

    def near(self, query: Matrix, limit: int, allowed: ItemIds | None) -> list[tuple[int, float]]:
        """Item ids (among `allowed`, where given) and cosines, best first.  Raises VectorsLoading."""
        if (index := self.index) is None:
            if self.model is not None:
                raise VectorsLoading
            return []
        return index.search(query, limit, allowed)

    def cosines(self, query: Matrix, ids: Sequence[int]) -> dict[int, float]:
        """Cosines of those of `ids` that have a vector."""
        index = self.index
        return {} if index is None or not ids else index.cosines(query, ids)

    async def tend(self, collection: Collection) -> bool:
        """Check, rebuild or compact a part, if need be; whether there was need.  One call at a time.

        Cancellation: what was built is given up.

        Raises:
            OSError, LinckiaError: the disk is full or failing; all is searched as before.
        """
        try:
            return await self._tend(collection)
        finally:
            self._tended.set()
            self._tended = trio.Event()

    async def scrub(self, collection: Collection, ask: Callable[[], None], wait_s: float) -> bool:
        """Have `tend`, which `ask` asks for, rewrite the files that hold vectors that went.

        Answers whether no file holds one any more, after `wait_s` at most.
        """
        if (index := self.index) is None:
            return True
        await collection.exclusive(index.condemn)
        with trio.move_on_after(wait_s):
            while index.condemned and self.index is index:
                tended = self._tended
                ask()
                await tended.wait()
        return not (index.condemned and self.index is index)

    async def _tend(self, collection: Collection) -> bool:
        index = self.index
        if index is None:
            return False
        for segment in index.unchecked:
            if not await trio.to_thread.run_sync(_is_right, segment, limiter=self._tender):
                await collection.exclusive(partial(index.drop, segment))
                await trio.to_thread.run_sync(segment.remove_files, limiter=self._tender)
                await collection.exclusive(partial(index.forget, (segment,)))
            return True
        job = await collection.exclusive(index.begin)
        if job is None:
            return False
        try:
            built = await trio.to_thread.run_sync(self._build, collection, index, job, limiter=self._tender)
            await self._switch(collection, index, job, built)
        except OSError:
            # Another model was adopted meanwhile, and the files of this one were cleared away.
            if self.index is index:
                raise
        finally:
            index.abandon(job)
        return True

    def _build(self, collection: Collection, index: SegmentedIndex, job: Job) -> Built:
        def read(ids: ItemIds) -> tuple[ItemIds, HalfMatrix]:
            # No transaction around it all: one that lasts keeps the log from being cut, and what changes is noted.
            model = self.model
            if model is None or model.dimensions != index.dimensions:
                # Another one is being adopted; what is built now will not be taken.
                return ids[:0], np.empty((0, index.dimensions), np.float16)
            return collection.read_here(lambda db: vector_store.vectors_by_id(db, model, ids))

        return index.build(job, read, trio.from_thread.check_cancelled)

    async def _switch(self, collection: Collection, index: SegmentedIndex, job: Job, built: Built) -> None:
        def save(db: apsw.Connection) -> bool:
            if self.index is not index or self.model is None:
                return False
            vector_store.save(db, self.model, index.records_after(job, built))
            return True

        def follow(saved: bool) -> None:
            if saved:
                index.switch(job, built)

        unused: Sequence[Segment] = () if built.opened is None else (built.opened,)
        try:
            if await collection.write(save, follow):
                unused = job.segments
        finally:
            with trio.CancelScope(shield=True):
                for segment in unused:
                    await trio.to_thread.run_sync(segment.remove_files, limiter=self._tender)
                await collection.exclusive(partial(index.forget, unused))


def _is_right(segment: Segment) -> bool:
    try:
        segment.check_rows(trio.from_thread.check_cancelled)
    except Damaged:
        return False
    return True


def _add(index: SegmentedIndex, stored: Sequence[Stored]) -> None:
    if stored:
        matrix = np.frombuffer(b"".join(each.vector for each in stored), dtype="<f2").astype(np.float32)
        index.add([each.item_id for each in stored], matrix.reshape(len(stored), -1))
