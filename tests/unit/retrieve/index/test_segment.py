"""A segment finds the same vectors as a comparison with all of them, and never reads a file that differs from the one
written.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from services.retrieve.index import segment
from services.retrieve.index.segment import Segment, SegmentDamaged, SegmentRecord, VectorLimits
from services.retrieve.index.vectors import HalfMatrix, ItemIds, Matrix
from tests.unit.retrieve.vectors_rig import assert_nearest, clustered, half, query

ALL_BY_CODES = VectorLimits(overfetch=10_000, exact_rows=0)


def nothing() -> None:
    pass


def made(folder: Path, ids: ItemIds, rows: HalfMatrix) -> Segment:
    """`rows` are those of `ids` as the database has them, where the segment is asked for a few more."""
    kept = dict(zip(ids.tolist(), rows, strict=True))

    def read(some: ItemIds) -> tuple[ItemIds, HalfMatrix]:
        there = some[np.isin(some, ids)]
        found: HalfMatrix = np.array([kept[i] for i in there.tolist()], dtype=np.float16).reshape(-1, rows.shape[1])
        return there, found

    asked = np.union1d(ids, [10**6, 10**7])
    record = segment.write(folder, asked, read, rows.shape[1], nothing)
    assert record is not None
    return Segment(folder, record, rows.shape[1])


def truth_of(ids: ItemIds, rows: HalfMatrix) -> dict[int, Matrix]:
    return {int(item_id): row.astype(np.float32) for item_id, row in zip(ids, rows, strict=True)}


@pytest.mark.parametrize("dimensions", [1, 7, 8, 64, 100, 384])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 500])
def test_search_equals_a_comparison_with_all(tmp_path: Path, dimensions: int, count: int) -> None:
    ids = np.random.default_rng(count).permutation(3 * count)[:count].astype(np.int64)
    rows = half(count, count, dimensions)
    opened = made(tmp_path, ids, rows)
    asked = query(7, dimensions)
    truth = truth_of(ids, rows)
    for limit in (1, 5, 2 * count):
        assert_nearest(opened.search(asked, limit, None, ALL_BY_CODES), truth, asked, limit)
    allowed = np.arange(0, 3 * count, 2)
    for exact_rows in (0, 10**6):
        found = opened.search(asked, 5, allowed, VectorLimits(overfetch=10_000, exact_rows=exact_rows))
        assert_nearest(found, truth, asked, 5, allowed)
    cosines = opened.cosines(asked, np.arange(3 * count))
    assert cosines.keys() == truth.keys()
    assert all(abs(cosines[item_id] - float(row @ asked)) < 1e-4 for item_id, row in truth.items())


def test_removed_vectors_are_not_found_and_do_not_crowd_out_the_rest(tmp_path: Path) -> None:
    """The nearest of all are gone, several times more than a search fetches."""
    rows = half(3, 2000, 32)
    ids = np.arange(2000, dtype=np.int64)
    opened = made(tmp_path, ids, rows)
    asked = query(4, 32)
    nearest = np.argsort(-(rows.astype(np.float32) @ asked))
    opened.strike(nearest[:1500].tolist())
    found = {item_id for item_id, _ in opened.search(asked, 10, None, VectorLimits(overfetch=300, exact_rows=0))}
    assert len(found) == 10
    assert found <= set(nearest[1500:].tolist())
    assert len(found & set(nearest[1500:1510].tolist())) >= 8
    assert opened.cosines(asked, nearest[:3]) == {}


def test_a_filter_that_admits_only_the_farthest_still_fills_the_answer(tmp_path: Path) -> None:
    rows = half(5, 3000, 32)
    ids = np.arange(3000, dtype=np.int64)
    opened = made(tmp_path, ids, rows)
    asked = query(6, 32)
    farthest = np.argsort(rows.astype(np.float32) @ asked)[:400]
    found = opened.search(asked, 20, np.sort(farthest), VectorLimits(overfetch=50, exact_rows=0))
    assert len(found) == 20
    assert {item_id for item_id, _ in found} <= set(farthest.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("limit", [10, 50])
def test_recall_on_clusters_with_uneven_numbers(tmp_path: Path, limit: int) -> None:
    rows = clustered(8, 20_000, 128).astype(np.float16)
    opened = made(tmp_path, np.arange(20_000, dtype=np.int64), rows)
    exact = rows.astype(np.float32)
    rng = np.random.default_rng(9)
    hits = 0
    for _ in range(40):
        asked = exact[rng.integers(0, len(exact))] + 0.02 * rng.standard_normal(128).astype(np.float32)
        asked /= np.linalg.norm(asked)
        best = set(np.argsort(-(exact @ asked))[:limit].tolist())
        hits += len(best & {item_id for item_id, _ in opened.search(asked, limit, None, VectorLimits())})
    assert hits / (40 * limit) >= 0.97


def test_vectors_of_many_dimensions_are_found_and_codes_of_the_fast_scan_are_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAISS's fast scan overflows with as many dimensions: it found 2 of 100 neighbours."""
    dimensions, ids = 3072, np.arange(2000, dtype=np.int64)
    rows = clustered(8, 2000, dimensions).astype(np.float16)
    opened = made(tmp_path, ids, rows)
    exact = rows.astype(np.float32)
    hits = 0
    for asked in exact[:20]:
        best = set(np.argsort(-(exact @ asked))[:10].tolist())
        found = opened.search(asked, 10, None, VectorLimits(overfetch=40, exact_rows=0))
        hits += len(best & {item_id for item_id, _ in found})
    assert hits >= 190
    with monkeypatch.context() as before:
        before.setattr(segment, "FAST_DIMENSIONS", 4096)
        old = made(tmp_path, ids, np.ascontiguousarray(rows[:, :2100]))
    with pytest.raises(SegmentDamaged, match="wrong neighbours"):
        Segment(tmp_path, old.record, 2100)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def zeros(path: Path) -> None:
    """What a file system may leave of a file whose name was on disk before its content."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("name", ["ids", "rows", "codes"])
@pytest.mark.parametrize("harm", [Path.unlink, cut, grow, flip, zeros])
def test_a_damaged_file_is_detected(tmp_path: Path, name: str, harm: Callable[[Path], None]) -> None:
    opened = made(tmp_path, np.arange(50, dtype=np.int64), half(1, 50, 16))
    harm(tmp_path / opened.record.name / name)
    with pytest.raises(SegmentDamaged):
        Segment(tmp_path, opened.record, 16)


def test_codes_of_another_segment_are_not_taken(tmp_path: Path) -> None:
    one = made(tmp_path, np.arange(50, dtype=np.int64), half(1, 50, 16))
    other = made(tmp_path, np.arange(50, dtype=np.int64), half(2, 50, 16))
    (tmp_path / other.record.name / "codes").rename(tmp_path / one.record.name / "codes")
    with pytest.raises(SegmentDamaged, match="corrupted"):
        Segment(tmp_path, one.record, 16)


def test_codes_that_faiss_does_not_know_are_damage_and_no_crash(tmp_path: Path) -> None:
    opened = made(tmp_path, np.arange(50, dtype=np.int64), half(1, 50, 16))
    path = tmp_path / opened.record.name / "codes"
    path.write_bytes(b"NEWKIND!" * 100)
    fields = {name: getattr(opened.record, name) for name in opened.record.__struct_fields__}
    record = SegmentRecord(**fields | {"codes_bytes": 800, "codes_crc": zlib.crc32(path.read_bytes())})
    with pytest.raises(SegmentDamaged, match="cannot be decoded"):
        Segment(tmp_path, record, 16)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        made(tmp_path, np.arange(50, dtype=np.int64), half(1, 50, 16))
    assert list(tmp_path.iterdir()) == []


def test_a_build_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    calls = 0

    def cancel() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt

    rows = half(1, 50, 16)
    with pytest.raises(KeyboardInterrupt):
        segment.write(tmp_path, np.arange(50), lambda ids: (ids, rows[ids]), 16, cancel)
    assert list(tmp_path.iterdir()) == []


def test_no_segment_is_made_if_all_its_vectors_were_deleted_meanwhile(tmp_path: Path) -> None:
    assert segment.write(tmp_path, np.arange(50), lambda ids: (ids[:0], half(1, 0, 16)), 16, nothing) is None
    assert list(tmp_path.iterdir()) == []


def test_unknown_files_are_removed(tmp_path: Path) -> None:
    kept = made(tmp_path, np.arange(5, dtype=np.int64), half(1, 5, 8))
    made(tmp_path, np.arange(5, dtype=np.int64), half(2, 5, 8))
    (tmp_path / f"{segment.ASIDE}0123").mkdir()
    segment.remove_others(tmp_path, kept.record.name)
    assert [path.name for path in tmp_path.iterdir()] == [kept.record.name]
