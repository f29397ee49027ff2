"""Cuts a text into pieces that are found and embedded separately, each with its line numbers.

A piece is as long as the model can read together with its title and headings. It ends where a heading begins. A long
section is cut between its blocks, then at blank lines, between lines and between sentences. Short neighbours are
merged, and each piece remembers its parts, so that a hit can still name its heading and lines. A piece has as many line
breaks as its line numbers imply. Data such as base64 means nothing to a model or a reader: only its beginning stays.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.shared.models.measure import Measure

VERSION = 1
"""Increases when the same text would be cut in different places."""

AHEAD = 512
"""Pieces that may wait for their vectors while texts are cut again; all others can still be found as before."""

AGAIN_S = 1.0
"""Seconds between checks of how many pieces wait."""

SHORT_SHARE = 1 / 4
"""Share of the window below which a piece is merged with its neighbour if both fit."""

PREFIX_CHARS = 240
"""Characters of a title, and of a heading path, that are embedded with each piece."""

KEPT_CHARS = 64
"""Characters kept of a run of data; a query for it is looked up by this many."""

_RUN = re.compile(r"[A-Za-z0-9+/=_-]{60,}")
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]+")
_CHANGE = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")
_CHANGES = 0.25
"""Rate of changes per character from lower to upper case or between letters and digits, above which text is data.
Base64 has 0.4, hexadecimal digits 0.5, a name or a path less than 0.2."""
_CHANGES_INSIDE = 0.18
"""The limit after a line of data: one base64 line in 300 falls below `_CHANGES` by chance."""

_MARK = "…[{} characters of data left out]"
_MARKED = re.compile(rf"[A-Za-z0-9+/=_-]{{{KEPT_CHARS}}}…\[\d+ characters of data left out\]")
_ENDINGS = (re.compile(r".*(?:[.!?;]\s|[。！？；])", re.DOTALL), re.compile(r".*(?:\s|[、，])", re.DOTALL))  # noqa: RUF001
"""Ends of a sentence, or else of a word; full-width marks end sentences too."""


@dataclass(frozen=True, slots=True)
class Part:
    """Lines (from 1, inclusive) of the file under one heading; `path` is the headings, outermost first."""

    first: int
    last: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A piece of a text; `parts` are in line order, `tokens` excludes title and headings."""

    text: str
    tokens: int
    parts: tuple[Part, ...]

    @property
    def first(self) -> int:
        return self.parts[0].first

    @property
    def last(self) -> int:
        return self.parts[-1].last

    @property
    def path(self) -> tuple[str, ...]:
        """The headings that all parts share."""
        levels = zip(*(part.path for part in self.parts), strict=False)
        return tuple(level[0] for level in itertools.takewhile(lambda level: len(set(level)) == 1, levels))


class Block(NamedTuple):
    """Lines (from 0, end exclusive) that belong together; a heading has a `level` from 1 and a `title`."""

    first: int
    end: int
    level: int = 0
    title: str = ""


def cut(lines: Sequence[str], blocks: Sequence[Block], title: str, measure: Measure) -> list[Section]:
    """Cut a text into pieces that the model reads whole under `title`; lines outside all blocks are left out."""
    budget = functools.lru_cache(256)(functools.partial(_budget, title, measure))
    text = _Lines(lines, measure)
    pieces = (
        Section(unit.text, unit.tokens, (Part(unit.first + 1, unit.last + 1, path),))
        for path, run in _runs(blocks)
        for unit in text.split(run, budget(path))
    )
    return _merged(pieces, budget, round(measure.window * SHORT_SHARE))


def embedded_text(title: str, heading: str, text: str) -> str:
    """Return the text that is embedded for a piece: its title, heading path and text, each once, without data."""
    lines: list[str] = []
    for line in (title.strip()[:PREFIX_CHARS].strip(), heading.strip()[-PREFIX_CHARS:].strip()):
        if line and not text.lstrip().startswith(line) and not any(line in other for other in lines):
            lines = [other for other in lines if other not in line]
            lines.append(line)
    return "\n".join((*lines, _MARKED.sub("", text)))


def without_data(lines: Sequence[str]) -> tuple[list[str], int]:
    """Truncate each run of data in the lines. Returns the lines, and how many characters were left out.

    A line that is all data and follows another such line becomes blank.
    """
    kept: list[str] = []
    total = 0
    inside = False
    for line in lines:
        left, was_inside = 0, inside

        def shorten(run: re.Match[str], was_inside: bool = was_inside) -> str:
            nonlocal left
            if not _is_data(run[0], _CHANGES_INSIDE if was_inside else _CHANGES):
                return run[0]
            left += len(run[0])
            more = len(run[0]) - KEPT_CHARS
            return run[0][:KEPT_CHARS] + _MARK.format(more) if more > 0 else run[0]

        short = _RUN.sub(shorten, line) if len(line) >= KEPT_CHARS - 4 else line
        alone = bool(left) and left >= len(line.strip(" \t\"',;\\>"))
        kept.append("" if alone and inside else short)
        total += left if kept[-1] != line else 0
        inside = alone
    return kept, total


def _is_data(run: str, changes: float) -> bool:
    sample = run[:2000]
    # A digest is worth searching for.
    if len(run) <= KEPT_CHARS and _HEXADECIMAL.fullmatch(run):
        return False
    return sample.isdigit() or len(_CHANGE.findall(sample)) >= changes * len(sample)


