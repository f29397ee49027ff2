"""The tokenizer: code-aware, for any script, and the same for stored text and queries.

`parseHttpRequest`, `os.path.join` and `snake_case` match as a whole and by part. Scripts without spaces between words
are split into pairs of characters, as in Lucene's CJK analyser; a single character matches too. Case, accents and
invisible characters are ignored (Weiß matches weiss), umlauts match both spellings (Müller, Mueller), and an emoji is a
word. The index does the stemming (FTS5, porter).
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Iterator

from services.shared.text.invisible import visible
from services.shared.text.stop_words import STOP_WORDS

MAX_TERM = 64
"""Maximum length of a term.  Longer ones (a key, a blob) are truncated."""

MAX_QUERY_TERMS = 64
"""Maximum number of distinct terms in a query.  A pasted page keeps its most frequent terms."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003134f"
)
_EMOJI = "\u2600-\u27bf\u2b50\u2b55\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff"
_ACCENTS = "\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670"
"""Combining marks that are often omitted in Latin, Greek, Cyrillic, Hebrew and Arabic."""

_WORD = rf"(?:[^\W_{_UNSPACED}]|[{_ACCENTS}\u0900-\u0963\u0966-\u0dff])++"
"""The vowels of Indian scripts are marks too, but part of the word."""

_SIGNED = r"(?:\+\+(?![\w+])|(?<=\b[CFJcfj])#(?!\w))?"
"""`C++`, `g++`, `C#` and `F#` are names."""
_RUN = re.compile(rf"[{_UNSPACED}]+|[{_EMOJI}]|{_WORD}(?:[._\-/\\:]{{1,2}}{_WORD})*{_SIGNED}")
_ASCII_RUN = re.compile(rf"[A-Za-z\d]+(?:[._\-/\\:]{{1,2}}[A-Za-z\d]+)*{_SIGNED}", re.ASCII)
_SIGNS = {"++": "pp", "#": "sharp"}
_UNSPACED_START = re.compile(f"[{_UNSPACED}]")
_EMOJI_START = re.compile(f"[{_EMOJI}]")
_ACCENT = re.compile(f"[{_ACCENTS}]")
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "þ": "th", "\u0131": "i"})
_SPELT_OUT = re.compile(r"(?<![aeiouq])([aou])e(?=[^aeiou])")
_SEPARATOR = re.compile(r"[._\-/\\:]+")
_HUMP = re.compile(r"[a-z\d][A-Z]|[A-Z]{2}[a-z]")
_CAMEL = re.compile(r"[A-Z]{2,}s(?![a-z])|[A-Z]+(?![a-z])\d*|[A-Z]?[a-z\d]+|[^A-Za-z\d]+|\d+")


def indexed(text: str) -> str:
    """Return `text` as the index reads it: its terms, separated by spaces."""
    return " ".join(_terms(text, _parts))


def terms(text: str) -> list[str]:
    """Return the terms of `text` in order; a compound as a whole (its parts joined by `_`), then part by part."""
    return _terms(text, _asked)


def spellings(term: str) -> tuple[str, ...]:
    """Return other spellings of `term` in the index: `muller` for `mueller`, as `Müller` is indexed as `muller`."""
    short = _SPELT_OUT.sub(r"\1", term) if len(term) > 4 else term
    return (short,) if short != term else ()


def _terms(text: str, parts: Callable[[str], tuple[str, ...]]) -> list[str]:
    runs = _ASCII_RUN.findall(text) if text.isascii() else _RUN.findall(visible(unicodedata.normalize("NFKC", text)))
    found: list[str] = []
    for run in runs:
        # Most words are lower-case letters only, and yield just themselves.
        if run.isascii() and run.isalnum() and run.islower() and len(run) <= MAX_TERM and not _SPELT_OUT.search(run):
            found.append(run)
        else:
            found += parts(run)
    return found


@functools.lru_cache(maxsize=32_768)
def _parts(run: str) -> tuple[str, ...]:
    # Cached, because nearly all words of a text have occurred before.
    if _UNSPACED_START.match(run):
        return (*_pairs(run), *(run if len(run) > 1 else ()))
    found = _asked(run)
    return (*found, *(other for term in found for other in spellings(term)))


@functools.lru_cache(maxsize=4096)
def _asked(run: str) -> tuple[str, ...]:
    if _UNSPACED_START.match(run):
        return tuple(_pairs(run))
    if _EMOJI_START.match(run):
        return (f"_{ord(run):x}",)
    found: list[str] = []
    for sign, spelt in _SIGNS.items():
        if run.endswith(sign):
            run = run.removesuffix(sign)
            found.append(_folded(_SEPARATOR.split(run)[-1] + spelt)[:MAX_TERM])
    pieces = _SEPARATOR.split(run)
    if len(pieces) > 1:
        found.append("_".join(map(_folded, pieces))[:MAX_TERM])
    for piece in pieces:
        found.append(_folded(piece)[:MAX_TERM])
        if _HUMP.search(piece):
            parts = [_folded(part) for part in _CAMEL.findall(piece)]
            # A single letter, such as the `v` of `vCJD`, means nothing alone.
            found.extend(part[:MAX_TERM] for part in parts if len(part) > 1 and len(parts) > 1)
    # A lone accent folds to nothing.
    return tuple(filter(None, found))


def _folded(word: str) -> str:
    """Remove case and accents; `ß` becomes `ss`."""
    if word.isascii():
        return word.lower()
    apart = unicodedata.normalize("NFKD", word.casefold())
    return unicodedata.normalize("NFC", _ACCENT.sub("", apart)).translate(_LETTERS)


def query_terms(query: str) -> list[str]:
    """Return the distinct terms to look up, at most `MAX_QUERY_TERMS`; empty if the query has no words."""
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
