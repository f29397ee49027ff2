"""Two orders of candidates made one: weighted scores or reciprocal ranks.  Pure functions.

Weighted is min-max normalised scores, `weight` for the vectors and the rest for the words (Bruch, Gai and Ingber, "An
Analysis of Fusion Functions for Hybrid Retrieval", 2023); reciprocal rank fusion is Cormack, Clarke and Büttcher,
2009, with k = 60.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

RRF_K = 60

Scored = Sequence[tuple[int, float]]
"""Item ids and scores, best first."""


def weighted(lexical: Scored, cosines: Mapping[int, float], weight: float) -> dict[int, float]:
    """Fused scores in [0, 1].

    `cosines` may hold more than the nearest: an item that was found by words alone counts with its true cosine, and
    with the average of all where it has no vector.
    """
    words = _normalised(dict(lexical))
    meaning = _normalised(cosines)
    # What has no vector (yet) is taken for the average: as nothing, it would be found by no word however rare.
    average = sum(meaning.values()) / len(meaning) if meaning else 0.0
    return {
        item: weight * meaning.get(item, average) + (1 - weight) * words.get(item, 0.0) for item in {**words, **meaning}
    }


def reciprocal_rank(*orders: Scored) -> dict[int, float]:
    """Fused scores in [0, 1]: 1 is the first place in every order."""
    best = len(orders) / (RRF_K + 1)
    fused: dict[int, float] = {}
    for order in orders:
        for rank, (item, _) in enumerate(order, start=1):
            fused[item] = fused.get(item, 0.0) + 1 / (RRF_K + rank) / best
    return fused


def single(order: Scored) -> dict[int, float]:
    """The scores of the only stage that ran, in [0, 1], its best at 1."""
    return _normalised(dict(order))


def _normalised(scores: Mapping[int, float]) -> dict[int, float]:
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    if high == low:
        return dict.fromkeys(scores, 1.0)
    return {item: (score - low) / (high - low) for item, score in scores.items()}
