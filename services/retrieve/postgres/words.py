"""Words for PostgreSQL's full-text search: the same terms as in the local index, and the same score, BM25.

PostgreSQL's own ranking knows no document frequencies. Of a single word, `ts_rank_cd` returns the sum of its weights in
a text, which is what BM25 (Robertson and Zaragoza, 2009) takes as its frequency. So the score is computed in SQL, with
the constants of SQLite's FTS5.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Sequence

import Stemmer  # type: ignore[import-not-found]  # has no types

from services.retrieve.index.terms import indexed, spellings

VERSION = "1"
"""Version of `words`.  Collections with another one are indexed again."""

WEIGHTS = "{0.5, 0, 0.75, 1}"
"""Of the classes D (text), C, B (heading) and A (title), halved, because PostgreSQL allows at most 1."""

K1, B = 1.2, 0.75

MAX_TERMS = 16_000
"""PostgreSQL counts positions up to 16,383."""

MAX_BYTES = 900_000
"""A whole entry may have 1 MB."""

_local = threading.local()


def entry(title: str, heading: str, text: str) -> tuple[str, int]:
    """Return the tsvector of an item, as text, and its number of words."""
    places: dict[str, list[str]] = {}
    at = size = 0
    for words, weight in ((indexed(title), "A"), (indexed(heading), "B"), (indexed(text), "")):
        for word in words.split():
            at += 1
            if at <= MAX_TERMS and size < MAX_BYTES:
                term = stem(word)
                # A position has 2 bytes; their number, and what aligns it, up to 3.
                size += 2 if term in places else 5 + len(term.encode())
                places.setdefault(term, []).append(f"{at}{weight}")
    # Terms contain neither quotes nor backslashes.
    return " ".join(f"'{word}':{','.join(where)}" for word, where in places.items()), at


def expression(term: str) -> str:
    """Return a tsquery for `term` in any spelling."""
    return " | ".join(f"'{stem(each)}'" for each in (term, *spellings(term)))


def any_of(terms: Iterable[str]) -> str:
    return " | ".join(map(expression, terms))


def all_of(terms: Sequence[str]) -> str:
    return " & ".join(f"({expression(term)})" for term in terms)


@functools.lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return the stem by Porter's algorithm, as FTS5 does; short words stay as they are."""
    if len(word) < 3 or not word.isascii():
        return word
    stemmer = getattr(_local, "stemmer", None)
    if stemmer is None:
        # One for each thread, since it is not safe in several.
        stemmer = _local.stemmer = Stemmer.Stemmer("porter", 0)
    return str(stemmer.stemWord(word))
