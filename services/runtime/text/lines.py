"""Ranges of lines as clients write them: `10-80`, `10-`, `-80` and `10`."""

from __future__ import annotations

import re

from proto.errors import InvalidParams

_RANGE = re.compile(r"(\d{1,9})?(-)?(\d{1,9})?")


def span(lines: str, first: int, last: int, field: str = "lines") -> tuple[int, int]:
    """The first and the last line that are meant, where no end is named those of the whole.  Raises InvalidParams."""
    match = _RANGE.fullmatch(lines)
    if match is None or not (match[1] or match[3]):
        raise InvalidParams(f"parameter `{field}`: 10-80, 10-, -80 or 10, not {lines[:40]!r}", field=field)
    begin = int(match[1]) if match[1] else first
    return begin, int(match[3]) if match[3] else last if match[2] else begin