def _budget(title: str, measure: Measure, path: tuple[str, ...]) -> int:
    """Return how many tokens a text under these headings may have; always at least a few."""
    return max(measure.window // 4, measure.window - measure(embedded_text(title, " > ".join(path), "")))


def _runs(blocks: Sequence[Block]) -> Iterator[tuple[tuple[str, ...], list[Block]]]:
    """Yield the heading path and blocks of each heading, its own block first."""
    stack: list[tuple[int, str]] = []
    run: list[Block] = []
    for block in blocks:
        if block.level:
            if run:
                yield tuple(title for _, title in stack), run
            stack = [*((level, title) for level, title in stack if level < block.level), (block.level, block.title)]
            run = []
        run.append(block)
    if run:
        yield tuple(title for _, title in stack), run


_UNEVEN = 1.1
"""How much longer than the average a unit may be, so that it can end with a line or a sentence."""


class _Unit(NamedTuple):
    """Lines (from 0, inclusive), or part of one, as text with `last - first` line breaks."""

    first: int
    last: int
    tokens: int
    text: str

    def and_then(self, other: _Unit) -> _Unit:
        text = self.text + "\n" * (other.first - self.last) + other.text
        return _Unit(self.first, other.last, self.tokens + other.tokens, text)

    def trimmed(self) -> _Unit:
        """Return the unit without blank lines around it."""
        end = len(self.text.rstrip())
        start = self.text.rfind("\n", 0, len(self.text) - len(self.text.lstrip())) + 1
        first, last = self.first + self.text.count("\n", 0, start), self.last - self.text.count("\n", end)
        return _Unit(first, last, self.tokens, self.text[start:end])


class _Lines:
    """The lines of a text, each with its tokens, line break included."""

    def __init__(self, lines: Sequence[str], measure: Measure) -> None:
        self._lines = lines
        self._measure = measure
        # A line as long as pages is counted only when it is cut.
        self._long = 8 * measure.window
        self._sizes = [
            0 if not line.strip() else measure(f"{line}\n") if len(line) <= self._long else len(line) // 4
            for line in lines
        ]

    def split(self, run: Sequence[Block], budget: int) -> Iterator[_Unit]:
        """Split the blocks of one heading into units of at most `budget` tokens and similar size."""
        head = self._unit(run[0].first, run[0].end) if run[0].level else None
        if head is not None and head.tokens > budget // 2:
            head = None
        # A heading alone means little, so it stays with the text that follows it.
        budget -= head.tokens if head is not None else 0
        rest = run[head is not None :]
        total = sum(sum(self._sizes[block.first : block.end]) for block in rest)
        limit = min(budget, math.ceil(_UNEVEN * total / max(1, math.ceil(total / budget))))
        taken: _Unit | None = None
        for unit in (unit for block in rest for unit in self._units(block, limit)):
            if taken is not None and taken.tokens + unit.tokens > limit:
                yield (taken if head is None else head.and_then(taken)).trimmed()
                taken, head = unit, None
            else:
                taken = unit if taken is None else taken.and_then(unit)
        last = taken if head is None else head if taken is None else head.and_then(taken)
        if last is not None and last.text.strip():
            yield last.trimmed()

    def _unit(self, first: int, end: int) -> _Unit:
        end = min(end, len(self._lines))
        return _Unit(first, end - 1, sum(self._sizes[first:end]), "\n".join(self._lines[first:end]))

    def _units(self, block: Block, limit: int) -> Iterator[_Unit]:
        """Split a block into units of at most `limit` tokens, at the least disruptive places."""
        start, total = block.first, 0
        for number in range(block.first, min(block.end, len(self._lines))):
            size = self._sizes[number]
            while start < number and total + size > limit:
                end = number if size > limit else _best_break(self._lines, start, number)
                if any(self._sizes[start:end]):
                    yield self._unit(start, end)
                start = end
                total = sum(self._sizes[start:number])
            total += size
            if size > limit:
                yield from split_line(number, self._lines[number], limit, self._measure)
                start, total = number + 1, 0
        if total:
            yield self._unit(start, block.end)


def _best_break(lines: Sequence[str], start: int, end: int) -> int:
    """Return the line in the second half of a range before which a cut is least disruptive."""

    def weight(number: int) -> tuple[int, int]:
        after_blank = not lines[number - 1].strip()
        begins = number < len(lines) and bool(lines[number].strip()) and not lines[number][0].isspace()
        return 2 * after_blank + (begins and after_blank), number

    return max(range(start + (end - start + 1) // 2, end + 1), key=weight) if end - start > 1 else end


def split_line(number: int, line: str, budget: int, measure: Callable[[str], int]) -> Iterator[_Unit]:
    """Split one long line into pieces that end with a sentence or a word if possible, else anywhere."""
    start, guess = 0, 4 * budget
    while start < len(line):
        end = min(len(line), start + guess)
        while (tokens := measure(line[start:end])) > budget and end - start > 1:
            end = start + max(1, (end - start) * budget // (tokens + 1))
        if end < len(line):
            found = (ending.match(line, start + (end - start) // 2, end) for ending in _ENDINGS)
            end = next((match.end() for match in found if match is not None), end)
        if line[start:end].strip():
            yield _Unit(number, number, tokens, line[start:end])
        # The next piece is likely to be as dense; counting much more than is taken would be wasted work.
        guess = min(8 * budget, max(16, (end - start) * 5 // 4))
        start = end


def _merged(pieces: Iterator[Section], budget: Callable[[tuple[str, ...]], int], short: int) -> list[Section]:
    """Merge short neighbours if the result still fits into one piece."""
    merged: list[Section] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if last is not None and min(last.tokens, piece.tokens) < short:
            text = last.text + "\n" * (piece.first - last.last) + piece.text
            both = Section(text, last.tokens + piece.tokens, last.parts + piece.parts)
            if both.tokens <= budget(both.path):
                merged[-1] = both
                continue
        merged.append(piece)
    return merged
