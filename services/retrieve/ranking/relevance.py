"""The probability that a piece answers a query, comparable across queries, collections, rankings and models.

It is a logistic model of the cosine and of the share of the query's words that the piece holds, weighted by rarity. Its
parameters were fitted on labelled queries over prose and code in three languages (abstracts, manuals, headings over
their sections, first lines of documentation over functions). The negatives were queries of one collection run on
another, everyday questions and made-up words. 96 % of the 480 negatives have no piece above .2, and 96 to 100 % of the
correct first results score at least .3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_COSINE, _SHARE, _MEANING_BIAS = 15.2, 9.5, -3.56
_SHARE_ALONE, _WORDS_BIAS = 12.0, -3.5

_SPREAD = 0.08
"""Standard deviation of the cosines of unrelated texts."""

PACKAGED = (0.054, 0.082)
"""Mean and standard deviation of cosines of unrelated texts (`EmbedResult.background`) with all-MiniLM-L6-v2, on which
the parameters were fitted.  Cosines of other models are scaled to it.  The values belong to the model, not the
collection: with one model, pairs of pieces had a mean of .12 in one corpus and .42 in another, but unrelated queries
scored the same."""

LEAST_SPREAD = 0.005

_DOUBTED, _EACH = math.log(0.3 / 0.7), 0.17
"""Above `_DOUBTED` the logit's slope is reduced to `_EACH`, because the training data had more unrelated pieces than
the first hits of a search, which made the model overconfident.  Fitted on the first hits of the synthetic sets, which
were right in 50 to 70 % of the cases scored .95; the calibration error on SciFact's fell from .35 to .08."""


def relevance(cosine: float | None, share: float, among: int, background: tuple[float, float] = PACKAGED) -> float:
    """Return a probability in (0, 1).

    Args:
        cosine: of query and piece; None if the piece has no vector, so that only the words count.
        share: share of the query's weight (the sum of its words' inverse document frequencies) that the piece holds.
        among: number of pieces compared.  The more unrelated pieces, the closer the nearest of them (by about
            sqrt(2 ln n) deviations).
        background: mean and standard deviation of the cosines of unrelated texts with the model of the vectors.
    """
    if cosine is None:
        return _probability(_SHARE_ALONE * share + _WORDS_BIAS)
    mean, spread = background
    common = PACKAGED[0] + PACKAGED[1] * (cosine - mean) / max(spread, LEAST_SPREAD)
    beyond = common - _SPREAD * math.sqrt(2 * math.log(max(1, among)))
    return _probability(_COSINE * beyond + _SHARE * share + _MEANING_BIAS)


def non_increasing(scores: Sequence[float]) -> list[float]:
    """Raise each score to the highest one after it, so that scores never increase along the hits."""
    best = 0.0
    found: list[float] = []
    for score in reversed(scores):
        best = max(best, score)
        found.append(best)
    return found[::-1]


def _probability(logit: float) -> float:
    return 1 / (1 + math.exp(-(logit if logit < _DOUBTED else _DOUBTED + _EACH * (logit - _DOUBTED))))
