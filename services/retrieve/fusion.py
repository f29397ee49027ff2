"""Two orders of candidates made one, by weighted standard scores or reciprocal ranks, and of each group one piece.

Weighted is z-scores, `weight` for the vectors and the rest for the words.  Unlike the range from the least to the best,
the mean and the spread of a list do not depend on its ends: a piece that holds a word that hardly any other holds is
far from the mean, and stands out by that alone, be it the first or the second of two.  Reciprocal rank fusion is
Cormack, Clarke and Büttcher, 2009, with k = 60.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import numpy as np

RRF_K = 60

PROSE, CODE = 0.5, 0.8
"""Weights of the vectors.  Words decide as much where they are the author's own; of code, whose words are others than
those who look for it use, they decide as far as they match (`WORDS_TELL`)."""

WORDS_TELL = (6.0, 20.0)
"""BM25 of the best piece by words: up to the first, the words of a query say little of code; from the second on, as
much as in prose."""

STANDS_OUT = 3.5
"""Standard deviations above the mean from which on an item stands out by its words.  What it has beyond that counts as
far as it holds the words of the query, and counts for meaning too: a name, a code, a mark that hardly anything else
holds means nothing to the model, and what is nearest to it is so by chance."""

FEW, WHOLE, SURELY = 12, 0.95, 3.5
"""Where so few pieces hold a word of the query at all, one that holds (nearly) all of what its words say stands out by
that, however much more often, or in its title, another holds them."""

_MARKS = re.compile(r"[(){}\[\]=;<>_]")
CODE_MARKS = 0.05
"""Share of a text's characters from which on it is code: prose has under .02 of them, functions .06 and more."""

Scored = Sequence[tuple[int, float]]
"""Item ids and scores, best first."""


def weighted(
    lexical: Scored,
    cosines: Mapping[int, float],
    weight: float,
    shares: Callable[[Sequence[int]], Mapping[int, float]] = lambda items: dict.fromkeys(items, 1.0),
) -> dict[int, float]:
    """Fused scores, around 0.

    `cosines` may hold more than the nearest: an item that was found by words alone counts with its true cosine. One
    of which there is none (of a short note, or of one whose vectors are still to come) counts with what its words come
    to, and no less than the average: the best of all by words is then first, however near others are in meaning.

    Args:
        shares: answers for some items which share of the query's words each holds, in [0, 1].
    """
    by_words = dict(lexical)
    words = standardised({item: by_words.get(item, 0.0) for item in (*by_words, *cosines)})
    meaning = standardised(cosines)
    beyond = {item: score - STANDS_OUT for item, score in words.items() if score > STANDS_OUT}
    asked = list(dict.fromkeys((*beyond, *(by_words if len(by_words) <= FEW else ()))))
    for item, share in shares(asked).items() if asked else ():
        more = share * beyond.get(item, 0.0)
        if len(by_words) <= FEW and share >= WHOLE:
            # Among those, the better by words is still the first.
            more = max(more, SURELY + words[item] / 100)
        if more:
            words[item] = STANDS_OUT + more
            if item in meaning:
                meaning[item] = max(meaning[item], more)
    return {
        item: weight * (meaning[item] if item in meaning else max(0.0, score)) + (1 - weight) * score
        for item, score in words.items()
    }


def vector_weight(lexical: Scored, texts: Iterable[str]) -> float:
    """How much the vectors decide, by what the pieces that were found are (the beginnings of some are `texts`)."""
    code = [len(_MARKS.findall(text)) >= CODE_MARKS * len(text) for text in texts if text]
    least, enough = WORDS_TELL
    best = lexical[0][1] if lexical else 0.0
    unsaid = min(1.0, max(0.0, (enough - best) / (enough - least)))
    return PROSE + (CODE - PROSE) * unsaid * sum(code) / max(1, len(code))


def reciprocal_rank(*orders: Scored) -> dict[int, float]:
    """Fused scores in [0, 1]: 1 is the first place in every order."""
    best = len(orders) / (RRF_K + 1)
    fused: dict[int, float] = {}
    for order in orders:
        for rank, (item, _) in enumerate(order, start=1):
            fused[item] = fused.get(item, 0.0) + 1 / (RRF_K + rank) / best
    return fused


def standardised(scores: Mapping[int, float]) -> dict[int, float]:
    """Each score's distance from the mean in standard deviations; 0 where all are the same."""
    values = np.fromiter(scores.values(), np.float64, len(scores))
    spread = float(values.std()) if len(values) else 0.0
    if spread < 1e-9:
        return dict.fromkeys(scores, 0.0)
    return dict(zip(scores, ((values - values.mean()) / spread).tolist(), strict=True))


def normalised(scores: Sequence[float]) -> list[float]:
    """The scores in [0, 1], the best at 1 and the least at 0."""
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    return [1.0 if high == low else (score - low) / (high - low) for score in scores]


def telling(
    best: list[tuple[int, float]], groups: Mapping[int, int], lexical: Sequence[tuple[int, float]], bare: Set[int]
) -> list[tuple[int, float]]:
    """`best`, where a piece that is never embedded (`bare`: front matter) steps back for another piece of its group.

    It is short, and the title counts for each piece: by that alone it would often be the best of its group. Where the
    words are half as well met elsewhere in the group, that is what a reader wants to see.
    """
    words = dict(lexical)
    fullest: dict[int, int] = {}
    for item, _ in lexical:
        if item in groups and item not in bare:
            fullest.setdefault(groups[item], item)
    told: list[tuple[int, float]] = []
    for item, score in best:
        other = fullest.get(groups[item]) if item in bare else None
        told.append((item if other is None or words[other] < words.get(item, 0.0) / 2 else other, score))
    return told


def best_of_groups(fused: Mapping[int, float], group_of: Mapping[int, int]) -> list[tuple[int, float]]:
    """The best item of each group, best first; items that are gone by now are left out."""
    best: list[tuple[int, float]] = []
    seen: set[int] = set()
    for item_id, score in sorted(fused.items(), key=lambda pair: (-pair[1], pair[0])):
        group = group_of.get(item_id)
        if group is not None and group not in seen:
            seen.add(group)
            best.append((item_id, score))
    return best
