"""Parts of a note's file as they were asked for: some of its lines, or the section under a heading."""

from __future__ import annotations

import re

from proto.errors import InvalidParams, OperationError
from proto.near import did_you_mean
from proto.ops.knowledge import NodeContent
from services.knowledge.notes import frontmatter
from services.runtime.text.lines import span
from services.runtime.text.markdown import outline

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""With its break, as the notes' line numbers count them."""


def part(text: str, lines: str, section: str) -> NodeContent:
    """The whole text, or the lines that were asked for with the numbers of the first and the last.

    Raises:
        InvalidParams: `lines` is no range, or begins past the end.
        OperationError: there is no such heading; names like ones.
    """
    if not lines and not section:
        return NodeContent(text=text)
    every = _LINE.findall(text)
    first, last = _under(text, section, len(every)) if section else (1, len(every))
    if lines:
        begin, end = span(lines, first, last)
        first, last = max(first, begin), min(last, end)
        if first > last:
            raise InvalidParams(f"parameter `lines`: lines {lines} are not there, of {len(every)}", field="lines")
    return NodeContent(text="".join(every[first - 1 : last]), lines=f"{first}-{last}", total_lines=len(every))


def _under(text: str, section: str, end: int) -> tuple[int, int]:
    """The lines under a heading, to the next one of its level; of `A > B`, those under B within A."""
    front, body = frontmatter.split(text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))
    headings = [block for block in outline(body).blocks if block.level]
    within = (0, end)
    for title in section.split(">"):
        wanted = title.strip(" #").casefold()
        here = [each for each in headings if within[0] <= each.first + front.lines < within[1]]
        found = next((each for each in here if each.title.casefold() == wanted), None)
        if found is None:
            near = did_you_mean(title.strip(" #"), [each.title for each in here])
            raise OperationError(f"not found: a section {title.strip()[:200]!r}{near}")
        after = (each.first for each in here if each.first > found.first and each.level <= found.level)
        within = (found.first + front.lines, next(after, within[1] - front.lines) + front.lines)
    return within[0] + 1, within[1]
