"""Searching notes: conditions for the search, and its hits as passages that name their lines."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from proto.errors import InvalidParams
from proto.ops.knowledge import Instant, SearchDocuments, SearchHit
from proto.ops.retrieve import Filter, Hit, Value
from services.knowledge.notes.dates import instant
from services.knowledge.notes.links import clean_tags

CANDIDATES = 50
SNIPPET_CHARS = 300
CHARS_PER_TOKEN = 4
"""Of English prose; ids and JSON are no longer."""

_WORD = re.compile(r"\w+")
_STOP_WORDS = frozenset(
    _WORD.findall(
        """a about an and are as at be by can could did do does for from had has have how i if in into is it its me my
        no not of on or our so than that the their them then there these they this to was we were what when where
        which who why will with you your"""
    )
)


def filters(params: SearchDocuments) -> list[Filter]:
    """The conditions that `params` states.

    Raises:
        InvalidParams: a time that cannot be read, or a tag that is blank.
    """
    found: list[Filter] = []
    for tag in params.tags:
        cleaned = clean_tags([tag])
        if not cleaned:
            raise InvalidParams("parameter `tags`: a tag is blank", field="tags")
        found.append(Filter(field="tags", any_of=list(cleaned)))
    if path := params.path.removeprefix("./").lstrip("/"):
        found.append(Filter(field="path", prefix=path))
    if params.since is not None:
        found.append(Filter(field="date", at_least=_seconds(params.since, "since")))
    if params.until is not None:
        found.append(Filter(field="date", at_most=_seconds(params.until, "until")))
    return found


def _seconds(value: Instant, name: str) -> float:
    if not isinstance(value, str):
        return float(value)
    try:
        return instant(value, end_of_day=name == "until")
    except (ValueError, OverflowError):
        raise InvalidParams(
            f"parameter `{name}`: {value[:80]!r} is no time;"
            " give RFC 3339 (2026-01-17T12:00:00Z), a date (2026-01-17), or Unix seconds",
            field=name,
        ) from None


def within(hits: Sequence[SearchHit], max_tokens: int) -> list[SearchHit]:
    """The best of `hits` that together are about `max_tokens` long as JSON; the first in any case."""
    left = max_tokens * CHARS_PER_TOKEN
    kept: list[SearchHit] = []
    for each in hits:
        left -= len(msgspec.json.encode(each))
        if left < 0 and kept:
            break
        kept.append(each)
    return kept


def hit(found: Hit, query: str, source: str) -> SearchHit:
    """A hit of the search as the answer has it."""
    passage = best_passage(found.text, query)
    return SearchHit(
        id=found.group,
        score=found.score,
        preview=found.title,
        source=source,
        snippet=passage.text,
        context=context(found.heading, found.item_metadata, found.text, passage),
    )


@dataclass(frozen=True, slots=True)
class Passage:
    """A cut of a text, and where it starts there; `matched` is whether a word of the query is in it."""

    text: str
    start: int
    matched: bool


def best_passage(text: str, query: str) -> Passage:
    """The stretch of about `SNIPPET_CHARS` of `text` with the most different words of `query`, else its beginning."""
    stems, pattern = _sought(query)
    places = []
    for start, found in _words(text, pattern):
        word = _stem(found)
        # The search finds compound names by their parts, and so does this.
        places += [(start, stem) for stem in stems if word == stem or (len(stem) > 3 and stem in word)]
    if not places:
        return _cut(text, 0, matched=False)
    best_start, best_score = places[0][0], 0.0
    last = 0
    counts: dict[str, int] = {}
    for first, (position, stem) in enumerate(places):
        while last < len(places) and places[last][0] < position + SNIPPET_CHARS - 60:
            counts[places[last][1]] = counts.get(places[last][1], 0) + 1
            last += 1
        score = len(counts) + 0.01 * (last - first)
        if score > best_score:
            best_start, best_score = position, score
        counts[stem] -= 1
        if not counts[stem]:
            del counts[stem]
    return _cut(text, best_start, matched=True)


@functools.lru_cache(maxsize=64)
def _sought(query: str) -> tuple[tuple[str, ...], re.Pattern[str]]:
    """The stems of a query's words, and a pattern that finds any of them: the same for all hits of a search."""
    terms = {word.casefold() for word in _WORD.findall(query)}
    terms = (terms - _STOP_WORDS) or terms
    stems = tuple(dict.fromkeys(_stem(term) for term in sorted(terms)))
    return stems, re.compile("|".join(map(re.escape, stems)) or "(?!)", re.IGNORECASE)


def _words(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Where the words of `text` begin in which `pattern` is found, and those words case folded."""
    end = 0
    # Few words of a text are candidates: to cut out all of them takes ten times as long.
    for match in pattern.finditer(text):
        if (start := match.start()) < end:
            continue
        while start > end and (text[start - 1].isalnum() or text[start - 1] == "_"):
            start -= 1
        if (whole := _WORD.match(text, start)) is not None:
            end = whole.end()
            yield start, whole[0].casefold()


def _stem(word: str) -> str:
    for ending in ("ing", "ies", "es", "ed", "s"):
        if len(word) > len(ending) + 3 and word.endswith(ending):
            return word.removesuffix(ending)
    return word


def _cut(text: str, around: int, *, matched: bool) -> Passage:
    """About `SNIPPET_CHARS` of `text` with `around` near their start, from word to word."""
    if len(text) <= SNIPPET_CHARS:
        return Passage(text.strip(), 0 if not matched else around, matched)
    start = max(0, min(around - 60, len(text) - SNIPPET_CHARS))
    if start:
        # A line's beginning is the best place to start, a word's the next.
        line = text.rfind("\n", max(0, start - 40), around) + 1
        space = text.find(" ", start, around) + 1
        start = line or space or start
    end = min(len(text), start + SNIPPET_CHARS)
    if end < len(text):
        end = max(text.rfind(" ", start, end), text.rfind("\n", start, end), start + SNIPPET_CHARS // 2)
    cut = text[start:end].strip()
    return Passage(("… " if start else "") + cut + (" …" if end < len(text) else ""), max(start, around), matched)


def context(heading: str, metadata: Mapping[str, Value], text: str, passage: Passage) -> str:
    """Heading path and lines of the passage, `Guide > Install (lines 10-24)`.

    A section that was put together from several names the part that the passage stands in, or all of it where no
    word of the query told which.
    """
    first, last = metadata.get("first"), metadata.get("last")
    parts = metadata.get("parts")
    if passage.matched and isinstance(parts, list) and isinstance(first, int):
        line = _line(parts, text, passage.start)
        for part in parts:
            begin, end, path = part.split(":", 2)
            if int(begin) <= line <= int(end):
                return _stated(path, int(begin), int(end))
    if isinstance(first, int) and isinstance(last, int):
        return _stated(heading, first, last)
    return heading


def _line(parts: Sequence[str], text: str, offset: int) -> int:
    """The line in the file of a place in a section's text, whose parts stand one blank line apart."""
    passed = text.count("\n", 0, offset)
    for part in parts:
        begin, end, _ = part.split(":", 2)
        length = int(end) - int(begin) + 1
        if passed < length:
            return int(begin) + passed
        passed -= length + 1
    return int(parts[-1].split(":", 2)[1])


def _stated(path: str, first: int, last: int) -> str:
    lines = f"lines {first}-{last}" if last > first else f"line {first}"
    return f"{path} ({lines})"
