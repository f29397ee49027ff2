"""The rule that decides everything: apply a candidate edit and find out whether it did what was asked and nothing else.

An edit is right when the bytes outside its splices are the same bytes (they are copied, and compared) and the result
parses to the expected events, with the expected comments, every alias still at the node it stood for.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from services.yaml.check.segment import find_segment, read_segment
from services.yaml.errors import SyntaxFault
from services.yaml.syntax.events import ALIAS, Event
from services.yaml.syntax.parser import parse
from services.yaml.tree import Tree

_SMALL: Final = 32 * 1024  # characters: read whole in some milliseconds


class Splice(NamedTuple):
    """Replace the characters from `start` to `stop` by `text`."""

    start: int
    stop: int
    text: str


class Expected(NamedTuple):
    """What an edit must come to: the source's events from `start` to `stop` replaced by `events`, and its comments
    with those at the indices `dropped` gone and `added` present."""

    start: int
    stop: int
    events: list[Event]
    dropped: frozenset[int]
    added: list[str]


def apply(text: str, splices: Iterable[Splice]) -> str | None:
    """The text after the splices, or None where they overlap."""
    out: list[str] = []
    at = 0
    for start, stop, new in sorted(splices, key=lambda splice: (splice.start, splice.stop)):
        if start < at or stop < start:
            return None
        out.append(text[at:start])
        out.append(new)
        at = stop
    out.append(text[at:])
    return "".join(out)


def check(tree: Tree, splices: Sequence[Splice], expected: Expected, *, whole: bool | None = None) -> Tree | None:
    """The edited tree where the edit is right, else None.

    `whole` tells whether the whole result is read again; by default a large file is read only where it can have
    changed.
    """
    stream = tree.stream
    edited = apply(tree.text, splices)
    if edited is None:
        return None
    start, stop, new, dropped, added = expected
    segment = None
    if whole is None:
        whole = len(edited) < _SMALL
    if not whole and splices:
        low = min(splice.start for splice in splices)
        high = max(splice.stop for splice in splices)
        segment = find_segment(tree, low, high, start, stop)
    if segment is None:
        try:
            result = parse(edited, max_depth=stream.max_depth, lenient_closers=stream.lenient)
        except SyntaxFault:
            return None
        first, last, low, high = 0, len(stream.events), 0, len(tree.text)
    else:
        read = read_segment(tree, segment, edited)
        if read is None:
            return None
        result = read
        low, high, first, last = segment.start, segment.stop, segment.first, segment.last
    # From here on only what was read again is compared: events `first` to `last`, characters `low` to `high`.
    count = len(new)
    moved = count - (stop - start)
    events = result.events
    if (
        len(events) != len(stream.events) + moved
        or events[start : start + count] != new
        or events[first:start] != stream.events[first:start]
        or events[start + count : last + moved] != stream.events[stop:last]
    ):
        return None
    by = len(edited) - len(tree.text)
    kept = [
        tree.text[begin:end]
        for index, (begin, end) in enumerate(stream.comments)
        if index not in dropped and low <= begin < high
    ]
    found = [edited[begin:end] for begin, end in result.comments if low <= begin < high + by]
    if sorted([*kept, *added]) != sorted(found):
        return None
    after = Tree(result)
    if segment is not None and not _names(stream.events[first:last]) and not _names(events[first : last + moved]):
        return after
    return after if _aliases_kept(tree, after, start, stop, count) else None


def _names(events: list[Event]) -> bool:
    """Whether any of the events has an anchor or is an alias."""
    return any(event[3] is not None or event[0] == ALIAS for event in events)


def _aliases_kept(before: Tree, after: Tree, start: int, stop: int, count: int) -> bool:
    try:
        targets = after.alias_targets()
    except SyntaxFault:
        return False
    shift = count - (stop - start)
    for alias, target in before.alias_targets().items():
        if start <= alias < stop:
            continue
        now = targets[alias + shift if alias >= stop else alias]
        if start <= target < stop:
            if not start <= now < start + count:
                return False
        elif now != (target + shift if target >= stop else target):
            return False
    return True
