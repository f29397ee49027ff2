"""The central rule: apply a candidate edit, and check that it did what was asked and nothing else.

An edit is right if the bytes outside its splices are unchanged (they are copied, and compared) and the result parses to
the expected events, with the expected comments, and every alias still refers to the same node.

In a large file, only the lines that an edit can have changed are parsed again. The parser works from left to right, and
at the line where an entry of a block collection begins, its whole state is the stack of open collections. So if an edit
lies after the first character of such an entry and before the line of a later one, only the lines in between need to be
parsed: if they contain entries of a collection at the same column and end complete, the parser reaches the later line
in the same state as before, and everything after it parses as it did. Anything that does not fit this exactly (an open
pair, a byte order mark, a document marker) causes a full parse.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from services.yaml.errors import NotApplicable, SyntaxFault
from services.yaml.syntax.events import ALIAS, DOCUMENT, MAPPING_END, SEQUENCE_END, Document, Event, Stream
from services.yaml.syntax.parser import parse
from services.yaml.syntax.tokens import COLON
from services.yaml.tree import NodePlace, Tree

_FIRST: Final = attrgetter("first")
_SMALL: Final = 32 * 1024  # characters: parsed whole in some milliseconds


class Splice(NamedTuple):
    """Replace the characters from `start` to `stop` by `text`."""

    start: int
    stop: int
    text: str


class Expected(NamedTuple):
    """What an edit must result in: the source's events from `start` to `stop` replaced by `events`, and its comments
    without those at the indices `dropped` and with `added`."""

    start: int
    stop: int
    events: list[Event]
    dropped: frozenset[int] = frozenset()
    added: Sequence[str] = ()


def first_right(
    tree: Tree, candidates: Iterable[Sequence[Splice]], expected: Expected, refusal: str | Callable[[], str]
) -> Tree:
    """Return the tree after the first candidate that is right. Raises YamlError (-32003) with `refusal`."""
    for splices in candidates:
        edited = check(tree, splices, expected)
        if edited is not None:
            return edited
    raise NotApplicable(refusal if isinstance(refusal, str) else refusal())


def _apply(text: str, splices: Iterable[Splice]) -> str | None:
    """Return the text after the splices, or None if they overlap."""
    out: list[str] = []
    at = 0
    for start, stop, new in sorted(splices, key=itemgetter(0, 1)):
        if start < at or stop < start:
            return None
        out += (text[at:start], new)
        at = stop
    out.append(text[at:])
    return "".join(out)


def check(tree: Tree, splices: Sequence[Splice], expected: Expected, *, whole: bool | None = None) -> Tree | None:
    """Return the edited tree if the edit is right, else None.

    `whole` says whether to parse the whole result again; by default a large file is parsed only where it can have
    changed.
    """
    stream = tree.stream
    edited = _apply(tree.text, splices)
    if edited is None:
        return None
    start, stop, new, dropped, added = expected
    segment = None
    if splices and not (len(edited) < _SMALL if whole is None else whole):
        first, last = min(splice.start for splice in splices), max(splice.stop for splice in splices)
        segment = _find_segment(tree, first, last, start, stop)
    result = _parsed(edited, stream) if segment is None else _read_segment(tree, segment, edited)
    if result is None:
        return None
    # From here on only the part parsed again is compared: events `first` to `last`, characters `low` to `high`.
    low, high, first, last = (0, len(tree.text), 0, len(stream.events)) if segment is None else segment[:4]
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
    before, behind = _of_segment(stream, low, high)
    kept = [tree.text[slice(*stream.comments[index])] for index in range(before, behind) if index not in dropped]
    found = [edited[begin:end] for begin, end in result.comments[slice(*_of_segment(result, low, high + by))]]
    if sorted([*kept, *added]) != sorted(found):
        return None
    after = Tree(result)
    if segment is not None and not _names(stream.events[first:last]) and not _names(events[first : last + moved]):
        return after
    return after if _aliases_kept(tree, after, expected) else None


def _parsed(text: str, like: Stream, depth: int = 0, tags: dict[str, str] | None = None) -> Stream | None:
    """Parse a text under the same rules as `like`, `depth` levels down; None if it is not YAML."""
    try:
        return parse(text, max_depth=like.max_depth - depth, lenient_closers=like.lenient, tags=tags)
    except SyntaxFault:
        return None


def _names(events: list[Event]) -> bool:
    """True if any of the events has an anchor or is an alias."""
    return any(event[3] is not None or event[0] == ALIAS for event in events)


def _aliases_kept(before: Tree, after: Tree, expected: Expected) -> bool:
    start, stop, count = expected.start, expected.stop, len(expected.events)
    shift = count - (stop - start)
    try:
        targets = after.alias_targets()
    except SyntaxFault:
        return False
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


class _Segment(NamedTuple):
    """Whole lines of a text, from offset `start` to `stop`, with the events `first` up to `last` (excluded).

    The events are entries of a block collection, the last one in `above`, which contains the document and the enclosing
    collections.
    """

    start: int
    stop: int
    first: int
    last: int
    above: list[int]


def _find_segment(tree: Tree, low: int, high: int, start: int, stop: int) -> _Segment | None:
    """Return the smallest segment around an edit of the characters from `low` to `high` and the events `start` to
    `stop`."""
    stream = tree.stream
    document = stream.document_of(start)
    if document is None or stop > document.close:
        return None
    node = document.event + 1
    end = document.stop
    found: _Segment | None = None
    above = [document.event]
    while tree.is_block_collection(node) and node < start and high <= end:
        children = tree.children(node)
        above.append(node)
        # The last child that begins at or before the edit, and the first one after it.
        at = max(bisect_right(children, start, key=_FIRST) - 1, 0)
        following = bisect_left(children, stop, key=_FIRST)
        inside = children[at]
        last = stream.closes[node]
        if following < len(children):
            offset = _entry_offset(tree, children[following])
            if not _begins_line(tree, children[following], offset):
                return found
            end, last = tree.line_start(offset), children[following].first
        if high > end or stop > last:
            break
        for number in range(at, -1, -1):
            offset = _entry_offset(tree, children[number])
            if offset < low and _begins_line(tree, children[number], offset):
                found = _Segment(tree.line_start(offset), end, children[number].first, last, above.copy())
                break
        if stop > stream.after(inside.node):
            break
        node = inside.node
    return found


def _of_segment(stream: Stream, low: int, high: int) -> tuple[int, int]:
    """Return the range of indices of the comments that begin between `low` (included) and `high`."""
    return bisect_left(stream.comments, (low,)), bisect_left(stream.comments, (high,))


def _begins_line(tree: Tree, place: NodePlace, offset: int) -> bool:
    """True if an entry begins its line: an implicit key with a value, or a dash."""
    stream = tree.stream
    if tree.text[tree.line_start(offset) : offset].strip(" "):
        return False
    key_stop = stream.stops[place.key]
    return place.key < 0 or (key_stop > offset and COLON.match(tree.text, key_stop) is not None)


def _entry_offset(tree: Tree, place: NodePlace) -> int:
    """Return the offset where an entry begins: its key (after a ?), or its dash."""
    return tree.stream.starts[place.key] if place.key >= 0 else tree.dash_stop(place) - 1


def _read_segment(tree: Tree, segment: _Segment, edited: str) -> Stream | None:
    """Return the edited stream by parsing only the segment again; None if the segment does not parse on its own."""
    stream = tree.stream
    stop = segment.stop + len(edited) - len(tree.text)
    text = edited[segment.start : stop]
    document = stream.document_of(segment.first)
    if "\ufeff" in text or (stop < len(edited) and text[-1:] not in ("\n", "\r")):
        return None
    part = _parsed(text, stream, len(segment.above) - 2, None if document is None else document.tags)
    collection = segment.above[-1]
    kind = stream.events[collection][0]
    if (
        part is None
        or len(part.documents) != 1
        or part.events[0] != (DOCUMENT, "", "", None, None)
        or part.events[1] != (kind, "", "", None, None)
        or part.closes[1] != len(part.events) - 2
        or part.events[-1][1]
        or Tree(part).column(1) != tree.column(collection)
    ):
        return None
    return _graft(stream, segment, part, edited)


def _graft(stream: Stream, segment: _Segment, part: Stream, edited: str) -> Stream:
    """Return the edited stream: the old one with the segment's events and offsets replaced, and the rest shifted."""
    first, last, base = segment.first, segment.last, segment.start
    by = len(edited) - len(stream.text)
    count = len(part.events) - 4  # without the document's and the collection's own events
    moved = count - (last - first)
    # Collections whose last entry is in the segment end where that entry now ends; everything after it is shifted.
    run = last
    while stream.events[run][0] in (SEQUENCE_END, MAPPING_END):
        run += 1
    last_stop = part.stops[-2] + base
    result = Stream(edited, max_depth=stream.max_depth, lenient=stream.lenient)
    result.events = stream.events[:first] + part.events[2:-2] + stream.events[last:]
    for name in ("starts", "bodies", "stops"):
        old: array[int] = getattr(stream, name)
        inside = [at + base for at in getattr(part, name)[2:-2]]
        setattr(
            result,
            name,
            old[:first] + array("q", [*inside, *[last_stop] * (run - last), *(at + by for at in old[run:])]),
        )
    for opening in segment.above:
        result.stops[opening] = last_stop if stream.closes[opening] < run else stream.stops[opening] + by
    result.closes = {
        opening + (moved if opening >= last else 0): closing + (moved if closing >= last else 0)
        for opening, closing in stream.closes.items()
        if not first <= opening < last
    }
    result.closes |= {at - 2 + first: closing - 2 + first for at, closing in part.closes.items() if at > 1}
    before, behind = _of_segment(stream, base, segment.stop)
    result.comments = [
        *stream.comments[:before],
        *((start + base, stop + base) for start, stop in part.comments),
        *((start + by, stop + by) for start, stop in stream.comments[behind:]),
    ]
    for document in stream.documents:
        event, close, body, stop, tags = document
        if close >= last:
            close, stop = close + moved, stop + by
        if event >= last:
            event, body = event + moved, body + by
        result.documents.append(Document(event, close, body, stop, tags))
    return result
