"""Fuse two rankings by weighted standard scores or reciprocal ranks, and choose one piece per group.

The weighted method adds z-scores: `weight` for the vectors, the rest for the words. Unlike min-max scaling, z-scores do
not depend on the extremes of a list: a piece with a rare word is far from the mean and stands out, whether it is the
first or the second of two. Reciprocal rank fusion is Cormack, Clarke and Büttcher, 2009, with k = 60.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import numpy as np

RRF_K = 60

PROSE = 0.5
"""Weight of the vectors in prose, where words count as much."""

POINT = 0.15
"""Standard deviations of the similarity of unrelated texts that a point of BM25 is worth in code.  Code often uses
other words than the people who search for it; the scores by words then differ little, and so count little.  Bruch,
Gai and Ingber (TOIS 2023) likewise find that a fixed scale serves better than that of each query's results.
Chosen on functions and their descriptions (`docs/search.md`); between 0.1 and 0.2 the results hardly differ."""

STANDS_OUT = 3.5
"""Standard deviations above the mean at which an item stands out by its words.  The excess is scaled by the share of
the query's words that the item holds, and also raises its vector score: a rare name or code means nothing to the model,
so its nearest vectors are random."""

FEW, WHOLE, SURELY = 12, 0.95, 3.5
"""If at most `FEW` pieces hold any word of the query, a piece that holds at least the share `WHOLE` of its words stands
out with `SURELY`, even if another piece holds some of them more often or in its title."""

FLUENT, FOREIGN = 0.5, 0.9
"""Tokens per letter of a query up to which the model knows its language, and from which it hardly does.  With
all-MiniLM-L6-v2, English has 0.2 to 0.3, German and French 0.4, Russian and Japanese 0.9 or more; with a multilingual
model all of them are below 0.6."""

HARDLY = 0.1
"""What remains of the weight of the vectors if the model hardly knows the language: nearest vectors are then random."""

_MARKS = re.compile(r"[(){}\[\]=;<>_]")
CODE_MARKS = 0.05
"""Share of such characters from which a text counts as code: prose has less than .02, functions .06 and more."""

Scored = Sequence[tuple[int, float]]
"""Item ids and scores, best first."""


def weighted(
    lexical: Scored,
    cosines: Mapping[int, float],
    weight: float,
    shares: Callable[[Sequence[int]], Mapping[int, float]] = lambda items: dict.fromkeys(items, 1.0),
) -> dict[int, float]:
    """Return fused scores, centred on 0.

    `cosines` may hold more than the nearest items, so that an item found only by words counts with its true cosine. An
    item without a cosine (a short note, or one whose vector is not made yet) uses its word score instead, but at least
    the average. The best match by words then comes first, however similar others are in meaning.

    Args:
        shares: returns the share of the query's words that each given item holds, in [0, 1].
    """
    by_words = dict(lexical)
    words = standardised({item: by_words.get(item, 0.0) for item in (*by_words, *cosines)})
    meaning = standardised(cosines)
    beyond = {item: score - STANDS_OUT for item, score in words.items() if score > STANDS_OUT}
    asked = list(dict.fromkeys((*beyond, *(by_words if len(by_words) <= FEW else ()))))
    for item, share in shares(asked).items() if asked else ():
        more = share * beyond.get(item, 0.0)
        if len(by_words) <= FEW and share >= WHOLE:
            # Keep these in the order of their word scores.
            more = max(more, SURELY + words[item] / 100)
        if more:
            words[item] = STANDS_OUT + more
            if item in meaning:
                meaning[item] = max(meaning[item], more)
    return {
        item: weight * (meaning[item] if item in meaning else max(0.0, score)) + (1 - weight) * score
        for item, score in words.items()
    }


def vector_weight(lexical: Scored, cosines: Mapping[int, float], spread: float, texts: Iterable[str]) -> float:
    """Choose the weight of the vectors by how many of the results are code.

    Args:
        cosines: as for `weighted`.
        spread: standard deviation of the cosines of unrelated texts with this model.
        texts: the first characters of some of the results.
    """
    code = [len(_MARKS.findall(text)) >= CODE_MARKS * len(text) for text in texts if text]
    by_words = dict(lexical)
    words = float(
        np.std([by_words.get(item, 0.0) for item in (*cosines, *(by_words.keys() - cosines.keys()))] or [0.0])
    )
    meaning = float(np.std([*cosines.values()] or [0.0])) / spread
    of_code = meaning / (meaning + POINT * words) if meaning or words else PROSE
    # Functions with long comments do not look like code, so half of them suffice.
    return PROSE + (of_code - PROSE) * min(1.0, 2 * sum(code) / max(1, len(code)))


def fluency(tokens_per_letter: float) -> float:
    """Return the factor for the weight of the vectors, by how many tokens the model needs for the query."""
    foreign = min(1.0, max(0.0, (tokens_per_letter - FLUENT) / (FOREIGN - FLUENT)))
    return 1 - (1 - HARDLY) * foreign


def reciprocal_rank(*orders: Scored) -> dict[int, float]:
    """Return fused scores in [0, 1]; an item that is first in every order has 1."""
    best = len(orders) / (RRF_K + 1)
    fused: dict[int, float] = {}
    for order in orders:
        for rank, (item, _) in enumerate(order, start=1):
            fused[item] = fused.get(item, 0.0) + 1 / (RRF_K + rank) / best
    return fused


def standardised(scores: Mapping[int, float]) -> dict[int, float]:
    """Return z-scores; all 0 if the scores are equal."""
    values = np.fromiter(scores.values(), np.float64, len(scores))
    spread = float(values.std()) if len(values) else 0.0
    if spread < 1e-9:
        return dict.fromkeys(scores, 0.0)
    return dict(zip(scores, ((values - values.mean()) / spread).tolist(), strict=True))


def normalised(scores: Sequence[float]) -> list[float]:
    """Scale the scores to [0, 1] (min-max)."""
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    return [1.0 if high == low else (score - low) / (high - low) for score in scores]


def prefer_embedded(
    best: list[tuple[int, float]], groups: Mapping[int, int], lexical: Sequence[tuple[int, float]], bare: Set[int]
) -> list[tuple[int, float]]:
    """Replace pieces of `best` that are never embedded (`bare`: front matter) by another piece of the group.

    Front matter is short, and the title counts for every piece, so it would often be the best of its group. A piece
    with text is shown instead if its word score is at least half as high.
    """
    words = dict(lexical)
    fullest: dict[int, int] = {}
    for item, _ in lexical:
        if item in groups and item not in bare:
            fullest.setdefault(groups[item], item)
    shown: list[tuple[int, float]] = []
    for item, score in best:
        other = fullest.get(groups[item]) if item in bare else None
        shown.append((item if other is None or words[other] < words.get(item, 0.0) / 2 else other, score))
    return shown


def best_of_groups(fused: Mapping[int, float], group_of: Mapping[int, int]) -> list[tuple[int, float]]:
    """Return the best item of each group, best first.  Items that no longer exist are omitted."""
    best: list[tuple[int, float]] = []
    seen: set[int] = set()
    for item_id, score in sorted(fused.items(), key=lambda pair: (-pair[1], pair[0])):
        group = group_of.get(item_id)
        if group is not None and group not in seen:
            seen.add(group)
            best.append((item_id, score))
    return best
