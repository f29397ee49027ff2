"""A note parsed from its text: title, date, tags, references, and its body in sections.

Parsing is total: any text gives a note. `problem` names the part that could not be understood; the rest is used.

Sections are pieces of about 200 words that follow the headings, each with its lines. The blocks come from a CommonMark
parser (its block rules alone), so that a `#` in a code fence, a list or a comment is no heading. A section ends where a
heading begins; a long one is split between its paragraphs, then between lines, then between sentences; short neighbours
are put together, and each remembers its parts, so that a hit can still name its heading and lines.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markdown_it import MarkdownIt

from services.knowledge.notes import frontmatter
from services.knowledge.notes.dates import instant
from services.knowledge.notes.files import Place
from services.knowledge.notes.links import Reference, pointers

VERSION = 3
"""Rises when the same text would give another note: then all notes are read again."""

MAX_INDEXED_CHARS = 4 * 1024 * 1024
"""Of a longer note only so much is searched; all of it is still read."""

MIN_EMBEDDED_CHARS = 51
"""A body of 50 characters or less says too little to have a meaning of its own."""

TARGET_WORDS = 220
"""An encoder reads 256 word pieces, about 200 English words; longer text is cut there."""

MIN_WORDS = 60
"""A shorter section is put together with its neighbour where both fit."""

_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_SENTENCE = re.compile(r"[^.!?;:,。！？]*[.!?;:,。！？]\s*|.+")  # noqa: RUF001 - the full-width marks end sentences too
_CHARS_PER_WORD = 8
"""Text without spaces (a table, minified data) is measured by its length instead."""

_WINDOW = (TARGET_WORDS + 1) * _CHARS_PER_WORD
"""Any text of this many characters counts for more than `TARGET_WORDS` words."""


@dataclass(frozen=True, slots=True)
class Part:
    """Lines (from 1, inclusive) of the file under one heading; `path` is the headings from the outermost in."""

    first: int
    last: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A piece of a note that is searched and embedded as one; `parts` are in the order of their lines."""

    text: str
    words: int
    parts: tuple[Part, ...]

    @property
    def first(self) -> int:
        return self.parts[0].first

    @property
    def last(self) -> int:
        return self.parts[-1].last

    @property
    def path(self) -> tuple[str, ...]:
        """The headings that all parts stand under."""
        levels = zip(*(part.path for part in self.parts), strict=False)
        return tuple(level[0] for level in itertools.takewhile(lambda level: len(set(level)) == 1, levels))


@dataclass(frozen=True, slots=True)
class Outline:
    """What a body holds: sections, the texts of its headings, and the lines (from 0, end exclusive) that are code."""

    sections: tuple[Section, ...]
    headings: tuple[str, ...]
    code: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A note as it is indexed; `date` is Unix seconds from its front matter."""

    title: str
    sections: tuple[Section, ...]
    references: tuple[Reference, ...]
    tags: tuple[str, ...]
    date: float | None
    embed: bool
    front_matter: Section | None
    problem: str | None


def parse(text: str, place: Place) -> Note:
    """The note at `place` with the contents `text`."""
    problem = None
    normal = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if len(normal) > MAX_INDEXED_CHARS:
        problem = f"only the first {MAX_INDEXED_CHARS} of {len(normal)} characters are searched"
        normal = normal[:MAX_INDEXED_CHARS]
    front, body = frontmatter.split(normal)
    plan = outline(body, front.lines + 1)
    references, tags = pointers(body, plan.code, front, place)
    date = None
    for key in ("date", "updated", "modified", "created"):
        value = front.first(key)
        if value is not None:
            try:
                date = instant(value)
                break
            except (ValueError, OverflowError):
                problem = problem or f"front matter `{key}` is no date: {value[:80]!r}"
    head = None
    if front.lines:
        source = normal.split("\n", front.lines)[1 : front.lines - 1]
        if any(line.strip() for line in source):
            head = Section("\n".join(source), 0, (Part(1, front.lines, ()),))
    return Note(
        title=" ".join((front.first("title") or "").split())[:300] or next(iter(plan.headings), "") or stem(place.path),
        sections=plan.sections,
        references=references,
        tags=tags,
        date=date,
        embed=len(body.strip()) >= MIN_EMBEDDED_CHARS,
        front_matter=head,
        problem=front.problem or problem,
    )


def stem(path: str) -> str:
    """A path's base name without its extension."""
    return path.rpartition("/")[2][:-3]


class _Block(NamedTuple):
    first: int
    end: int
    level: int
    title: str


class _Unit(NamedTuple):
    """The lines of a block, or some of them, or with `text` a piece of one."""

    first: int
    end: int
    words: int
    text: str = ""


_PARSER = MarkdownIt("commonmark")
_PARSER.core.ruler.enableOnly(["normalize", "block"])
# As a paragraph, a link's definition keeps its lines.
_PARSER.disable("reference")


