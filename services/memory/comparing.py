"""Whether two statements say the same, say otherwise of the same thing, or have nothing to do with each other.

Both were measured on pairs of short statements with the packaged model (`scripts/bench memory --pairs`): of paraphrases
the cosine is 0.90 and more, of statements that contradict each other 0.70 and more, and of other facts about the same
subjects less; what tells a contradiction from a paraphrase are its numbers, names and negations, and a word that stands
in another's place.
"""

from __future__ import annotations

import enum
import functools
import re
import unicodedata
from typing import NamedTuple

SAME_COSINE = 0.9
"""From here on, with the same numbers, names and negation, statements are taken for the same."""

MOST_WORDS, MOST_SWAPPED = 8, 3
"""Words of two statements that are taken for the same by their cosine; words that both have where one is exchanged."""

CLOSE_COSINE, CLOSE_WORDS = 0.7, 0.5
"""From here on they are about the same: the cosine, or the share of their words that both have (Jaccard)."""

NEAR_WORDS = 0.6
"""From here on one word in another's place is a contradiction also where both name the same names or numbers."""

_WORD = re.compile(r"\d+(?:[.,:/-]\d+)*|\w+(?:['\u2019]\w+)?")
_NEGATIONS = frozenset(
    (
        "not", "no", "never", "none", "without", "cannot", "nothing", "neither", "nor", "nicht", "kein", "keine",
        "keinen", "nie", "niemals", "ohne",
    )
)  # fmt: skip
_SMALL = frozenset(
    (
        "a", "an", "the", "is", "are", "was", "were", "be", "been", "being", "am", "do", "does", "did", "has", "have",
        "had", "to", "of", "in", "on", "at", "by", "for", "with", "from", "as", "and", "or", "that", "this", "these",
        "those", "it", "its", "he", "she", "they", "we", "i", "you", "my", "our", "your", "their", "his", "her", "us",
        "me", "them", "will", "would", "so", "also", "any", "more", "now", "der", "die", "das", "den", "dem", "des",
        "ein", "eine", "einen", "ist", "sind", "hat", "haben", "und", "oder", "im", "zu", "von", "mit", "auf",
    )
)  # fmt: skip


_DIRECTIONS = frozenset(
    (
        "over", "than", "before", "after", "to", "into", "from", "instead", "rather", "under", "above", "below",
        "behind", "als", "vor", "nach", "statt", "lieber", "über", "unter", "zu", "von", "hinter",
    )
)  # fmt: skip
"""Of what stands on both sides of such a word, the order is what is said."""


class Relation(enum.Enum):
    """What a statement is to an earlier one."""

    SAME = enum.auto()
    CONFLICT = enum.auto()
    OTHER = enum.auto()


class Parts(NamedTuple):
    """A statement as it is compared: its words without small ones, which of them are names, its numbers."""

    folded: str
    order: tuple[str, ...]
    words: frozenset[str]
    names: frozenset[str]
    numbers: frozenset[str]
    negated: bool
    subject: str


def fold(text: str) -> str:
    """What statements have in common that differ in case, accents' form, spaces and punctuation alone."""
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


@functools.lru_cache(maxsize=1024)
def parts(text: str) -> Parts:
    """Of one statement."""
    words: list[str] = []
    names: list[str] = []
    negated = False
    for place, word in enumerate(_WORD.findall(unicodedata.normalize("NFKC", text))):
        low = word.casefold().replace("\u2019", "'")
        if low in _NEGATIONS or low.endswith("n't"):
            negated = True
            continue
        low = low.removesuffix("'s")
        if low in _SMALL:
            continue
        if not word[0].isdigit():
            # As near as plurals and persons of verbs come to each other without a dictionary.
            low = low.removesuffix("s") if len(low) > 3 and not low.endswith("ss") else low
            if place and word[0].isupper():
                names.append(low)
        words.append(low)
    numbers = frozenset(word for word in words if word[0].isdigit())
    return Parts(
        fold(text), tuple(words), frozenset(words), frozenset(names), numbers, negated, words[0] if words else ""
    )


def relation(one: str, other: str, cosine: float | None = None) -> Relation:
    """Of two statements; `cosine` is that of their vectors, where it is known."""
    a, b = parts(one), parts(other)
    if a.folded == b.folded:
        return Relation.SAME
    if a.words == b.words and a.order != b.order and not _DIRECTIONS.isdisjoint(a.folded.split()):
        return Relation.CONFLICT
    only_a, only_b = a.words - b.words, b.words - a.words
    if a.subject in only_a and b.subject in only_b:
        return Relation.OTHER
    if a.negated is b.negated and a.numbers == b.numbers and _is_same(a, b, cosine):
        return Relation.SAME
    shared = len(a.words & b.words) / max(1, len(a.words | b.words))
    if not (shared >= CLOSE_WORDS or (cosine is not None and cosine >= CLOSE_COSINE)):
        return Relation.OTHER
    is_swap = bool(only_a and only_b)
    if is_swap is (a.negated is not b.negated):
        # Not this but that; or one of them only says more.
        return Relation.OTHER
    told = (a.numbers | a.names) - {a.subject}
    is_told_alike = is_swap and bool(told) and told == (b.numbers | b.names) - {b.subject}
    return Relation.OTHER if is_told_alike and shared < NEAR_WORDS else Relation.CONFLICT


def _is_same(a: Parts, b: Parts, cosine: float | None) -> bool:
    """Of statements with the same numbers and the same negation."""
    if a.words == b.words:
        return a.subject == b.subject or not (a.names or b.names)
    if cosine is None or cosine < SAME_COSINE or a.names - b.words or b.names - a.words:
        return False
    # Of a long statement the cosine hardly tells that one word of it is another.
    is_swap = len(a.words - b.words) == len(b.words - a.words) == 1 and len(a.words & b.words) > MOST_SWAPPED
    return len(a.words | b.words) <= MOST_WORDS and not is_swap
