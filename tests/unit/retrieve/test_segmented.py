"""Whatever was added, removed, compacted, given up, damaged and opened again, and in whatever order: a search finds
what a comparison with every vector finds, and nothing that is gone."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.retrieve.segment import Damaged, Limits, Segment
from services.retrieve.segmented import MAX_SEGMENTS, Built, Job, SegmentedIndex
from services.retrieve.vectors import FlatIndex, HalfMatrix, ItemIds, Matrix
from tests.unit.retrieve.vectors_rig import TINY, assert_nearest, half, query

D = 8

some_ids = st.lists(st.integers(0, 120), min_size=1, max_size=25, unique=True)


def nothing() -> None:
    pass


def nothing_to_read(ids: ItemIds) -> tuple[ItemIds, HalfMatrix]:
    return ids[:0], half(0, 0, D)


class Machine(RuleBasedStateMachine):
    """The index, beside a dictionary that stands for the database."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.index = SegmentedIndex(self.folder, D, TINY)
        self.rows: dict[int, Matrix] = {}
        self.saved = list(self.index.segments)
        self.job: Job | None = None
        self.built: Built | None = None
        self.seed = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @rule(ids=some_ids)
    def add(self, ids: list[int]) -> None:
        self.seed += 1
        rows = half(self.seed, len(ids), D).astype(np.float32)
        self.rows.update(zip(ids, rows, strict=True))
        self.index.add(ids, rows)

    @rule(ids=some_ids)
    def remove(self, ids: list[int]) -> None:
        for item_id in ids:
            self.rows.pop(item_id, None)
        self.index.remove(ids)

    @precondition(lambda self: self.job is None)
    @rule()
    def begin(self) -> None:
        due = self.index.due
        self.job = self.index.begin()
        assert due == (self.job is not None)

    @precondition(lambda self: self.job is not None and self.built is None)
    @rule()
    def build(self) -> None:
        assert self.job is not None
        self.built = self.index.build(self.job, self.read, nothing)

    @precondition(lambda self: self.built is not None)
    @rule()
    def switch(self) -> None:
        assert self.job is not None
        assert self.built is not None
        self.index.switch(self.job, self.built)
        self.job = self.built = None

    @precondition(lambda self: self.job is None and self.index.due)
    @rule(added=some_ids, removed=some_ids)
    def change_during_a_job(self, added: list[int], removed: list[int]) -> None:
        self.begin()
        self.add(added)
        self.build()
        self.remove(removed)
        self.add(added[::2])
        self.finds_what_is_there()
        self.switch()

    @precondition(lambda self: self.job is not None)
    @rule()
    def give_up(self) -> None:
        assert self.job is not None
        self.index.abandon(self.job)
        self.job = self.built = None

    @rule(damage=st.booleans())
    def open_again(self, damage: bool) -> None:
        """As `vector_store.load` does it: what is in the files and gone is struck out, the rest is in the tail, or
        missing where it is much."""
        self.job = self.built = None
        opened: list[Segment] = []
        for number, each in enumerate(self.index.segments):
            if not (damage and number == 0):
                again = Segment(self.folder, each.record, D)
                # In this test ids are put anew with other vectors, which the database never does.
                again.strike([i for i in each._ids.tolist() if i not in each.source().ids])
                opened.append(again)
        ids = np.array(sorted(self.rows), dtype=np.int64)
        rest = [i for i in ids.tolist() if not any(i in each.source().ids for each in opened)]
        tail = FlatIndex(D)
        missing = None
        if len(rest) > TINY.flat_vectors:
            missing = np.array(rest, dtype=np.int64)
        elif rest:
            tail.add(rest, np.stack([self.rows[i] for i in rest]))
        self.index = SegmentedIndex(self.folder, D, TINY, opened, tail, missing)

    @precondition(lambda self: self.job is None and self.index.segments)
    @rule()
    def find_damage(self) -> None:
        self.index.drop(self.index.segments[0])

    @invariant()
    def finds_what_is_there(self) -> None:
        if not hasattr(self, "index"):
            return
        asked = query(10**6 + self.seed, D)
        there = self.rows
        if not self.index.complete:
            lost = set(self.index._missing.tolist())
            there = {i: row for i, row in self.rows.items() if i not in lost or i in self.index.cosines(asked, [i])}
        assert len(self.index) == len(there)
        for limit in (1, 7, 200):
            assert_nearest(self.index.search(asked, limit, None), there, asked, limit)
        allowed = np.arange(0, 121, 3)
        assert_nearest(self.index.search(asked, 7, allowed), there, asked, 7, allowed)
        cosines = self.index.cosines(asked, list(range(121)))
        assert cosines.keys() == there.keys()
        assert all(abs(cosines[i] - float(row @ asked)) < 1e-4 for i, row in there.items())

    def read(self, ids: ItemIds) -> tuple[ItemIds, HalfMatrix]:
        found = [i for i in ids.tolist() if i in self.rows]
        rows = np.array([self.rows[i] for i in found], dtype=np.float16).reshape(len(found), D)
        return np.array(found, dtype=np.int64), rows


