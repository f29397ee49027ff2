"""Trials of `retrieval_quality` besides nDCG: exact words must be found, and scores must be calibrated."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from services.retrieve.index.terms import indexed

RARE_WORDS, TWICE_WORDS = 80, 150
_LEAST_CHARS = 5


def words_of(texts: Mapping[str, str], holders: int, most: int) -> dict[str, list[str]]:
    """Return words, as the index splits them, that occur in exactly this many texts, with the texts' ids;
    deterministic."""
    words = {id_: set(indexed(text).split()) for id_, text in texts.items()}
    counts = Counter(word for own in words.values() for word in own)
    rare = sorted(word for word, count in counts.items() if count == holders and len(word) >= _LEAST_CHARS)
    chosen = set(random.Random(1).sample(rare, min(most, len(rare))))
    found: dict[str, list[str]] = {word: [] for word in sorted(chosen)}
    for id_, own in words.items():
        for word in chosen & own:
            found[word].append(id_)
    return found


class Calibration:
    """Scores of hits, and whether each was right."""

    def __init__(self) -> None:
        self._scores: list[float] = []
        self._right: list[bool] = []

    def add(self, ranked: Sequence[tuple[str, float]], relevant: Mapping[str, int]) -> None:
        for id_, score in ranked:
            self._scores.append(score)
            self._right.append(relevant.get(id_, 0) > 0)

    def table(self) -> list[str]:
        """Return a table by tenths of the scale: the number of hits, their mean score, and the share that is right."""
        scores, right = np.array(self._scores), np.array(self._right)
        tenth = np.minimum((scores * 10).astype(int), 9)
        lines = ["scores of the first ten      hits   said  right"]
        for number in range(10):
            here = tenth == number
            if here.any():
                said, true = float(scores[here].mean()), float(right[here].mean())
                bar = "#" * round(40 * true)
                lines.append(f"  .{number}0 to .{number}9          {here.sum():6}   {said:.2f}   {true:.2f}  {bar}")
        return lines
