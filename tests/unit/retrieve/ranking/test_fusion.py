"""Fused scores order as their definitions say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.retrieve.ranking.fusion import (
    PROSE,
    fluency,
    normalised,
    reciprocal_rank,
    standardised,
    vector_weight,
    weighted,
)

scores = st.dictionaries(st.integers(0, 30), st.floats(-50, 50), max_size=20)


def ordered(found: dict[int, float]) -> list[tuple[int, float]]:
    return sorted(found.items(), key=lambda pair: -pair[1])


@given(scores, scores, st.floats(0, 1))
def test_every_item_has_a_score(words: dict[int, float], cosines: dict[int, float], weight: float) -> None:
    for fused in (weighted(ordered(words), cosines, weight), reciprocal_rank(ordered(words), ordered(cosines))):
        assert fused.keys() == words.keys() | cosines.keys()
        assert all(math.isfinite(score) for score in fused.values())


def test_weighted_is_the_weighted_sum_of_standard_scores() -> None:
    fused = weighted([(1, 3.0), (2, 1.0)], {1: 0.2, 2: 0.4}, 0.75, lambda items: dict.fromkeys(items, 0.5))
    assert fused == pytest.approx({1: 0.25 - 0.75, 2: -0.25 + 0.75})


def test_both_of_two_that_hold_a_rare_word_are_before_all_that_are_near() -> None:
    cosines = {item: 0.2 + item / 200 for item in range(100)}
    fused = weighted([(3, 9.0), (7, 8.5)], cosines, PROSE)
    assert sorted(fused, key=lambda item: -fused[item])[:2] == [3, 7]
    fused = weighted([(3, 9.0), (7, 8.5)], cosines, 0.8)
    assert set(sorted(fused, key=lambda item: -fused[item])[:2]) == {3, 7}


@pytest.mark.parametrize("weight", [PROSE, 0.8])
def test_the_second_of_two_that_alone_hold_all_words_is_second_though_it_holds_them_far_less(weight: float) -> None:
    cosines = {item: 0.2 + item / 200 for item in range(100)} | {98: 0.9, 99: 0.95}
    # The first holds them in its title, and in several pieces.
    words = [(3, 11.8), (4, 11.0), (5, 10.2), (6, 9.9), (7, 5.2), (8, 5.0)]
    fused = weighted(words, cosines, weight, lambda items: {item: 0.4 if item == 8 else 1.0 for item in items})
    best = sorted(fused, key=lambda item: -fused[item])
    assert best[:5] == [3, 4, 5, 6, 7]
    assert best[5] == 99
    # Where more than a few hold them, no word is rare.
    many = weighted([*words, *((item, 4.0) for item in range(10, 40))], cosines, weight)
    assert fused[7] > many[7]


def test_vectors_decide_more_of_code_unless_the_words_match_well() -> None:
    code = ["def f(x):\n    return {k: v[0] for k, v in x.items()};"] * 4
    prose = ["A sea star can grow back an arm that it has lost, given a year."] * 4
    cosines = {item: 0.2 + item / 200 for item in range(100)}

    def weight(best: float, texts: list[str], spread: float = 0.08) -> float:
        return vector_weight([(item, best * (1 - item / 50)) for item in range(50)], cosines, spread, texts)

    assert weight(3.0, prose) == weight(30.0, prose) == weight(3.0, []) == PROSE
    assert weight(3.0, code) > 0.8
    assert PROSE < weight(13.0, code) < weight(3.0, code)
    assert weight(40.0, code) < PROSE
    assert weight(3.0, [*code, *prose, *prose, *prose]) == pytest.approx((PROSE + weight(3.0, code)) / 2)
    assert weight(3.0, [*code, *prose]) == weight(3.0, code)
    # With a model whose similarities differ less, a difference means more.
    assert weight(13.0, code, 0.04) > weight(13.0, code)
    assert vector_weight([], {}, 0.08, code) == PROSE
    assert vector_weight([], cosines, 0.08, code) == 1


def test_a_note_with_a_pending_vector_is_found_by_its_rare_word_among_many_alike() -> None:
    cosines = {item: 0.5 + item / 200 for item in range(50)}
    fused = weighted([(99, 12.0), (49, 1.0)], cosines, PROSE)
    assert sorted(fused, key=lambda item: -fused[item])[0] == 99


def test_a_note_without_a_vector_is_first_by_its_rare_word_though_others_share_the_common_ones() -> None:
    # The nearest in meaning has all the common words of the query, and not the rare one.
    cosines = {item: 0.2 + item / 100 for item in range(50)}
    words = [(99, 12.0), *((item, 2.0 + item / 10) for item in range(49, 20, -1))]
    fused = weighted(words, cosines, PROSE)
    assert max(fused, key=lambda item: fused[item]) == 99


def test_among_two_notes_without_vectors_the_better_word_match_is_first() -> None:
    fused = weighted([(1, 9.0), (2, 6.0), (3, 1.0)], {3: 0.9, 4: 0.1}, 0.65)
    assert sorted(fused, key=lambda item: -fused[item]) == [1, 2, 3, 4]


def test_first_in_both_orders_is_1_under_reciprocal_rank_fusion() -> None:
    fused = reciprocal_rank([(1, 3.0), (2, 1.0)], [(1, 0.9)])
    assert fused[1] == pytest.approx(1.0)
    assert fused[2] == pytest.approx(61 / 62 / 2)


def test_standard_scores_of_equals_are_0() -> None:
    assert standardised({1: 4.0, 2: 2.0}) == {1: 1.0, 2: -1.0}
    assert standardised({1: 4.0, 2: 4.0}) == {1: 0.0, 2: 0.0}
    assert standardised({}) == {}
    assert (normalised([4.0, 2.0, 3.0]), normalised([4.0]), normalised([])) == ([1.0, 0.0, 0.5], [1.0], [])


def test_words_decide_where_the_model_spells_the_query_letter_by_letter() -> None:
    assert fluency(0.0) == fluency(0.3) == 1
    assert fluency(0.95) == fluency(2.0) == pytest.approx(0.1)
    assert fluency(0.95) < fluency(0.7) < 1
