"""Scores of groups are raised by those around them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.retrieve.ranking.surroundings import BEFORE, COUNTED, WHOLE, Around, raised

NOTHING = Around({}, {})

ITEMS = st.integers(0, 20)
scores = st.dictionaries(ITEMS, st.floats(-5, 5), max_size=15)


def each_its_own(fused: dict[int, float]) -> dict[int, int]:
    """Each item is the only one of its group."""
    return {item: 100 + item for item in fused}


@given(
    scores,
    st.dictionaries(ITEMS.map(lambda item: item + 100), ITEMS.map(lambda item: item + 100)),
    st.dictionaries(ITEMS.map(lambda item: item + 100), st.sampled_from("abc")),
)
def test_no_score_is_lowered_and_none_is_lost(
    fused: dict[int, float], before: dict[int, int], whole: dict[int, str]
) -> None:
    found = raised(fused, each_its_own(fused), Around(before, {}), whole)
    assert found.keys() == fused.keys()
    assert all(found[item] >= score for item, score in fused.items())


@given(scores)
def test_scores_without_neighbours_stay(fused: dict[int, float]) -> None:
    assert raised(fused, each_its_own(fused), NOTHING, {}) == fused


def test_items_that_are_gone_are_left_out() -> None:
    assert raised({1: 2.0, 2: 1.0}, {1: 10}, NOTHING, {}) == {1: 2.0}


def test_a_turn_gets_a_share_of_the_turn_before_it_only() -> None:
    fused = {1: 3.0, 2: 1.0, 3: 0.0, 4: -1.0}
    chain = Around({20: 10, 30: 20, 40: 30}, {})
    found = raised(fused, {item: 10 * item for item in fused}, chain, {})
    assert found == pytest.approx({1: 3.0, 2: 1.0 + BEFORE * 3.0, 3: BEFORE * 1.0, 4: -1.0})


def test_a_turn_before_that_is_below_average_lowers_nothing() -> None:
    assert raised({1: -3.0, 2: 1.0}, {1: 10, 2: 20}, Around({20: 10}, {}), {}) == {1: -3.0, 2: 1.0}


def test_a_group_counts_by_its_best_item() -> None:
    found = raised({1: 0.5, 2: 2.0, 3: 1.0, 4: 0.0}, {1: 10, 2: 10, 3: 20, 4: 20}, Around({20: 10}, {}), {})
    assert found == pytest.approx({1: 0.5, 2: 2.0, 3: 1.0 + BEFORE * 2.0, 4: BEFORE * 2.0})


def test_all_of_a_whole_get_a_share_of_its_best() -> None:
    fused = {item: float(item) for item in range(6)}
    whole = {100 + item: "same" for item in range(5)}
    found = raised(fused, each_its_own(fused), Around({}, {}), whole | {105: "other"})
    best = WHOLE * sum(range(5 - COUNTED, 5))
    assert found == pytest.approx({item: item + best for item in range(5)} | {5: 5 + WHOLE * 5})
