"""Neighbours by stored vectors: exact, each pair once, in a stable order, with bounded work."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
import trio

from proto.ops.retrieve import Clustering, RetrieveClusters, RetrievePairs, RetrieveSimilar
from services.retrieve import local_store
from services.retrieve.index.vectors import Matrix
from services.retrieve.main import open_service
from services.retrieve.ranking import neighbours
from services.retrieve.ranking.neighbours import GroupNeighbours, best_pairs, nearest_pairs
from tests.in_process import services_in_process
from tests.unit.retrieve.rig import WordEmbedder, embedded, group, opened, vector


def unit(matrix: Matrix) -> Matrix:
    scaled: Matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    return scaled


def lumpy(count: int, dimensions: int, seed: int = 0) -> Matrix:
    """Vectors in a few directions, as those of texts are."""
    chance = np.random.default_rng(seed)
    centres = chance.standard_normal((12, dimensions))
    weights = chance.random((count, 12)) ** 6
    return unit((weights @ centres + 0.3 * chance.standard_normal((count, dimensions))).astype(np.float32))


def by_hand(matrix: Matrix, threshold: float) -> list[tuple[int, int, float]]:
    products = matrix.astype(np.float64) @ matrix.T.astype(np.float64)
    pairs = [(i, j, float(products[i, j])) for i, j in itertools.combinations(range(len(matrix)), 2)]
    return sorted((pair for pair in pairs if pair[2] >= threshold), key=lambda pair: (-pair[2], pair[:2]))


async def in_thread(matrix: Matrix, threshold: float, limit: int) -> tuple[list[tuple[int, int, float]], bool]:
    return await trio.to_thread.run_sync(best_pairs, matrix, threshold, limit)


@pytest.mark.parametrize(("count", "each", "strip"), [(1, 3, 4), (2, 3, 4), (150, 1, 16), (150, 5, 37), (150, 5, 256)])
async def test_nearest_pairs_equal_those_of_a_full_comparison(
    monkeypatch: pytest.MonkeyPatch, count: int, each: int, strip: int
) -> None:
    monkeypatch.setattr(neighbours, "STRIP", strip)
    matrix = lumpy(count, 48)
    pairs = by_hand(matrix, -1.0)
    near = {row: [pair for pair in pairs if row in pair[:2]][:each] for row in range(count)}
    expected = [pair for pair in pairs if pair[2] >= 0.3 and any(pair in near[row] for row in pair[:2])]
    for limit in (7, 100_000):
        found, more = await trio.to_thread.run_sync(nearest_pairs, matrix, 0.3, limit, each)
        # Where two are alike to the last place, which comes first is rounding.
        assert {pair[:2] for pair in found} == {pair[:2] for pair in expected[:limit]}
        assert [pair[2] for pair in found] == pytest.approx([pair[2] for pair in expected[:limit]], abs=2e-6)
        assert more == (len(expected) > limit)


@pytest.mark.parametrize(("count", "dimensions", "block"), [(2, 8, 4), (150, 48, 16), (150, 48, 37), (60, 6, 16)])
@pytest.mark.parametrize("threshold", [-1.0, 0.3, 0.8])
async def test_pairs_equal_those_of_a_full_comparison(
    monkeypatch: pytest.MonkeyPatch, count: int, dimensions: int, block: int, threshold: float
) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", block)
    matrix = lumpy(count, dimensions)
    expected = by_hand(matrix, threshold)
    for limit in (1, 7, 100_000):
        found, more = await in_thread(matrix, threshold, limit)
        assert len(found) == min(limit, len(expected))
        assert more == (len(expected) > limit)
        assert [similarity for *_, similarity in found] == pytest.approx([s for *_, s in expected[:limit]], abs=2e-6)
        assert len({(i, j) for i, j, _ in found}) == len(found)
        assert all(i < j and float(matrix[i] @ matrix[j]) == pytest.approx(s, abs=2e-6) for i, j, s in found)


async def test_equal_notes_are_pairs_in_the_order_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", 32)
    matrix = np.tile(lumpy(1, 24), (200, 1))
    found, more = await in_thread(matrix, 1.0, 250)
    assert more
    assert [(i, j) for i, j, _ in found] == list(itertools.combinations(range(200), 2))[:250]
    assert {similarity for *_, similarity in found} == {1.0}


async def test_cancelled_comparison_ends_after_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", 8)
    compared = 0
    scope = trio.CancelScope()
    token = trio.lowlevel.current_trio_token()
    cancelled = threading.Event()

    def cancel() -> None:
        scope.cancel()
        cancelled.set()

    def compare(*_: object) -> neighbours.Integers:
        nonlocal compared
        compared += 1
        if compared == 3:
            # By another task than the one that waits for this thread, which would only notice after it had answered.
            token.run_sync_soon(cancel)
            cancelled.wait()
        return np.empty(0, dtype=np.int64)

    monkeypatch.setattr(neighbours, "_keys", compare)
    with scope:
        await in_thread(lumpy(400, 8), 0.5, 10)
    assert scope.cancelled_caught
    assert compared == 3


async def test_vector_of_a_group_is_the_mean_of_its_items(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        await collection.put([
            group("b", "alpha beta", "gamma delta"), group("a", "alpha beta gamma delta"), group("c", "omega psi"),
        ])  # fmt: skip
        await embedded(collection, WordEmbedder())
        near = GroupNeighbours(collection)
        vectors = await near.vectors()
        assert vectors.ids == ["a", "b", "c"]
        mean = vector("alpha beta") + vector("gamma delta")
        np.testing.assert_allclose(vectors.matrix[1], mean / np.linalg.norm(mean), atol=2e-3)
        found = await near.similar("b", 10, 0.5)
        assert [n.group for n in found.neighbours] == ["a"]
        assert found.has_vector
        assert found.vectors_waiting == 0
        pairs = await near.pairs(0.5, 10)
        assert [(pair.first, pair.second) for pair in pairs.pairs] == [("a", "b")]
        assert (pairs.groups, pairs.more) == (3, False)


async def test_vectors_follow_each_write_and_report_pending_ones(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        near = GroupNeighbours(collection)
        assert (await near.similar("a", 5, 0)).has_vector is False
        await collection.put([group("a", "one two"), group("b", "one two")])
        waiting = await near.pairs(0.5, 5)
        assert (waiting.pairs, waiting.groups, waiting.vectors_waiting) == ([], 0, 2)
        await embedded(collection, embedder)
        assert [pair.similarity for pair in (await near.pairs(0.5, 5)).pairs] == [1.0]
        assert await near.vectors() is await near.vectors()
        await collection.delete(["a"])
        assert (await near.pairs(-1, 5)).groups == 1
        assert (await near.similar("a", 5, 0)).has_vector is False


async def test_group_that_spans_portions_of_reading_has_one_vector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "_FETCH", 3)
    async with opened(tmp_path) as collection:
        await collection.put([group(f"g{n}", *(f"word{n} piece{p}" for p in range(4))) for n in range(5)])
        await embedded(collection, WordEmbedder())
        found = (await GroupNeighbours(collection).vectors()).matrix
        for n in range(5):
            mean = sum((vector(f"word{n} piece{p}") for p in range(4)), start=np.zeros(64, dtype=np.float32))
            np.testing.assert_allclose(found[n], mean / np.linalg.norm(mean), atol=2e-3)


async def test_clusters_hold_every_group_once_and_are_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", 16)
    chance = np.random.default_rng(1)
    centres = np.eye(5, 20, dtype=np.float32)
    noise = 0.05 * chance.standard_normal((66, 20)).astype(np.float32)
    matrix = unit(np.repeat(centres, [20, 17, 13, 10, 6], axis=0) + noise)
    shuffled = chance.permutation(66)
    expected = sorted(
        sorted(np.flatnonzero(np.argmax(matrix[shuffled][:, :5], axis=1) == c).tolist()) for c in range(5)
    )
    for work in (lambda: neighbours.kmeans(matrix[shuffled], 5), lambda: neighbours.chains(matrix[shuffled], 0.7)):
        first = await trio.to_thread.run_sync(work)
        assert [len(rows) for rows in first] == [20, 17, 13, 10, 6]
        assert sorted(sorted(rows) for rows in first) == expected
        assert await trio.to_thread.run_sync(work) == first
    everything = np.tile(centres[:1], (40, 1))
    assert len(await trio.to_thread.run_sync(neighbours.kmeans, everything, 7)) == 1
    assert await trio.to_thread.run_sync(neighbours.chains, everything, 1.0) == [list(range(40))]
    assert await trio.to_thread.run_sync(neighbours.kmeans, everything[:0], 3) == []


async def test_collection_that_was_never_written_has_no_neighbours(tmp_path: Path) -> None:
    async with services_in_process({"retrieve": open_service}, tmp_path) as bench:
        assert not (await bench.call(RetrieveSimilar(collection="none", group="a"))).has_vector
        assert (await bench.call(RetrievePairs(collection="none", threshold=0.5))).pairs == []
        for method in Clustering:
            assert (await bench.call(RetrieveClusters(collection="none", method=method))).clusters == []
