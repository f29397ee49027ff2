"""Text to the terms it is found by: code-aware, for any script, the same for what is stored and what is asked.

`parseHttpRequest`, `os.path.join` and `snake_case` are found whole and by part. Scripts that put no spaces between
words become pairs of characters, as in Lucene's CJK analyser. Stemming and folding of accents are the index's (FTS5,
porter).
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator

MAX_TERM = 64
"""Characters of a term; what is longer (a key, a blob) is found by its beginning."""

MAX_QUERY_TERMS = 64
"""Distinct terms of a query that are looked up; a pasted page is found by its most frequent ones."""

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_RUN = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+(?:[._\-/\\:]{{1,2}}[^\W_{_UNSPACED}]+)*")
_ASCII_RUN = re.compile(r"[A-Za-z\d]+(?:[._\-/\\:]{1,2}[A-Za-z\d]+)*", re.ASCII)
_UNSPACED_START = re.compile(f"[{_UNSPACED}]")
_SEPARATOR = re.compile(r"[._\-/\\:]+")
_HUMP = re.compile(r"[a-z\d][A-Z]|[A-Z]{2}[a-z]")
_CAMEL = re.compile(r"[A-Z]{2,}s(?![a-z])|[A-Z]+(?![a-z])\d*|[A-Z]?[a-z\d]+|[^A-Za-z\d]+|\d+")

STOP_WORDS = frozenset(
    (
        "a", "about", "above", "after", "again", "all", "also", "am", "an", "and", "any", "are", "as", "at",
        "be", "because", "been", "before", "being", "below", "between", "both", "but", "by", "can", "could",
        "did", "do", "does", "doing", "done", "down", "during", "each", "few", "for", "from", "further", "had",
        "has", "have", "having", "he", "her", "here", "hers", "him", "his", "how", "i", "if", "in", "into",
        "is", "it", "its", "itself", "just", "may", "me", "might", "more", "most", "must", "my", "no", "nor",
        "not", "now", "of", "off", "on", "once", "only", "or", "other", "our", "ours", "out", "over", "own",
        "s", "same", "shall", "she", "should", "so", "some", "such", "t", "than", "that", "the", "their",
        "theirs", "them", "then", "there", "these", "they", "this", "those", "through", "to", "too", "under",
        "until", "up", "upon", "us", "very", "was", "we", "were", "what", "when", "where", "which", "while",
        "who", "whom", "why", "will", "with", "would", "you", "your", "yours",
    )
)  # fmt: skip
"""Left out of queries that hold anything else: they decide nothing and make the index read most of itself."""


def indexed(text: str) -> str:
    """`text` as the index reads it."""
    return " ".join(terms(text))


def terms(text: str) -> list[str]:
    """The terms of `text` in order; a compound comes whole (its parts joined by `_`) and then part by part."""
    runs = _ASCII_RUN.findall(text) if text.isascii() else _RUN.findall(unicodedata.normalize("NFKC", text))
    found: list[str] = []
    for run in runs:
        # Most words are of small letters alone, and their own only term.
        if run.isalnum() and run.islower() and len(run) <= MAX_TERM:
            found.append(run)
        else:
            found += _parts(run)
    return found


@functools.lru_cache(maxsize=32_768)
def _parts(run: str) -> tuple[str, ...]:
    # Nearly all words of a text have been met before.
    if _UNSPACED_START.match(run):
        return tuple(_pairs(run))
    found: list[str] = []
    pieces = _SEPARATOR.split(run)
    if len(pieces) > 1:
        found.append("_".join(pieces).lower()[:MAX_TERM])
    for piece in pieces:
        found.append(piece.lower()[:MAX_TERM])
        if _HUMP.search(piece):
            parts = [part.lower() for part in _CAMEL.findall(piece)]
            # The `v` of `vCJD` says nothing of its own.
            found.extend(part[:MAX_TERM] for part in parts if len(part) > 1 and len(parts) > 1)
    return tuple(found)


def query_terms(query: str) -> list[str]:
    """The distinct terms to look up, at most `MAX_QUERY_TERMS`; none where the query holds no word at all."""
    counts: dict[str, int] = {}
    for term in terms(query):
        counts[term] = counts.get(term, 0) + 1
    telling = [term for term in counts if term not in STOP_WORDS] or list(counts)
    if len(telling) > MAX_QUERY_TERMS:
        telling = sorted(telling, key=lambda term: (-counts[term], -len(term)))[:MAX_QUERY_TERMS]
    return telling


def _pairs(run: str) -> Iterator[str]:
    if len(run) == 1:
        yield run
    for start in range(len(run) - 1):
        yield run[start : start + 2]