Machine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestSegmentedIndex = Machine.TestCase


def tend(index: SegmentedIndex) -> None:
    """Do all that is due."""
    while (job := index.begin()) is not None:
        index.switch(job, index.build(job, nothing_to_read, nothing))


@pytest.mark.slow
def test_segments_stay_few_and_each_vector_is_rewritten_rarely(tmp_path: Path) -> None:
    index = SegmentedIndex(tmp_path, D, TINY)
    written = 0
    for start in range(0, 1800, 9):
        index.add(range(start, start + 9), half(start, 9, D).astype(np.float32))
        before = set(index.segments)
        tend(index)
        written += sum(each.record.count for each in set(index.segments) - before)
    assert len(index) == 1800
    assert len(index.segments) <= MAX_SEGMENTS
    assert written < 1800 * 12


def test_an_index_that_shrinks_is_flat_again(tmp_path: Path) -> None:
    index = SegmentedIndex(tmp_path, D, TINY)
    assert (index.kind, len(index)) == ("flat", 0)
    index.add(range(100), half(1, 100, D).astype(np.float32))
    tend(index)
    assert (index.kind, len(index)) == ("rabitq", 100)
    index.add([200], half(2, 1, D).astype(np.float32))
    assert (index.kind, len(index)) == ("rabitq+flat", 101)
    index.remove(range(98))
    tend(index)
    assert (index.kind, index.segments, len(index)) == ("flat", (), 3)
    index.remove(range(300))
    assert (index.kind, len(index)) == ("flat", 0)


def test_a_segment_of_which_all_went_is_given_up(tmp_path: Path) -> None:
    index = SegmentedIndex(tmp_path, D, TINY)
    index.add(range(100), half(1, 100, D).astype(np.float32))
    tend(index)
    index.remove(range(100))
    assert index.search(query(1, D), 5, None) == []
    tend(index)
    assert (index.kind, index.size_bytes) == ("flat", 0)


def test_what_came_back_during_a_job_is_found_as_it_is_now(tmp_path: Path) -> None:
    index = SegmentedIndex(tmp_path, D, TINY)
    old, new = half(1, 20, D).astype(np.float32), half(2, 20, D).astype(np.float32)
    index.add(range(20), old)
    job = index.begin()
    assert job is not None
    index.remove(range(10))
    index.add(range(5), new[:5])
    index.switch(job, index.build(job, nothing_to_read, nothing))
    truth = {i: new[i] for i in range(5)} | {i: old[i] for i in range(10, 20)}
    assert len(index) == 15
    assert_nearest(index.search(query(3, D), 50, None), truth, query(3, D), 50)


def test_what_went_while_a_segment_was_dissolved_stays_gone(tmp_path: Path) -> None:
    index = SegmentedIndex(tmp_path, D, TINY)
    rows = half(1, 40, D).astype(np.float32)
    index.add(range(40), rows)
    tend(index)
    index.remove(range(37))
    job = index.begin()
    assert job is not None
    assert job.dissolve
    built = index.build(job, nothing_to_read, nothing)
    index.remove([38])
    index.switch(job, built)
    assert (index.kind, len(index)) == ("flat", 2)
    assert_nearest(index.search(query(3, D), 5, None), {37: rows[37], 39: rows[39]}, query(3, D), 5)


def test_what_was_put_before_its_part_is_rebuilt_is_there_once(tmp_path: Path) -> None:
    rows = half(1, 40, D)
    fresh = half(2, 1, D).astype(np.float32)
    index = SegmentedIndex(tmp_path, D, TINY, missing=np.arange(40, dtype=np.int64))
    index.add([3], fresh)
    job = index.begin()
    assert job is not None
    index.switch(job, index.build(job, lambda ids: (ids, rows[ids]), nothing))
    assert (len(index), index.complete) == (40, True)
    truth = {i: rows[i].astype(np.float32) for i in range(40)} | {3: fresh[0]}
    assert_nearest(index.search(query(3, D), 50, None), truth, query(3, D), 50)


def test_limits_say_when(tmp_path: Path) -> None:
    index = SegmentedIndex(tmp_path, D, Limits(flat_vectors=50, struck_share=0.5))
    index.add(range(50), half(1, 50, D).astype(np.float32))
    due = [index.due]
    index.add([50], half(2, 1, D).astype(np.float32))
    due.append(index.due)
    tend(index)
    index.remove(range(25))
    due.append(index.due)
    index.remove([25])
    due.append(index.due)
    assert due == [False, True, False, True]


def test_a_segment_whose_files_are_gone_is_searched_to_the_end_and_never_opened_again(tmp_path: Path) -> None:
    index = SegmentedIndex(tmp_path, D, TINY)
    index.add(range(100), half(1, 100, D).astype(np.float32))
    tend(index)
    (segment,) = index.segments
    segment.remove_files()
    # What is open stays open: searches under way never see a file go.
    assert len(index.search(query(1, D), 5, None)) == 5
    with pytest.raises(Damaged, match="missing"):
        Segment(tmp_path, segment.record, D)
