"""The in-memory vectors of one open collection: an immutable segment, and a flat tail of the vectors added since.

The table `vectors` is authoritative. `meta` names the segment that belongs to it, so one commit switches both. Ids are
never reused and never change their text, so the changes since a segment was written are the difference of two sets of
ids. A segment that is missing, damaged or of another model is ignored, and its vectors are read from the database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np
import trio

from proto.errors import LinckiaError, Unavailable
from services.retrieve import vector_store
from services.retrieve.filters import select_ids
from services.retrieve.index import segment
from services.retrieve.index.segment import DEFAULT_LIMITS, Segment, SegmentDamaged, SegmentRecord, VectorLimits
from services.retrieve.index.vectors import FlatIndex, HalfMatrix, ItemIds, Matrix, Scored, best_first
from services.retrieve.item_store import Change, Indexed, meta
from services.retrieve.store import VectorsLoading
from services.retrieve.vector_store import Model, Stored

FORMAT = 2
"""Version of the record in `meta` and of the segment's files.  Segments of other versions are rebuilt."""

TAIL_SHARE = 0.125
"""The tail may grow to this share of the segment, or to `flat_vectors` if that is more.  A vector is then rewritten
eight times as its collection grows; searching a million takes 7 ms, and their tail 4 ms on average."""

RETRY_S = 30.0

