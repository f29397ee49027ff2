"""Vectors of a collection of any size: a flat tail that takes every change, and segments for all that came before.

A search asks all of them and merges what they answer. Once the tail is long, or much of a segment has been struck out,
a *job* turns them into a new segment beside the searches and writes that go on; the switch to it is one assignment.
Whatever goes or changes while a job runs is noted, so that the new segment never brings it back.

Segments are merged by the logarithmic method (Bentley and Saxe, 1980): the tail takes along every segment that is no
larger than what it has gathered so far. Few segments are searched, and a vector is rewritten only so often as the
collection doubles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from services.retrieve import segment
from services.retrieve.segment import Limits, Mask, Record, Segment, Source
from services.retrieve.vectors import FlatIndex, HalfMatrix, ItemIds, Matrix, Scored, best_first

ReadVectors = Callable[[ItemIds], tuple[ItemIds, HalfMatrix]]
"""Those of the ids, sorted, that the database has a vector of, and the vectors."""

MAX_SEGMENTS = 12
"""Above it the smaller half is merged: each costs a search its own over-fetch."""

_REBUILT_AT_ONCE = 8
"""Of tails' worth: a large index is rebuilt in parts, each searched as soon as it is done."""


class Job(msgspec.Struct):
    """A new segment in the making: of `sources` where they are there already, of `wanted` from the database else."""

    segments: tuple[Segment, ...]
    sources: tuple[Source, ...]
    wanted: ItemIds
    portion: int
    """How many of those missing `wanted` stands for."""
    dissolve: bool
    """Few enough to go (back) into the tail."""
    gone: set[int] = msgspec.field(default_factory=set)
    """Removed or replaced since the job began."""
    condemned: bool = False
    """Whether the new segment is to be rewritten, should it hold any of `gone`."""


class Built(NamedTuple):
    """What a job came to: a segment, or vectors for the tail, or (everything was gone) neither."""

    opened: Segment | None
    loose: tuple[ItemIds, HalfMatrix] | None


class _State(NamedTuple):
    segments: tuple[Segment, ...]
    tail: FlatIndex


