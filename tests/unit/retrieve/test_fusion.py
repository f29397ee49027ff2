"""Fused scores lie in [0, 1] and order as their definitions say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.retrieve.fusion import normalised, outstanding, reciprocal_rank, weighted

scores = st.dictionaries(st.integers(0, 30), st.floats(-50, 50), max_size=20)


def ordered(found: dict[int, float]) -> list[tuple[int, float]]:
    return sorted(found.items(), key=lambda pair: -pair[1])


@given(scores, scores, st.floats(0, 1))
def test_scores_are_between_0_and_1_and_nobody_is_lost(
    words: dict[int, float], cosines: dict[int, float], weight: float
) -> None:
    for fused in (weighted(ordered(words), cosines, weight), reciprocal_rank(ordered(words), ordered(cosines))):
        assert fused.keys() == words.keys() | cosines.keys()
        assert all(0 <= score <= 1 + 1e-9 for score in fused.values())


def test_weighted_is_the_weighted_sum_of_normalised_scores() -> None:
    fused = weighted([(1, 10.0), (2, 6.0), (3, 2.0)], {2: 0.9, 1: 0.5, 4: 0.1}, 0.65)
    assert fused == pytest.approx({1: 0.35 + 0.65 * 0.5, 2: 0.35 * 0.5 + 0.65, 3: 0.65 * 0.5, 4: 0.0})


def test_what_counts_for_something_in_meaning_at_least_does_so_however_far_it_is() -> None:
    cosines = {1: 0.1, 2: 0.5, 3: 0.9}
    assert weighted([(1, 4.0)], cosines, 0.65, {1: 0.5}) == pytest.approx({1: 0.35 + 0.325, 2: 0.325, 3: 0.65})
    assert weighted([(3, 4.0)], cosines, 0.65, {3: 0.5}) == weighted([(3, 4.0)], cosines, 0.65)


def test_few_stand_out_by_their_words_and_only_among_what_is_far_below() -> None:
    each_its_own = {item: item for item in range(10)}
    assert outstanding([(1, 9.0)], each_its_own) == {1: 1.0}
    assert outstanding([(1, 9.0), (2, 4.5)], each_its_own) == {1: 1.0, 2: 0.5}
    common = [(item, 4.0) for item in range(2, 8)]
    assert outstanding([(1, 9.0), *common], each_its_own) == {1: 1.0}
    assert outstanding([(1, 6.0), *common], each_its_own) == {}
    # Eight pieces of one note stand out, as the note does.
    assert outstanding([(item, 9.0) for item in range(8)], dict.fromkeys(range(8), 0)).keys() == set(range(8))
    assert outstanding([], {}) == outstanding([(1, 9.0)], {}) == outstanding([(1, -1.0)], each_its_own) == {}


def test_a_note_whose_vector_is_still_to_come_is_found_by_its_rare_word_among_many_alike() -> None:
    cosines = {item: 0.5 + item / 200 for item in range(50)}
    fused = weighted([(99, 12.0), (49, 1.0)], cosines, 0.65)
    assert sorted(fused, key=lambda item: -fused[item])[0] == 99


def test_a_note_without_a_vector_is_first_by_its_rare_word_though_others_share_the_common_ones() -> None:
    # The nearest in meaning has all the common words of the query, and not the rare one.
    cosines = {item: 0.2 + item / 100 for item in range(50)}
    words = [(99, 12.0), *((item, 2.0 + item / 10) for item in range(49, 20, -1))]
    fused = weighted(words, cosines, 0.65)
    assert max(fused, key=lambda item: fused[item]) == 99


def test_of_two_notes_without_vectors_the_one_with_the_better_words_is_first() -> None:
    fused = weighted([(1, 9.0), (2, 6.0), (3, 1.0)], {3: 0.9, 4: 0.1}, 0.65)
    assert sorted(fused, key=lambda item: -fused[item]) == [1, 3, 2, 4]


def test_first_in_both_orders_is_1_under_reciprocal_rank_fusion() -> None:
    fused = reciprocal_rank([(1, 3.0), (2, 1.0)], [(1, 0.9)])
    assert fused[1] == pytest.approx(1.0)
    assert fused[2] == pytest.approx(61 / 62 / 2)


def test_the_best_of_a_single_stage_is_1() -> None:
    assert normalised({1: 4.0, 2: 2.0}) == {1: 1.0, 2: 0.0}
    assert normalised({1: 4.0}) == {1: 1.0}
    assert normalised({}) == {}