_KEY = "segments"
_AT_ONCE = 16_384


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The record of the current segment in `meta`."""

    format: int
    fingerprint: str
    segment: SegmentRecord | None


class VectorIndex:
    """Unit vectors of one model by item id.  The writer calls `add` and `remove`; searches may run concurrently."""

    def __init__(self, model: Model, part: Segment | None, tail: FlatIndex, limits: VectorLimits) -> None:
        self._limits = limits
        self.model = model
        self.segment = part
        self.tail = tail

    def __len__(self) -> int:
        return len(self.tail) + (0 if self.segment is None else len(self.segment))

    def add(self, stored: Sequence[Stored]) -> None:
        if stored:
            ids = [each.item_id for each in stored]
            self.remove(ids)
            matrix = np.frombuffer(b"".join(each.vector for each in stored), dtype="<f2").astype(np.float32)
            self.tail.add(ids, matrix.reshape(len(stored), -1))

    def remove(self, ids: Sequence[int]) -> None:
        if self.segment is not None:
            self.segment.strike(ids)
        self.tail.remove(ids)

    def nearest(self, query: Matrix, limit: int, allowed: ItemIds | None) -> Scored:
        """Return item ids and cosines, best first, limited to `allowed` if given."""
        found = dict(self.tail.search(query, limit, allowed))
        if self.segment is not None:
            found = dict(self.segment.search(query, limit, allowed, self._limits)) | found
        return best_first(list(found.items()), limit)

    def cosines(self, query: Matrix, ids: Sequence[int]) -> dict[int, float]:
        """Return the cosines of those of `ids` that have a vector."""
        found = {} if self.segment is None else self.segment.cosines(query, np.asarray(ids, dtype=np.int64))
        return found | self.tail.cosines(query, ids)

    @property
    def is_outgrown(self) -> bool:
        """Whether a new segment should replace this one."""
        limits = self._limits
        count, struck = (0, 0) if self.segment is None else (self.segment.record.count, self.segment.struck)
        longest = max(limits.flat_vectors, int(count * TAIL_SHARE))
        return len(self.tail) > longest or struck > count * limits.struck_share


NO_VECTORS = VectorIndex(Model(0, "", 1), None, FlatIndex(1), DEFAULT_LIMITS)


class LiveVectors:
    """The vectors of a collection.  `load` and `follow` block and run in the writer thread; any thread may search.

    Args:
        folder: holds the segments.
        model: the model of the stored vectors; None before the first.
    """

    def __init__(self, folder: Path, limits: VectorLimits, model: Model | None) -> None:
        self._folder = folder
        self._limits = limits
        self.model = model
        self.index: VectorIndex | None = None
        self._tender = trio.CapacityLimiter(1)
        self._turn = trio.Lock()
        self._wanted = trio.Event()

    def __len__(self) -> int:
        return 0 if self.index is None else len(self.index)

    @property
    def kind(self) -> str:
        """The kind of index, for `status`."""
        if (index := self.index) is None:
            return "none"
        return "flat" if index.segment is None else "rabitq+flat" if len(index.tail) else "rabitq"

    @property
    def size_bytes(self) -> int:
        """The size of the segment's files."""
        return 0 if self.index is None or self.index.segment is None else self.index.segment.size_bytes

    def load(self, db: apsw.Connection, model: Model | None, built: Segment | None = None) -> None:
        """Load the vectors of `model` into memory, replacing all others.  Takes a second per million.

        Vectors outside any segment are compared one by one until `write_due_segment` has written one.

        Args:
            built: the segment just written; if None, the saved one is used.
        """
        self.model = model
        if model is None:
            self.index = None
            return
        part = built or self._open_saved(db, model)
        segment.remove_others(self._folder, None if part is None else part.record.name)
        rest = ids = _vector_ids(db)
        if part is not None:
            part.strike(np.setdiff1d(part.ids, ids, assume_unique=True))
            rest = ids[~part.holds(ids)]
        tail = FlatIndex(model.dimensions, len(rest))
        for start in range(0, len(rest), _AT_ONCE):
            found, rows = _vectors_by_id(db, model, rest[start : start + _AT_ONCE])
            tail.add(found.tolist(), rows.astype(np.float32))
        self.index = VectorIndex(model, part, tail, self._limits)

    def follow(self, change: Change) -> None:
        """Apply a change that was just committed."""
        if self.index is not None:
            self.index.remove(change.gone)
            self.index.add(change.stored)

    def loaded(self) -> VectorIndex:
        """Return the current index, which stays usable for a whole search.  Raises VectorsLoading."""
        if self.index is None:
            raise VectorsLoading
        return self.index

    # Maintenance, concurrent with searches and writes

    def changed(self) -> None:
        """Notice a commit.  Runs on the trio thread."""
        if self.index is not None and self.index.is_outgrown:
            self._wanted.set()

    async def maintain(self, collection: Indexed, report: Callable[[str], None], *, retry_s: float = RETRY_S) -> None:
        """Write new segments as they become due, until cancelled.

        Searches do not depend on this: if it fails (a full disk), results stay the same.

        Cancellation: an unfinished segment is discarded, and its files are removed now or at the next start.

        Args:
            report: called with the error that prevents writing, and with an empty string on success.
        """
        while True:
            self._wanted = trio.Event()
            try:
                while await self.write_due_segment(collection):
                    pass
            except (OSError, SegmentDamaged, apsw.Error, LinckiaError) as error:
                report(str(error))
                await trio.sleep(retry_s)
                continue
            report("")
            await self._wanted.wait()

    async def write_due_segment(self, collection: Indexed) -> bool:
        """Write a new segment if one is due.  Returns whether it was.  Raises the errors that `maintain` reports."""
        async with self._turn:
            if (index := self.index) is None or not index.is_outgrown:
                return False
            await self._rebuild(collection, index)
        return True

    async def scrub(self, collection: Indexed, wait_s: float) -> bool:
        """Rewrite the segment if it holds removed vectors.

        Returns whether no file holds any; False if that takes longer than `wait_s`.
        """
        with trio.move_on_after(wait_s):
            async with self._turn:
                if (index := self.index) is not None and index.segment is not None and index.segment.struck:
                    await self._rebuild(collection, index)
            return True
        return False

    async def _rebuild(self, collection: Indexed, index: VectorIndex) -> None:
        built = await self._built(collection, index.model, vector_store.VECTORS)
        # Only if no other model was adopted in the meantime.
        await self._switch(collection, index.model, built, lambda db: self.index is index)

    async def switch_to(self, collection: Indexed, model: Model) -> None:
        """Switch to the vectors of the coming model in one commit, if it is still `model`.

        Raises:
            Unavailable: the disk is full or failing; the previous vectors stay in use.
        """
        async with self._turn:
            try:
                built = await self._built(collection, model, vector_store.COMING)
            except (OSError, SegmentDamaged) as error:
                raise Unavailable(f"the index of the new vectors cannot be written: {error}") from error
            await self._switch(collection, model, built, lambda db: vector_store.switch(db, model))

    async def _built(self, collection: Indexed, model: Model, table: str) -> Segment | None:
        return await trio.to_thread.run_sync(self._build, collection, model, table, limiter=self._tender)

    async def _switch(
        self, collection: Indexed, model: Model, built: Segment | None, admit: Callable[[apsw.Connection], bool]
    ) -> None:
        """Replace the searched vectors by `built` and all vectors added since, if `admit` returns True."""

        def save(db: apsw.Connection) -> apsw.Connection | None:
            if not admit(db):
                return None
            record = None if built is None else built.record
            saved = _Saved(format=FORMAT, fingerprint=model.fingerprint, segment=record)
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_KEY, msgspec.json.encode(saved).decode()))
            return db

        def follow(db: apsw.Connection | None) -> None:
            if db is not None:
                self.load(db, model, built)
                collection.follow_models(db)

        try:
            await collection.on_writer(save, follow)
        finally:
            if built is not None and (self.index is None or self.index.segment is not built):
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(built.remove_files, limiter=self._tender)

    def _build(self, collection: Indexed, model: Model, table: str) -> Segment | None:
        """Build a segment of all vectors in `table`; None if there are few.

        This does not use a single transaction, because a long one keeps the write-ahead log from being truncated.
        """
        ids = collection.read_here(partial(_vector_ids, table=table))
        if len(ids) <= self._limits.flat_vectors // 2:
            return None

        def read(some: ItemIds) -> tuple[ItemIds, HalfMatrix]:
            return collection.read_here(lambda db: _vectors_by_id(db, model, some, table))

        record = segment.write(self._folder, ids, read, model.dimensions, trio.from_thread.check_cancelled)
        return None if record is None else Segment(self._folder, record, model.dimensions)

    def _open_saved(self, db: apsw.Connection, model: Model) -> Segment | None:
        try:
            saved = msgspec.json.decode(meta(db, _KEY) or "", type=_Saved)
            if saved.segment is not None and (saved.format, saved.fingerprint) == (FORMAT, model.fingerprint):
                return Segment(self._folder, saved.segment, model.dimensions)
        except (msgspec.DecodeError, SegmentDamaged):
            pass
        return None


def _vector_ids(db: apsw.Connection, table: str = vector_store.VECTORS) -> ItemIds:
    """Return the ids that have a vector in `table`, sorted."""
    return select_ids(db, f"SELECT item_id FROM {table}")


def _vectors_by_id(
    db: apsw.Connection, model: Model, ids: ItemIds, table: str = vector_store.VECTORS
) -> tuple[ItemIds, HalfMatrix]:
    """Return those of `ids` (sorted) that have a vector of `model` in `table`, and the vectors."""
    query = (
        f"SELECT item_id, vector FROM {table} WHERE item_id IN (SELECT value FROM json_each(?)) AND +model_id = ? "
        "ORDER BY item_id"
    )
    rows: list[Any] = db.execute(query, (json.dumps(ids.tolist()), model.model_id)).fetchall()
    matrix: HalfMatrix = np.frombuffer(b"".join(row[1] for row in rows), dtype="<f2")
    return np.array([row[0] for row in rows], dtype=np.int64), matrix.reshape(len(rows), model.dimensions)
