"""Operations ranked by words: BM25 (Robertson and Zaragoza, 2009) over names, titles and descriptions."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from proto.operation import Operation

_K1, _B = 1.2, 0.75
_WORD = re.compile(r"[a-z]+|[0-9]+")
_ENDING = re.compile(r"(?<=[a-z]{3})(?:ies|ing|ed|es|s|e|y)$")
_NAMED = 2
"""How often a word of the name counts beside one of the description."""

_STOP = frozenset(
    _WORD.findall(
        "a about all an and are as at be before but by do does for from had has have how i if in into is it its me my"
        " no not of on or our shall should so some that the their them then these they this those to was were what when"
        " where which who why will with would you your"
    )
)


def about(operation: Operation[object]) -> str:
    """What the operation is for: the first sentence of its description."""
    return re.split(r"(?<=[^.][.;])\s", " ".join(operation.description.split()), maxsplit=1)[0].rstrip(".;")


def searchable(name: str, operation: Operation[object]) -> str:
    """The text by which an operation is found."""
    named = f"{name} {operation.title} " * _NAMED
    return f"{named}{' '.join(operation.description.split())}"


def ranked(words: str, operations: Mapping[str, Operation[object]]) -> list[str]:
    """The names of the operations that have any of the words, the most fitting first."""
    texts = {name: Counter(_terms(searchable(name, op))) for name, op in operations.items()}
    if not texts:
        return []
    mean = sum(sum(each.values()) for each in texts.values()) / len(texts)
    found = Counter(term for each in texts.values() for term in each)
    scores = {}
    for name, terms in texts.items():
        length = _K1 * (1 - _B + _B * sum(terms.values()) / mean)
        scores[name] = sum(
            math.log(1 + (len(texts) - found[term] + 0.5) / (found[term] + 0.5)) * terms[term] * (_K1 + 1)
            / (terms[term] + length)
            for term in set(_terms(words))
            if term in terms
        )  # fmt: skip
    return [name for name in sorted(scores, key=lambda name: -scores[name]) if scores[name] > 0]


def _terms(text: str) -> Iterable[str]:
    return (_ENDING.sub("", word) for word in _WORD.findall(text.lower()) if word not in _STOP)
