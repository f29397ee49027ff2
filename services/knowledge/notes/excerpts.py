"""Extract parts of a note's file: a range of lines, or the section under a heading."""

from __future__ import annotations

import re
from typing import NamedTuple

from proto.errors import InvalidParams, OperationError
from proto.suggestions import did_you_mean
from services.knowledge.notes import frontmatter, headings
from services.knowledge.notes.headings import Heading
from services.knowledge.operations.notes import NodeContent
from services.shared.text.lines import span

LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line with its line break, as counted by the line numbers of notes."""


def part(text: str, lines: str, section: str) -> NodeContent:
    """Return the whole text, or the requested lines with the numbers of the first and the last.

    Raises:
        InvalidParams: `lines` is malformed or begins past the end.
        OperationError: the heading does not exist; the message suggests similar ones.
    """
    if not lines and not section:
        return NodeContent(text=text)
    every = LINE.findall(text)
    first, last = 1, len(every)
    if section:
        under = section_lines(text, section)
        assert under is not None, "a missing section raises"
        first, last = under.heading + 1, under.end
    if lines:
        begin, end = span(lines, first, last)
        first, last = max(first, begin), min(last, end)
        if first > last:
            raise InvalidParams(f"parameter `lines`: {lines} is out of range (1-{len(every)})", field="lines")
    return NodeContent(text="".join(every[first - 1 : last]), lines=f"{first}-{last}", total_lines=len(every))


_MAX_LINES = 10
"""Number of lines that a message names."""


class Lines(NamedTuple):
    """Line numbers of a section, from 0: its heading, its body, and its end (exclusive)."""

    heading: int
    body: int
    end: int
    level: int


def section_lines(text: str, section: str, *, field: str = "", must_be: bool = True) -> Lines | None:
    """Return the lines of a heading and its section, up to the next heading of its level.

    `A > B` is B within A. A heading is given by its source or its rendered text; one whose text contains `>` is tried
    first. If several match, `B[2]` is the second of them, unless a heading is called that. If `field` is given, the
    heading must be unique.

    Raises:
        OperationError: the heading is missing and `must_be` is set, its parent is missing, or it is ambiguous.
    """
    front, body = frontmatter.split(frontmatter.normal(text))
    every = headings.of(body)
    whole = 0, len(LINE.findall(text)) - front.lines
    found = _under(every, section, whole) or _numbered(every, section, whole, field, front.lines)
    if not found and not must_be and _parent(every, section, whole) is not None:
        return None
    if not found:
        raise _not_found(every, section, whole, field, must_be=must_be)
    if field and len(found) > 1:
        title = headings.parts(section)[-1]
        said = (
            f"`{field}`: {len(found)} headings match {title[:200]!r}, in lines {_lines_of(found, front.lines)}; include"
            f" the parent heading, `A > B`, or say which: {section[:200]}[1] to {section[:200]}[{len(found)}]"
        )
        raise OperationError(said, field=field)
    heading, end = found[0]
    return Lines(heading.first + front.lines, heading.end + front.lines, end + front.lines, heading.level)


def parent_of(text: str, section: str) -> tuple[str, str]:
    """Split the path of a new heading into its existing parent (or an empty string) and its own text."""
    front, body = frontmatter.split(frontmatter.normal(text))
    found = _parent(headings.of(body), section, (0, len(LINE.findall(text)) - front.lines))
    assert found is not None, "a missing parent has raised before"
    return found


_Found = list[tuple[Heading, int]]
"""Headings that a path matches, each with the end of its section."""


def _under(every: list[Heading], section: str, within: tuple[int, int]) -> _Found:
    """Find the headings that a path matches, preferring long names to deep paths."""
    for title, rest in headings.divisions(section):
        here = [each for each in every if within[0] <= each.first < within[1]]
        same = headings.named(title, here)
        if rest and not same:
            name, number = headings.indexed(title)
            same = headings.named(name, here)[number - 1 : number] if number else []
        ends = [_end(every, each, within[1]) for each in same]
        if same and not rest:
            return list(zip(same, ends, strict=True))
        inside = [_under(every, rest, (each.first + 1, end)) for each, end in zip(same, ends, strict=True)]
        if found := [each for one in inside for each in one]:
            return found
    return []


def _numbered(every: list[Heading], section: str, whole: tuple[int, int], field: str = "", before: int = 0) -> _Found:
    """Return the heading that `A > B[2]` names: the second that `A > B` matches.

    Raises OperationError if several match, but fewer.
    """
    name, number = headings.indexed(section)
    found = _under(every, name, whole) if number else []
    if 1 < len(found) < number:
        said = f"only {len(found)} headings match {name[:200]!r}, in lines {_lines_of(found, before)}, not {number}"
        raise OperationError(f"`{field}`: {said}" if field else said, field=field or None)
    return found[number - 1 : number]


def _lines_of(found: _Found, before: int) -> str:
    """Return the line numbers of headings after a front matter of `before` lines."""
    numbers = [str(heading.first + before + 1) for heading, _ in found]
    return ", ".join(numbers[:_MAX_LINES]) + ", …" * (len(numbers) > _MAX_LINES)


def _end(every: list[Heading], heading: Heading, most: int) -> int:
    after = (each.first for each in every if each.first > heading.first and each.level <= heading.level)
    return min(most, next(after, most))


def _parent(every: list[Heading], section: str, whole: tuple[int, int]) -> tuple[str, str] | None:
    """Like `parent_of`, but return None if the parent is missing."""
    for above, title in headings.parents(section):
        if len(headings.parts(title)) == 1 and (_under(every, above, whole) or _numbered(every, above, whole)):
            return above, title
    return ("", section) if len(headings.parts(section)) == 1 else None


def _not_found(
    every: list[Heading], section: str, whole: tuple[int, int], field: str, *, must_be: bool
) -> OperationError:
    """Build the error that names the first missing heading of a path and suggests similar ones."""
    titles, within = headings.parts(section), whole
    above = ""
    for title in titles[:-1]:
        path = f"{above} > {title}" if above else title
        if not (found := _under(every, path, whole) or _numbered(every, path, whole)):
            break
        above, within = path, (found[0][0].first + 1, found[0][1])
    missing = titles[len(headings.parts(above)) if above else 0]
    here = [each.title for each in every if within[0] <= each.first < within[1]]
    near = did_you_mean(missing.strip(" #"), here)
    near += "; `create: true` adds it" if field and must_be else ""
    return OperationError(f"section not found: {missing[:200]!r}{near}", field=field or None)
