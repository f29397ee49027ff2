"""Sentences of notes, each with its line, and which two of two notes are nearest in meaning.

The model compares them where it answers in time; else the words that two sentences share do.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from proto.ops.embed import EmbedResult
from services.knowledge.search.words import count_words
from services.runtime.text.cutting import Section
from services.runtime.text.markdown import plain

MOST_EACH = 24
"""Sentences of a note that are compared, those first that share most words with the other note."""

QUOTED_CHARS = 160
_LEAST_CHARS = 30
_DENSE_LEAST_CHARS = 12
"""Of a script that needs fewer characters."""

_LEAST_COSINE, _LEAST_SHARE = 0.35, 0.15
_TOPIC = 0.5
"""Weight of how near each is to what both notes are about: two that say the same by the way are no reason."""

_COMMON = 3
"""Notes that have a sentence word for word: it is a form of words, and no topic."""

_SENTENCE = re.compile(r"\S.*?(?:[.!?][\"')\]]*(?=\s|$)|[。！？]|$)")  # noqa: RUF001  # full-width marks
_MARKER = re.compile(r"(?:[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?|>\s*")
_POINTER = re.compile(r"(?:see|cf\.|siehe|vgl\.) ", re.IGNORECASE)
"""How a sentence begins that only leads elsewhere."""

_NO_PROSE = ("#", "|", "<", "===", "---", ":::", "[tag")
_FENCES = ("```", "~~~")


class Sentence(NamedTuple):
    """`line` is that of the file, from 1, where it begins."""

    line: int
    text: str

    @property
    def quoted(self) -> str:
        short = self.text if len(self.text) <= QUOTED_CHARS else f"{self.text[:QUOTED_CHARS].rsplit(' ', 1)[0]} …"
        return f"“{short}”"


Vectors = Mapping[str, Sequence[float]]
"""Unit vectors by text."""


def sentences(sections: Iterable[Section]) -> Iterator[Sentence]:
    """The sentences of prose; headings, tables and code are none."""
    fenced = False
    for section in sections:
        paragraph: list[Sentence] = []
        for number, raw in enumerate(section.text.split("\n"), section.first):
            line = raw.strip()
            if line.startswith(_FENCES):
                fenced, line = not fenced, ""
            marker = _MARKER.match(line)
            if fenced or marker or not line or line.startswith(_NO_PROSE):
                yield from _of(paragraph)
                paragraph = []
            line = line[marker.end() :] if marker else line
            if line and not fenced and not line.startswith(_NO_PROSE):
                paragraph.append(Sentence(number, line))
        yield from _of(paragraph)


def _of(paragraph: Sequence[Sentence]) -> Iterator[Sentence]:
    """A paragraph's sentences, given its lines."""
    text, begins = "", []
    for number, line in paragraph:
        begins.append((len(text), number))
        text += f"{line} "
    for match in _SENTENCE.finditer(text.rstrip()):
        said = plain(match[0])
        if (_LEAST_CHARS if said.isascii() else _DENSE_LEAST_CHARS) <= len(said) and not _POINTER.match(said):
            yield Sentence(max(number for at, number in begins if at <= match.start()), said)


def chosen(own: Sequence[Sentence], words: Counter[str], others: Counter[str]) -> list[Sentence]:
    """Those of a note that are compared with another one, given the telling words of both, in the order of the text."""
    if len(own) <= MOST_EACH:
        return list(own)
    both = words.keys() & others.keys()
    weight = {each: len(both & count_words(each.text).keys()) for each in own}
    best = sorted(weight, key=lambda each: (-weight[each], each.line))[:MOST_EACH]
    return sorted(best)


def commonplaces(notes: Iterable[Iterable[Sentence]]) -> frozenset[str]:
    """What stands word for word in several notes."""
    counts = Counter(text for own in notes for text in {each.text for each in own})
    return frozenset(text for text, count in counts.items() if count >= _COMMON)


def unpacked(texts: Sequence[str], found: EmbedResult) -> dict[str, Sequence[float]]:
    """The vectors of `texts`, of which `found` is the answer."""
    numbers, width = found.vectors.data.cast("B").cast("f"), found.vectors.shape[1]
    return {text: numbers[row * width : (row + 1) * width].tolist() for row, text in enumerate(texts)}


def nearest(
    first: Sequence[Sentence], second: Sequence[Sentence], vectors: Vectors
) -> tuple[Sentence, Sentence] | None:
    """The two that are nearest to each other, and to what both notes are about; by words where one has no vector.

    None where no two are near.
    """
    if all(each.text in vectors for each in (*first, *second)):
        least = _LEAST_COSINE
        about = _about([vectors[each.text] for each in (*first, *second)])
        found = [
            (_cosine(one, other), _cosine(one, about) + _cosine(other, about), pair)
            for pair in product(first, second)
            for one, other in [(vectors[pair[0].text], vectors[pair[1].text])]
        ]
    else:
        least = _LEAST_SHARE
        words = {each.text: count_words(each.text).keys() for each in (*first, *second)}
        found = [
            (_share(words[one.text], words[other.text]), 0.0, (one, other)) for one, other in product(first, second)
        ]
    near = [each for each in found if each[0] >= least]
    best = max(near, key=lambda each: (each[0] + _TOPIC * each[1], -each[2][0].line, -each[2][1].line), default=None)
    return None if best is None else best[2]


def _about(vectors: Sequence[Sequence[float]]) -> list[float]:
    """The direction of all of them together."""
    total = [sum(numbers) for numbers in zip(*vectors, strict=True)]
    length = math.hypot(*total) or 1.0
    return [number / length for number in total]


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(map(operator.mul, one, other), 0.0)


def _share(one: KeysView[str], other: KeysView[str]) -> float:
    both = len(one & other)
    return both / len(one | other) if both > 1 else 0.0