class SegmentedIndex:
    """Unit vectors by item id, of any number.

    `add`, `remove`, `begin`, `switch`, `abandon`, `drop` and `condemn` are the writer's: one at a time. Searches and
    `build` run beside them in any thread.

    Args:
        segments: opened, with what is gone struck out; `tail` holds the rest.
        missing: sorted ids whose vectors are in the database and not here yet.
    """

    def __init__(
        self,
        folder: Path,
        dimensions: int,
        limits: Limits,
        segments: Sequence[Segment] = (),
        tail: FlatIndex | None = None,
        missing: ItemIds | None = None,
    ) -> None:
        self._folder = folder
        self._dimensions = dimensions
        self._limits = limits
        # Read once by each search, replaced as a whole by a switch.
        self._state = _State(tuple(segments), tail or FlatIndex(dimensions))
        self._missing: ItemIds = np.empty(0, dtype=np.int64) if missing is None else missing
        self._job: Job | None = None
        self._condemned: frozenset[Segment] = frozenset()

    @property
    def kind(self) -> str:
        segments, tail = self._state
        if not segments:
            return "flat" if self.complete else "flat, rebuilding"
        return "rabitq" + ("+flat" if len(tail) else "") + ("" if self.complete else ", rebuilding")

    @property
    def dimensions(self) -> int:
        return self._dimensions

    @property
    def complete(self) -> bool:
        """Whether every vector of the database is searched."""
        return not len(self._missing)

    @property
    def missing(self) -> int:
        """Vectors of the database that are not searched yet."""
        return len(self._missing)

    @property
    def unchecked(self) -> tuple[Segment, ...]:
        """Segments of an earlier process whose rows were not compared with their checksum yet."""
        return tuple(each for each in self._state.segments if not each.checked)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._state.segments

    @property
    def size_bytes(self) -> int:
        """Of the segments' files."""
        return sum(each.size_bytes for each in self._state.segments)

    def __len__(self) -> int:
        segments, tail = self._state
        return len(tail) + sum(map(len, segments))

    def add(self, ids: Sequence[int], vectors: Matrix) -> None:
        self._strike(ids)
        self._state.tail.add(ids, vectors)

    def remove(self, ids: Sequence[int]) -> None:
        self._strike(ids)
        self._state.tail.remove(ids)

    def search(self, query: Matrix, limit: int, allowed: ItemIds | None) -> Scored:
        segments, tail = self._state
        found = dict(tail.search(query, limit, allowed))
        for each in segments:
            # An id that was replaced a moment ago may still be found in a segment as well.
            found = dict(each.search(query, limit, allowed, self._limits)) | found
        return best_first(list(found.items()), limit)

    def cosines(self, query: Matrix, ids: Sequence[int]) -> dict[int, float]:
        segments, tail = self._state
        wanted = np.asarray(ids, dtype=np.int64)
        found: dict[int, float] = {}
        for each in segments:
            found |= each.cosines(query, wanted)
        return found | tail.cosines(query, ids)

    # Jobs

    @property
    def due(self) -> bool:
        """Whether `begin` would find something to do."""
        return self._job is None and (not self.complete or self._overgrown() is not None)

    @property
    def condemned(self) -> bool:
        """Whether files still hold vectors that had gone when `condemn` was called last."""
        return bool(self._condemned) or (self._job is not None and self._job.condemned)

    def condemn(self) -> None:
        """Have segments that hold vectors that went rewritten by the next job, however few they are."""
        self._condemned |= {each for each in self._state.segments if each.struck}
        if self._job is not None:
            self._job.condemned = True

    def forget(self, removed: Sequence[Segment]) -> None:
        """The files of these are no more."""
        self._condemned -= set(removed)

    def begin(self) -> Job | None:
        """Take stock for the next job, where one is due; it ends by `switch` or `abandon`."""
        if self._job is not None:
            return None
        if len(self._missing):
            wanted = self._missing[: _REBUILT_AT_ONCE * self._limits.flat_vectors]
            self._job = Job((), (), wanted[~self._holds(wanted)], portion=len(wanted), dissolve=False)
        elif (chosen := self._overgrown()) is not None:
            ids, rows = self._state.tail.content()
            tail = Source(ids, rows.astype(np.float16), np.arange(len(ids)))
            sources = tuple(source for source in (tail, *(each.source() for each in chosen)) if len(source.ids))
            few = sum(len(source.ids) for source in sources) <= self._limits.flat_vectors // 2
            self._job = Job(chosen, sources, ids[:0], portion=0, dissolve=few)
        return self._job

    def build(self, job: Job, read: ReadVectors, checkpoint: Callable[[], None]) -> Built:
        """Do the job's work, in any thread; changes nothing that is searched.

        Raises:
            OSError: the disk is full or failing; nothing is left of it.
        """
        sources = job.sources
        if len(job.wanted):
            ids, rows = read(job.wanted)
            sources = (Source(ids, rows, np.arange(len(ids))),) if len(ids) else ()
        if not sources:
            return Built(None, None)
        if job.dissolve:
            ids = np.concatenate([source.ids for source in sources])
            return Built(None, (ids, np.concatenate([source.rows[source.at] for source in sources])))
        record = segment.write(self._folder, sources, self._dimensions, checkpoint)
        opened = Segment(self._folder, record, self._dimensions)
        opened.checked = True
        return Built(opened, None)

    def records_after(self, job: Job, built: Built) -> list[Record]:
        """What the database has to know of before `switch`."""
        return [each.record for each in self._segments_after(job, built)]

    def switch(self, job: Job, built: Built) -> None:
        """Search what was built in the place of what it was built of.

        The database knows already: a crash before this finds the same as one after it.
        """
        gone = np.fromiter(job.gone, dtype=np.int64, count=len(job.gone))
        taken = np.concatenate([job.wanted, *(source.ids for source in job.sources)])
        taken = taken[~np.isin(taken, gone)]
        ids, rows = self._state.tail.content()
        # What came or came back since then stays in the tail.
        stays = ~np.isin(ids, taken)
        tail = FlatIndex(self._dimensions)
        tail.add(ids[stays].tolist(), rows[stays])
        if built.loose is not None:
            ids, half = built.loose
            here = np.isin(ids, taken)
            tail.add(ids[here].tolist(), half[here].astype(np.float32))
        if built.opened is not None:
            built.opened.strike(gone)
            if job.condemned and built.opened.struck:
                self._condemned |= {built.opened}
        self._state = _State(self._segments_after(job, built), tail)
        self._missing = self._missing[job.portion :]
        self._job = None

    def abandon(self, job: Job) -> None:
        """Go on with what there is."""
        if self._job is job:
            self._job = None

    def drop(self, damaged: Segment) -> None:
        """Search this segment no more; what it held comes from the database, by the jobs that are due now."""
        segments, tail = self._state
        lost = damaged.source().ids
        self._state = _State(tuple(each for each in segments if each is not damaged), tail)
        self._missing = np.union1d(self._missing, lost)

    def _strike(self, ids: Sequence[int]) -> None:
        for each in self._state.segments:
            each.strike(ids)
        if (job := self._job) is not None:
            job.gone.update(ids)

    def _holds(self, ids: ItemIds) -> Mask:
        segments, tail = self._state
        held: Mask = np.isin(ids, tail.ids())
        for each in segments:
            held |= each.holds(ids)
        return held

    def _overgrown(self) -> tuple[Segment, ...] | None:
        """Segments to be rewritten together with the tail; None where all may stay as it is."""
        segments, tail = self._state
        chosen = [
            each
            for each in segments
            if each in self._condemned or each.struck > each.record.count * self._limits.struck_share
        ]
        if not chosen and len(tail) <= self._limits.flat_vectors and len(segments) <= MAX_SEGMENTS:
            return None
        if len(segments) > MAX_SEGMENTS:
            chosen += [each for each in sorted(segments, key=len)[: len(segments) // 2] if each not in chosen]
        total = len(tail) + sum(map(len, chosen))
        for each in sorted(segments, key=len):
            if each not in chosen and len(each) <= total:
                chosen.append(each)
                total += len(each)
        return tuple(chosen)

    def _segments_after(self, job: Job, built: Built) -> tuple[Segment, ...]:
        kept = tuple(each for each in self._state.segments if each not in job.segments)
        return kept if built.opened is None else (*kept, built.opened)
