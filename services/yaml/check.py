"""The rule that decides everything: apply a candidate edit and find out whether it did what was asked and nothing else.

An edit is right when the bytes outside its splices are the same bytes (they are copied, and compared) and the result
parses to the expected events, with the expected comments, every alias still at the node it stood for.
"""

from collections.abc import Iterable
from typing import NamedTuple

from services.yaml.errors import SyntaxFault
from services.yaml.events import Event
from services.yaml.parser import parse
from services.yaml.tree import Tree


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


def check(tree: Tree, splices: Iterable[Splice], expected: Expected) -> Tree | None:
    """The edited tree where the edit is right, else None."""
    stream = tree.stream
    edited = apply(tree.text, splices)
    if edited is None:
        return None
    try:
        result = parse(edited, lenient_closers=stream.lenient)
    except SyntaxFault:
        return None
    start, stop, new, dropped, added = expected
    count = len(new)
    events = result.events
    if (
        len(events) != len(stream.events) - (stop - start) + count
        or events[start : start + count] != new
        or events[:start] != stream.events[:start]
        or events[start + count :] != stream.events[stop:]
    ):
        return None
    kept = [text for index, text in enumerate(stream.comment_texts()) if index not in dropped]
    if sorted([*kept, *added]) != sorted(result.comment_texts()):
        return None
    after = Tree(result)
    return after if _aliases_kept(tree, after, start, stop, count) else None


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
