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
def _pairs(column: int) -> re.Pattern[str]:
    return re.compile(rf" {{{column}}}{_KEY} ++{_VALUE}(?= {{0,{column}}}[^ \t\r\n#])")


@cache
def _pair(column: int) -> re.Pattern[str]:
    return re.compile(rf"{_KEY} ++{_VALUE}(?= {{0,{column}}}[^ \t\r\n#])")


@cache
def _items(column: int) -> re.Pattern[str]:
    return re.compile(rf" {{{column}}}- ++{_VALUE}(?= {{0,{column}}}[^ \t\r\n#])")


def read_pairs(out: Stream, pos: int, column: int) -> int:
    """Read lines of a block mapping at a column from the line at `pos` on; returns the first line not read."""
    if column > WIDEST:
        return pos
    match = _pairs(column).match
    text = out.text
    while (found := match(text, pos)) is not None:
        _pair_read(out, found, pos + column)
        pos = found.end()
    return pos


def read_pair(out: Stream, at: int, column: int) -> int:
    """Read the line whose key is at `at`, the first of a mapping there; returns the next line, or -1.

    The caller then opens the mapping before these two events.
    """
    if column > WIDEST:
        return -1
    found = _pair(column).match(out.text, at)
    if found is None:
        return -1
    _pair_read(out, found, at)
    return found.end()


def _pair_read(out: Stream, found: re.Match[str], start: int) -> None:
    key, plain, double, single, comment = found.groups()
    events, starts, bodies, stops = out.events, out.starts, out.bodies, out.stops
    events.append((SCALAR, ":", key, None, None))
    starts.append(start)
    bodies.append(start)
    stops.append(start + len(key))
    if plain is not None:
        events.append((SCALAR, ":", plain, None, None))
        start, stop = found.span(2)
    elif double is not None:
        events.append((SCALAR, '"', double, None, None))
        start, stop = found.start(3) - 1, found.end(3) + 1
    else:
        events.append((SCALAR, "'", single, None, None))
        start, stop = found.start(4) - 1, found.end(4) + 1
    starts.append(start)
    bodies.append(start)
    stops.append(stop)
    out.last_stop = stop
    if comment is not None:
        out.comments.append(found.span(5))


def read_items(out: Stream, pos: int, column: int) -> int:
    """Read lines of a block sequence at a column from the line at `pos` on; returns the first line not read."""
    if column > WIDEST:
        return pos
    match = _items(column).match
    text = out.text
    while (found := match(text, pos)) is not None:
        plain, double, single, comment = found.groups()
        if plain is not None:
            start, stop = found.span(1)
            out.node((SCALAR, ":", plain, None, None), start, start, stop)
        elif double is not None:
            start, stop = found.start(2) - 1, found.end(2) + 1
            out.node((SCALAR, '"', double, None, None), start, start, stop)
        else:
            start, stop = found.start(3) - 1, found.end(3) + 1
            out.node((SCALAR, "'", single, None, None), start, start, stop)
        if comment is not None:
            out.comments.append(found.span(4))
        pos = found.end()
    return pos
