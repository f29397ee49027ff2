"""Parts of a note's file as they were asked for: some of its lines, or the section under a heading."""

from __future__ import annotations

import re
from typing import NamedTuple

from linckia.proto.errors import InvalidParams, OperationError
from linckia.proto.near import did_you_mean
from linckia.proto.ops.knowledge import NodeContent
from linckia.services.knowledge.notes import frontmatter, headings
from linckia.services.knowledge.notes.headings import Heading
from linckia.services.runtime.text.lines import span

LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""With its break, as the notes' line numbers count them."""


def part(text: str, lines: str, section: str) -> NodeContent:
    """The whole text, or the lines that were asked for with the numbers of the first and the last.

    Raises:
        InvalidParams: `lines` is no range, or begins past the end.
        OperationError: there is no such heading; names like ones.
    """
    if not lines and not section:
        return NodeContent(text=text)
    every = LINE.findall(text)
    first, last = 1, len(every)
    if section:
        under = section_lines(text, section)
        assert under is not None, "it is there, or that was said"
        first, last = under.heading + 1, under.end
    if lines:
        begin, end = span(lines, first, last)
        first, last = max(first, begin), min(last, end)
        if first > last:
            raise InvalidParams(f"parameter `lines`: lines {lines} are not there, of {len(every)}", field="lines")
    return NodeContent(text="".join(every[first - 1 : last]), lines=f"{first}-{last}", total_lines=len(every))


class Lines(NamedTuple):
    """Lines of a file, from 0: a heading, where what is below it begins, and the end of that (exclusive)."""

    heading: int
    body: int
    end: int
    level: int


def section_lines(text: str, section: str, *, field: str = "", must_be: bool = True) -> Lines | None:
    """The lines of a heading and of all under it, to the next one of its level; of `A > B`, those of B within A; with a
    `field`, of a heading that is the only one of its name there.

    A heading is named by its source or by its rendered text. A heading whose own text contains `>` is found first.
    Raises OperationError: there is none and `must_be`; or there are several.
    """
    front, body = frontmatter.split(frontmatter.normal(text))
    every = headings.of(body)
    whole = 0, len(LINE.findall(text)) - front.lines
    found = _under(every, section, whole)
    if found is None and not must_be and _parent(every, section, whole) is not None:
        return None
    if found is None:
        raise _not_found(every, section, whole, field, must_be=must_be)
    if field and len(found.same) > 1:
        title = headings.parts(section)[-1]
        said = f"`{field}`: {len(found.same)} headings are {title[:200]!r}; name the one above, `A > B`"
        raise OperationError(said, field=field)
    heading, end = found.same[0], found.end
    return Lines(heading.first + front.lines, heading.end + front.lines, end + front.lines, heading.level)


def parent_of(text: str, section: str) -> tuple[str, str]:
    """Split the path of a new heading into its existing parent, or an empty text, and its own text."""
    front, body = frontmatter.split(frontmatter.normal(text))
    found = _parent(headings.of(body), section, (0, len(LINE.findall(text)) - front.lines))
    assert found is not None, "that was said before"
    return found


class _Found(NamedTuple):
    """The headings that a path leads to, and the end of the section under the first one."""

    same: list[Heading]
    end: int


def _under(every: list[Heading], section: str, within: tuple[int, int]) -> _Found | None:
    """Find the headings that a path leads to, preferring long names to deep paths."""
    for title, rest in headings.divisions(section):
        same = headings.named(title, [each for each in every if within[0] <= each.first < within[1]])
        ends = [_end(every, each, within[1]) for each in same]
        if same and not rest:
            return _Found(same, ends[0])
        inside = [_under(every, rest, (each.first + 1, end)) for each, end in zip(same, ends, strict=True)]
        if found := [each for each in inside if each is not None]:
            return _Found([each for one in found for each in one.same], found[0].end)
    return None


def _end(every: list[Heading], heading: Heading, most: int) -> int:
    after = (each.first for each in every if each.first > heading.first and each.level <= heading.level)
    return min(most, next(after, most))


def _parent(every: list[Heading], section: str, whole: tuple[int, int]) -> tuple[str, str] | None:
    """The same; None if its parent is missing."""
    for above, title in headings.parents(section):
        if len(headings.parts(title)) == 1 and _under(every, above, whole) is not None:
            return above, title
    return ("", section) if len(headings.parts(section)) == 1 else None


def _not_found(
    every: list[Heading], section: str, whole: tuple[int, int], field: str, *, must_be: bool
) -> OperationError:
    """Names the first heading of a path that is not there, and like ones."""
    titles, within = headings.parts(section), whole
    above = ""
    for title in titles[:-1]:
        path = f"{above} > {title}" if above else title
        if (found := _under(every, path, whole)) is None:
            break
        above, within = path, (found.same[0].first + 1, found.end)
    missing = titles[len(headings.parts(above)) if above else 0]
    here = [each.title for each in every if within[0] <= each.first < within[1]]
    near = did_you_mean(missing.strip(" #"), here)
    near += "; `create: true` adds it" if field and must_be else ""
    return OperationError(f"not found: a section {missing[:200]!r}{near}", field=field or None)
