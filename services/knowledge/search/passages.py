"""Filters for a search of notes, and conversion of its hits to passages with line numbers."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from proto.errors import InvalidParams
from proto.ops.retrieve import Filter, Hit
from services.knowledge.notes.links import clean_tags
from services.knowledge.operations.notes import SearchDocuments, SearchHit
from services.shared.text.stop_words import STOP_WORDS
from services.shared.times import between

CANDIDATES = 50
SNIPPET_CHARS = 300
_MAX_STEMS = 64
"""Maximum number of stems of a query to highlight, longest first, as each is matched against every text."""

CHARS_PER_TOKEN = 4
"""For English prose; ids and JSON have fewer."""

_WORD = re.compile(r"\w+")


def filters(params: SearchDocuments) -> list[Filter]:
    """Build the filters of a search.  Raises InvalidParams for an invalid time or a blank tag."""
    found = [Filter(field="tags", any_of=[tag]) for tag in tags_of(params.tags)]
    if path := beginning(params):
        found.append(Filter(field="path", prefix=path))
    return found + between("date", params.since, params.until)


def beginning(params: SearchDocuments) -> str:
    """Return the path prefix of a search, relative to the roots."""
    return params.path.removeprefix("./").lstrip("/")


def tags_of(given: Sequence[str]) -> tuple[str, ...]:
    """Normalise tags.  Raises InvalidParams if one is blank."""
    if not all(clean_tags([tag]) for tag in given):
        raise InvalidParams("parameter `tags`: a tag is blank", field="tags")
    return clean_tags(given)


def within(hits: Sequence[SearchHit], max_tokens: int) -> list[SearchHit]:
    """Return the first of `hits` that fit into about `max_tokens` as JSON, at least one."""
    left = max_tokens * CHARS_PER_TOKEN
    kept: list[SearchHit] = []
    for each in hits:
        left -= len(msgspec.json.encode(each))
        if left < 0 and kept:
            break
        kept.append(each)
    return kept


class _Where(msgspec.Struct):
    """An item's lines in the file and, if it spans several sections, `FIRST:LAST:HEADINGS` of each."""

    first: int
    last: int
    parts: list[str] = []


def hit(found: Hit, query: str, source: str) -> SearchHit:
    """Convert a hit to the result format, with its best passage and location."""
    where = msgspec.convert(found.item_metadata, _Where)
    passage, heading, begin, end = best_passage(found.text, query), found.heading, where.first, where.last
    if passage.matched:
        # The text has the same line breaks as the file.
        line = where.first + found.text.count("\n", 0, passage.at)
        for first, last, path in (part.split(":", 2) for part in where.parts):
            if int(first) <= line <= int(last):
                begin, end, heading = int(first), int(last), path
                break
    passage = passage.within(found.text, begin - where.first, end - where.first)
    first_line = where.first + found.text.count("\n", 0, passage.start)
    lines = f"lines {begin}-{end}" if end > begin else f"line {begin}"
    return SearchHit(
        id=found.group,
        score=found.score,
        preview=found.title,
        source=source,
        snippet=passage.text,
        context=f"{heading} ({lines})",
        path=str(found.group_metadata["path"]),
        first_line=first_line,
        last_line=first_line + found.text.count("\n", passage.start, passage.end),
        similarity=None if found.vector is None else round(found.vector, 6),
        matched=found.matched,
    )


@dataclass(frozen=True, slots=True)
class Passage:
    """An excerpt of a text, from `start` to `end`.

    `matched` is True if it contains a word of the query, and `at` is the position of the best match.
    """

    text: str
    start: int
    end: int
    at: int
    matched: bool

    def within(self, text: str, first: int, last: int) -> Passage:
        """Restrict the passage to these lines of `text` (from 0, inclusive)."""
        starts = [0, *(match.end() for match in re.finditer("\n", text)), len(text) + 1]
        begin, end = starts[max(0, min(first, len(starts) - 2))], starts[max(1, min(last + 1, len(starts) - 1))] - 1
        if begin <= self.start and self.end <= end:
            return self
        cut = _cut(text[begin:end], self.at - begin, matched=self.matched)
        return Passage(cut.text, cut.start + begin, cut.end + begin, self.at, self.matched)


def best_passage(text: str, query: str) -> Passage:
    """Return about `SNIPPET_CHARS` of `text` with the most different words of `query`, or else the beginning."""
    places = [(match.start(), match[0].casefold()) for match in _pattern(query).finditer(text)]
    if not places:
        return _cut(text, 0, matched=False)
    best_start, best_score = places[0][0], 0.0
    last = 0
    counts: Counter[str] = Counter()
    for first, (position, stem) in enumerate(places):
        while last < len(places) and places[last][0] < position + SNIPPET_CHARS - 60:
            counts[places[last][1]] += 1
            last += 1
        score = sum(map(bool, counts.values())) + 0.01 * (last - first)
        if score > best_score:
            best_start, best_score = position, score
        counts[stem] -= 1
    return _cut(text, best_start, matched=True)


@functools.lru_cache(maxsize=64)
def _pattern(query: str) -> re.Pattern[str]:
    """Compile a pattern for the stems of a query's words; short ones match only whole words.  Cached for all hits."""
    terms = {word.casefold() for word in _WORD.findall(query)}
    stems = sorted(map(_stem, terms - STOP_WORDS or terms), key=len, reverse=True)[:_MAX_STEMS]
    # Match parts of compound names, as the search does.
    sought = (re.escape(stem) if len(stem) > 3 else rf"\b{re.escape(stem)}\b" for stem in stems)
    return re.compile("|".join(sought) or "(?!)", re.IGNORECASE)


def _stem(word: str) -> str:
    for ending in ("ing", "ies", "es", "ed", "s"):
        if len(word) > len(ending) + 3 and word.endswith(ending):
            return word.removesuffix(ending)
    return word


def _cut(text: str, around: int, *, matched: bool) -> Passage:
    """Cut about `SNIPPET_CHARS` of `text` at word boundaries, with `around` near the start."""
    start, end = 0, len(text)
    if len(text) > SNIPPET_CHARS:
        start = max(0, min(around - 60, len(text) - SNIPPET_CHARS))
        if start:
            # Prefer to start at a line, then at a word.
            line = text.rfind("\n", max(0, start - 40), around) + 1
            space = text.find(" ", start, around) + 1
            start = line or space or start
        end = min(len(text), start + SNIPPET_CHARS)
        if end < len(text):
            end = max(text.rfind(" ", start, end), text.rfind("\n", start, end), start + SNIPPET_CHARS // 2)
    said = text[start:end].strip()
    begin = text.find(said, start)
    shown = ("… " if start else "") + said + (" …" if end < len(text) else "")
    return Passage(shown, begin, begin + len(said), around, matched)
