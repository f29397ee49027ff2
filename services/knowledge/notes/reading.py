"""Parts of a note's file as they were asked for: some of its lines, or the section under a heading."""

from __future__ import annotations

import re

from proto.errors import InvalidParams, OperationError
from proto.near import did_you_mean
from proto.ops.knowledge import NodeContent
from services.knowledge.notes.files import Place
from services.knowledge.notes.markdown import parse

_RANGE = re.compile(r"(\d{1,9})?(-)?(\d{1,9})?")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""With its break, as the notes' line numbers count them."""


def part(text: str, place: Place, lines: str, section: str) -> NodeContent:
    """The whole text, or the lines that were asked for with the numbers of the first and the last.

    Raises:
        InvalidParams: `lines` is no range, or begins past the end.
        OperationError: there is no such heading; names like ones.
    """
    if not lines and not section:
        return NodeContent(text=text)
    every = _LINE.findall(text)
    first, last = _under(text, place, section) if section else (1, len(every))
    if lines:
        begin, end = _range(lines, first, last)
        first, last = max(first, begin), min(last, end)
        if first > last:
            raise InvalidParams(f"parameter `lines`: lines {lines} are not there, of {len(every)}", field="lines")
    return NodeContent(text="".join(every[first - 1 : last]), lines=f"{first}-{last}", total_lines=len(every))


def _range(lines: str, first: int, last: int) -> tuple[int, int]:
    match = _RANGE.fullmatch(lines)
    if match is None or not (match[1] or match[3]):
        raise InvalidParams(f"parameter `lines`: 10-80, 10-, -80 or 10, not {lines[:40]!r}", field="lines")
    begin = int(match[1]) if match[1] else first
    return begin, int(match[3]) if match[3] else last if match[2] else begin


def _under(text: str, place: Place, section: str) -> tuple[int, int]:
    """The lines under a heading and those below it; `A > B` is B within A."""
    wanted = [each.strip(" #").casefold() for each in section.split(">")]
    parts = [part for section in parse(text, place).sections for part in section.parts]
    under = [part for part in parts if _leads(wanted, [each.casefold() for each in part.path])]
    if not under:
        headings = dict.fromkeys(heading for part in parts for heading in part.path)
        raise OperationError(f"not found: the section {section[:200]!r}{did_you_mean(section, headings)}")
    first = under[0]
    # Of several with that heading, the first.
    return first.first, max(part.last for part in under if part.path[: len(first.path)] == first.path)


def _leads(wanted: list[str], path: list[str]) -> bool:
    at = iter(path)
    return all(any(heading == each for heading in at) for each in wanted)
