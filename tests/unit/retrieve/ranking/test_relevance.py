"""Scores mean the same for every query, and fall from hit to hit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.ops.retrieve import DOUBTFUL, UNLIKELY, SearchResult
from services.retrieve.ranking.relevance import non_increasing, relevance

MANY = 2000


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 0.5))
def test_nearer_vectors_and_more_matching_words_raise_relevance(cosine: float, share: float, more: float) -> None:
    assert 0 < relevance(cosine, share, MANY) < 1
    assert relevance(min(1.0, cosine + more), share, MANY) >= relevance(cosine, share, MANY)
    assert relevance(cosine, min(1.0, share + more), MANY) >= relevance(cosine, share, MANY)
    assert relevance(None, min(1.0, share + more), MANY) >= relevance(None, share, MANY)


@pytest.mark.parametrize(
    ("cosine", "share", "least", "most"),
    [
        (0.15, 0.0, 0, UNLIKELY), (0.3, 0.0, 0, DOUBTFUL), (0.2, 0.15, 0, DOUBTFUL), (None, 0.1, 0, DOUBTFUL),
        (0.5, 0.0, 0.3, 0.6), (0.0, 1.0, 0.3, 0.6), (0.6, 0.7, 0.6, 0.8), (None, 1.0, 0.6, 0.8), (None, 0.3, 0.3, 0.7),
    ],
)  # fmt: skip
def test_the_scale_of_relevance(cosine: float | None, share: float, least: float, most: float) -> None:
    assert least <= relevance(cosine, share, MANY) <= most


def test_a_near_piece_among_few_is_more_relevant_than_among_many() -> None:
    assert relevance(0.3, 0.0, 1) > 0.35 > DOUBTFUL > UNLIKELY > relevance(0.3, 0.0, 5000)
    assert relevance(0.1, 0.0, 1) < DOUBTFUL
    assert relevance(0.3, 0.0, 0) == relevance(0.3, 0.0, 1)


@pytest.mark.parametrize("background", [(0.054, 0.082), (0.45, 0.05), (0.82, 0.02)])
def test_the_same_distance_from_unrelated_texts_is_equally_relevant_in_every_model(
    background: tuple[float, float],
) -> None:
    mean, spread = background

    def sure(deviations: float) -> float:
        return relevance(mean + deviations * spread, 0.0, MANY, background)

    assert sure(0) < sure(3) < DOUBTFUL
    assert sure(6.5) > 0.3


def test_scores_fall_from_hit_to_hit() -> None:
    assert non_increasing([0.3, 0.9, 0.1, 0.2]) == [0.9, 0.9, 0.2, 0.2]
    assert non_increasing([]) == []


def test_an_answer_of_unrelated_texts_says_so() -> None:
    assert (
        SearchResult(stages=[], best=0.11, unlikely=5).note == "nothing relevant was found: the best of 5 scores 0.11"
    )
    assert SearchResult(stages=[], best=0.5).note == SearchResult(stages=[]).note == ""