def outline(body: str, first_line: int = 1) -> Outline:
    """The outline of `body` (line breaks are `\\n`), whose first line is line `first_line` of its file."""
    lines = body.split("\n")
    blocks: list[_Block] = []
    code: list[tuple[int, int]] = []
    tokens = _PARSER.parse(body)
    for index, token in enumerate(tokens):
        if token.map is None:
            continue
        if token.type in ("fence", "code_block"):
            code.append((token.map[0], token.map[1]))
        if token.level == 0 and token.nesting >= 0 and token.type != "inline":
            heading = token.type == "heading_open"
            title = plain(tokens[index + 1].content) if heading else ""
            blocks.append(_Block(token.map[0], token.map[1], int(token.tag[1]) if heading else 0, title))
    pieces = [piece for run in _runs(blocks) for piece in _split(lines, *run)]
    return Outline(
        sections=tuple(_shifted(section, first_line) for section in _merged(pieces)),
        headings=tuple(block.title for block in blocks if block.level and block.title),
        code=tuple(code),
    )


def _runs(blocks: Sequence[_Block]) -> Iterator[tuple[tuple[str, ...], list[_Block]]]:
    """The blocks under each heading, the heading's own first, with its path."""
    stack: list[tuple[int, str]] = []
    run: list[_Block] = []
    for block in blocks:
        if block.level:
            if run:
                yield tuple(title for _, title in stack), run
            stack = [*((level, title) for level, title in stack if level < block.level), (block.level, block.title)]
            run = []
        run.append(block)
    if run:
        yield tuple(title for _, title in stack), run


def _split(lines: Sequence[str], path: tuple[str, ...], run: Sequence[_Block]) -> Iterator[Section]:
    """The blocks of one heading as pieces of at most about `TARGET_WORDS`."""
    taken: list[_Unit] = []
    words = 0
    for unit in (unit for block in run for unit in _units(lines, block.first, block.end)):
        # A heading alone says nothing: it stays with the text that follows it.
        alone = len(taken) == 1 and run[0].level and taken[0].end == run[0].end
        if taken and not alone and words + unit.words > TARGET_WORDS:
            yield _section(lines, taken, path)
            taken, words = [], 0
        taken.append(unit)
        words += unit.words
    if taken:
        yield _section(lines, taken, path)


def _section(lines: Sequence[str], units: Sequence[_Unit], path: tuple[str, ...]) -> Section:
    first, end = units[0].first, min(units[-1].end, len(lines))
    while end - 1 > first and not lines[end - 1].strip():
        end -= 1
    if any(unit.text for unit in units):
        text = "\n".join(unit.text or "\n".join(lines[unit.first : min(unit.end, end)]) for unit in units)
    else:
        text = "\n".join(lines[first:end])
    return Section(text, sum(unit.words for unit in units), (Part(first, end - 1, path),))


def _units(lines: Sequence[str], first: int, end: int) -> Iterator[_Unit]:
    """A block in units, none much over `TARGET_WORDS`."""
    words = count_words("\n".join(lines[first:end]))
    if words <= TARGET_WORDS:
        yield _Unit(first, end, words)
        return
    start, total = first, 0
    for number in range(first, end):
        line = count_words(lines[number])
        if total and total + line > TARGET_WORDS:
            yield _Unit(start, number, total)
            start, total = number, 0
        total += line
        if line > TARGET_WORDS:
            yield from (_Unit(number, number + 1, count_words(text), text) for text in _sentences(lines[number]))
            start, total = number + 1, 0
    if start < end:
        yield _Unit(start, end, total)


def _sentences(line: str) -> Iterator[str]:
    """One long line in pieces that end with a sentence where there is one, else anywhere."""
    taken, words = "", 0
    for piece in _SENTENCE.findall(line):
        # By windows, of which a full one is always too much: counting all that is left for each cut would be quadratic.
        begin = 0
        while (size := count_words(window := piece[begin : begin + _WINDOW])) > TARGET_WORDS:
            if taken:
                yield taken
                taken, words = "", 0
            cut = max(1, len(window) * TARGET_WORDS // (size + 1))
            cut = window.rfind(" ", cut // 2, cut) + 1 or cut
            yield window[:cut]
            begin += cut
        if taken and words + size > TARGET_WORDS:
            yield taken
            taken, words = "", 0
        taken += window
        words += size
    if taken.strip():
        yield taken


def _merged(pieces: Sequence[Section]) -> list[Section]:
    """Short neighbours put together where the sum is still one section."""
    merged: list[Section] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if last and last.words + piece.words <= TARGET_WORDS and min(last.words, piece.words) < MIN_WORDS:
            merged[-1] = Section(f"{last.text}\n\n{piece.text}", last.words + piece.words, last.parts + piece.parts)
        else:
            merged.append(piece)
    return merged


def _shifted(section: Section, first_line: int) -> Section:
    parts = tuple(Part(part.first + first_line, part.last + first_line, part.path) for part in section.parts)
    return Section(section.text, section.words, parts)


def count_words(text: str) -> int:
    """Words of `text`: what spaces part, each character of scripts without spaces, at least what its length says."""
    words = len(text.split())
    if not text.isascii():
        words += len(_CJK.findall(text))
    return max(words, len(text) // _CHARS_PER_WORD)


_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\s+\"[^\"]*\")?\)")
_WIKILINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_EMPHASIS = re.compile(r"(?<!\w)(\*{1,3}|_{1,3})(?=\S)(.+?)(?<=\S)\1(?!\w)")


def plain(inline: str) -> str:
    """A heading as it reads: without the marks of links, emphasis and code."""
    text = _WIKILINK.sub(r"\1", _LINK.sub(r"\1", inline[:1000]))
    text = _EMPHASIS.sub(r"\2", text.replace("`", ""))
    return " ".join(text.split())[:300]
