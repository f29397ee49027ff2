"""Whole lines at once: `key: value`, `- value` and `key:`, which are most of a real file.

One pattern reads such a line where the next cannot continue it. Whatever a pattern does not match takes the general
way, so nothing here decides what YAML is: it only gets to the same events sooner.
"""

import re
from functools import cache
from typing import Final

from services.yaml.syntax.events import SCALAR, Stream

WIDEST: Final = 120  # columns that have patterns of their own

_VALUE: Final = (
    r"(?:([A-Za-z0-9_$/(~.+;=^\\<](?:[^ \t\r\n:]++|:(?=[^ \t\r\n])| ++(?=[^ \t\r\n#:]))*+)"
    r"|\"([^\"\\\r\n]*+)\"|'([^'\r\n]*+)')(?: ++(#[^\r\n]*+))?+ *+(?:\r\n|\n)"
)
_KEY: Final = r"([A-Za-z0-9_$/(~][^ \t\r\n:]*+):"

HEADER: Final = re.compile(_KEY + r" *+(?:\r\n|\n)")


@cache
def _line(lead: str, column: int) -> re.Pattern[str]:
    """A whole line that begins with `lead`, where the next is an entry at this column or further left."""
    return re.compile(rf"{lead} ++{_VALUE}(?= {{0,{column}}}[^ \t\r\n#])")


def read_pairs(out: Stream, pos: int, column: int) -> int:
    """Read lines of a block mapping at a column from the line at `pos` on; returns the first line not read."""
    if column > WIDEST:
        return pos
    match = _line(f" {{{column}}}{_KEY}", column).match
    text = out.text
    while (found := match(text, pos)) is not None:
        _read_pair(out, found, pos + column)
        pos = found.end()
    return pos


def read_pair(out: Stream, at: int, column: int) -> int:
    """Read the line whose key is at `at`, the first of a mapping there; returns the next line, or -1.

    The caller then opens the mapping before these two events.
    """
    if column > WIDEST:
        return -1
    found = _line(_KEY, column).match(out.text, at)
    if found is None:
        return -1
    _read_pair(out, found, at)
    return found.end()


def read_items(out: Stream, pos: int, column: int) -> int:
    """Read lines of a block sequence at a column from the line at `pos` on; returns the first line not read."""
    if column > WIDEST:
        return pos
    match = _line(f" {{{column}}}-", column).match
    text = out.text
    while (found := match(text, pos)) is not None:
        _read_value(out, found, 1)
        pos = found.end()
    return pos


def _read_pair(out: Stream, found: re.Match[str], start: int) -> None:
    key = found.group(1)
    out.events.append((SCALAR, ":", key, None, None))
    out.starts.append(start)
    out.bodies.append(start)
    out.stops.append(start + len(key))
    _read_value(out, found, 2)


def _read_value(out: Stream, found: re.Match[str], group: int) -> None:
    """The value and the comment of a line; `group` is the first of its groups."""
    plain, double, single, comment = found.group(group, group + 1, group + 2, group + 3)
    if plain is not None:
        out.events.append((SCALAR, ":", plain, None, None))
        start, stop = found.span(group)
    elif double is not None:
        out.events.append((SCALAR, '"', double, None, None))
        start, stop = found.start(group + 1) - 1, found.end(group + 1) + 1
    else:
        out.events.append((SCALAR, "'", single, None, None))
        start, stop = found.start(group + 2) - 1, found.end(group + 2) + 1
    out.starts.append(start)
    out.bodies.append(start)
    out.stops.append(stop)
    out.last_stop = stop
    if comment is not None:
        out.comments.append(found.span(group + 3))
