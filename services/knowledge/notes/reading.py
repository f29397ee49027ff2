"""Parts of a note's file as they were asked for: some of its lines, or the section under a heading."""

from __future__ import annotations

import re
from typing import NamedTuple

from proto.errors import InvalidParams, OperationError
from proto.near import did_you_mean
from proto.ops.knowledge import NodeContent
from services.knowledge.notes import frontmatter
from services.runtime.text.lines import span
from services.runtime.text.markdown import outline

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

    Raises OperationError: there is none and `must_be`; or there are several.
    """
    front, body = frontmatter.split(frontmatter.normal(text))
    headings = [block for block in outline(body).blocks if block.level]
    found, end = None, len(LINE.findall(text)) - front.lines
    within = (0, end)
    for title in section.split(">"):
        wanted = title.strip(" #").casefold()
        here = [each for each in headings if within[0] <= each.first < within[1]]
        same = [each for each in here if each.title.casefold() == wanted]
        if field and len(same) > 1:
            said = f"`{field}`: {len(same)} headings are {title.strip()[:200]!r}; name the one above, `A > B`"
            raise OperationError(said, field=field)
        if not same:
            if not must_be and title == section.rsplit(">", maxsplit=1)[-1]:
                return None
            near = did_you_mean(title.strip(" #"), [each.title for each in here])
            near += "; `create: true` adds it" if field and must_be else ""
            raise OperationError(f"not found: a section {title.strip()[:200]!r}{near}", field=field or None)
        found = same[0]
        after = (each.first for each in here if each.first > found.first and each.level <= found.level)
        within = (found.first, next(after, within[1]))
    assert found is not None, "there is a title to look for"
    return Lines(found.first + front.lines, found.end + front.lines, within[1] + front.lines, found.level)
