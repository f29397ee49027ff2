"""The flat index answers as a brute-force comparison does, whatever was added, replaced and removed before."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.retrieve.index.vectors import FlatIndex, Matrix

D = 8


def unit(seed: int) -> Matrix:
    row = np.random.default_rng(seed).standard_normal(D).astype(np.float32)
    result: Matrix = row / np.linalg.norm(row)
    return result


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 400), min_size=1, max_size=80, unique=True)),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 400), min_size=1, max_size=80, unique=True)),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=60)
@given(steps, st.integers(1, 30), st.sets(st.integers(0, 400)))
def test_search_equals_brute_force(steps: list[tuple[str, list[int]]], limit: int, admitted: set[int]) -> None:
    index, truth, seed = FlatIndex(D), dict[int, Matrix](), 0
    for step, ids in steps:
        if step == "add":
            rows = []
            for item_id in ids:
                seed += 1
                truth[item_id] = unit(seed)
                rows.append(truth[item_id])
            index.add(ids, np.stack(rows))
        else:
            index.remove(ids)
            for item_id in ids:
                truth.pop(item_id, None)
    assert len(index) == len(truth)
    query = unit(10**6)
    for allowed in (None, np.array(sorted(admitted), dtype=np.int64)):
        wanted = {i: float(v @ query) for i, v in truth.items() if allowed is None or i in admitted}
        found = index.search(query, limit, allowed)
        best = sorted(wanted.values(), reverse=True)[:limit]
        assert np.allclose([score for _, score in found], best, atol=1e-5)
        assert all(abs(wanted[item_id] - score) < 1e-5 for item_id, score in found)
    cosines = index.cosines(query, range(0, 401, 3))
    assert cosines.keys() == {i for i in truth if i % 3 == 0}


def test_space_of_removed_vectors_is_reclaimed() -> None:
    index = FlatIndex(D)
    for start in range(0, 100_000, 1000):
        index.add(range(start, start + 1000), np.ones((1000, D), dtype=np.float32))
        index.remove(range(start, start + 1000))
    assert len(index) == 0
    assert len(index._matrix) < 5000


def test_equal_scores_come_in_the_order_of_their_ids() -> None:
    index = FlatIndex(D)
    index.add([5, 3, 9], np.stack([unit(1)] * 3))
    assert [item_id for item_id, _ in index.search(unit(1), 3, None)] == [3, 5, 9]
