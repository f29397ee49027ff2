"""Checking an edit by reading again only the lines that it can have changed.

The parser goes from left to right, and at the line where an entry of a block collection begins all that it knows is the
stack of open collections. So where an edit lies behind the first character of such an entry and before the line of a
later one, only the lines between need to be read: if they hold entries of a collection at the same column and end
complete, the parser reaches the later line in the state in which it was before, and all that follows reads as it did.
Anything that does not fit this exactly (a pair left open, a byte order mark, a document marker) is left to a full read.
"""

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from services.yaml.errors import SyntaxFault
from services.yaml.syntax.events import DOCUMENT, MAPPING_END, SEQUENCE_END, Document, Stream
from services.yaml.syntax.parser import parse
from services.yaml.syntax.tokens import COLON
from services.yaml.tree import Place, Tree


class Segment(NamedTuple):
    """Whole lines of a text, from offset `start` to `stop`, that hold the events `first` up to `last` (excluded), which
    are entries of the block collection at event `collection`, `depth` levels below the document."""

    start: int
    stop: int
    first: int
    last: int
    collection: int
    depth: int


def find_segment(tree: Tree, low: int, high: int, start: int, stop: int) -> Segment | None:
    """The smallest segment around an edit of the characters from `low` to `high` and the events `start` to `stop`."""
    stream = tree.stream
    document = stream.document_of(start)
    if document is None or stop > document.close:
        return None
    node = document.event + 1
    end = document.stop
    found: Segment | None = None
    depth = 1
    while tree.is_block_collection(node) and node < start and high <= end:
        children = tree.children(node)
        # The last child whose events begin at or before the edit's, and the first one behind them.
        at = max(bisect_right(children, start, key=_first_event) - 1, 0)
        following = bisect_left(children, stop, key=_first_event)
        inside = children[at]
        last = stream.closes[node]
        if following < len(children):
            offset = _entry_offset(tree, children, following)
            if not _begins_line(tree, children[following], offset):
                return found
            end, last = tree.line_start(offset), _first_event(children[following])
        if high > end or stop > last:
            break
        for number in range(at, -1, -1):
            offset = _entry_offset(tree, children, number)
            if offset < low and _begins_line(tree, children[number], offset):
                found = Segment(tree.line_start(offset), end, _first_event(children[number]), last, node, depth)
                break
        if stop > stream.after(inside.node):
            break
        node = inside.node
        depth += 1
    return found


def _begins_line(tree: Tree, place: Place, offset: int) -> bool:
    """Whether an entry is one that begins its line: an implicit key with something to it, or a dash."""
    stream = tree.stream
    if tree.text[tree.line_start(offset) : offset].strip(" "):
        return False
    if place.key < 0:
        return True
    return stream.stops[place.key] > offset and COLON.match(tree.text, stream.stops[place.key]) is not None


def _first_event(place: Place) -> int:
    return place.key if place.key >= 0 else place.node


def _entry_offset(tree: Tree, children: list[Place], number: int) -> int:
    """The offset where an entry begins: its key (behind a ?), or its dash."""
    place = children[number]
    stream = tree.stream
    if place.key >= 0:
        return stream.starts[place.key]
    at = stream.bodies[place.parent] if number == 0 else stream.stops[children[number - 1].node]
    text = tree.text
    while text[at] != "-":
        if text[at] == "#":
            at = tree.line_stop(at)
        else:
            at += 1
    return at


def read_segment(tree: Tree, segment: Segment, edited: str) -> Stream | None:
    """The whole edited stream by reading only the segment again; None where the segment does not read as such."""
    stream = tree.stream
    stop = segment.stop + len(edited) - len(tree.text)
    text = edited[segment.start : stop]
    document = stream.document_of(segment.first)
    if "\ufeff" in text or (stop < len(edited) and text[-1:] not in ("\n", "\r")):
        return None
    try:
        part = parse(
            text,
            max_depth=stream.max_depth - segment.depth + 1,
            lenient_closers=stream.lenient,
            tags=None if document is None else document.tags,
        )
    except SyntaxFault:
        return None
    kind = stream.events[segment.collection][0]
    if (
        len(part.documents) != 1
        or part.events[0] != (DOCUMENT, "", "", None, None)
        or part.events[1] != (kind, "", "", None, None)
        or part.closes[1] != len(part.events) - 2
        or part.events[-1][1]
        or Tree(part).column(1) != tree.column(segment.collection)
    ):
        return None
    return _graft(stream, segment, part, edited)


def _graft(stream: Stream, segment: Segment, part: Stream, edited: str) -> Stream:
    """The edited stream: the old one with the segment's events and offsets replaced, and what follows moved."""
    first, last, base = segment.first, segment.last, segment.start
    by = len(edited) - len(stream.text)
    count = len(part.events) - 4  # without the document's and the collection's own events
    moved = count - (last - first)
    end = segment.stop
    # Collections whose last entry is in the segment end where that entry now does; all else behind it moves.
    run = last
    while stream.events[run][0] in (SEQUENCE_END, MAPPING_END):
        run += 1
    last_stop = part.stops[-2] + base
    result = Stream(edited, max_depth=stream.max_depth, lenient=stream.lenient)
    result.events = stream.events[:first] + part.events[2:-2] + stream.events[last:]
    for name in ("starts", "bodies", "stops"):
        old: array[int] = getattr(stream, name)
        new: array[int] = getattr(part, name)
        out = old[:first]
        out.extend(array("q", [at + base for at in new[2:-2]]))
        out.extend([last_stop] * (run - last))
        out.extend(array("q", [at + by for at in old[run:]]) if by else old[run:])
        setattr(result, name, out)
    closes = result.closes
    for opening, closing in stream.closes.items():
        if opening < first:
            if closing < last:
                closes[opening] = closing
            else:
                closes[opening] = closing + moved
                result.stops[opening] = last_stop if closing < run else stream.stops[opening] + by
        elif opening >= last:
            closes[opening + moved] = closing + moved
    for opening, closing in part.closes.items():
        if opening > 1:
            closes[opening - 2 + first] = closing - 2 + first
    result.comments = [
        *(span for span in stream.comments if span[0] < base),
        *((start + base, stop + base) for start, stop in part.comments),
        *((start + by, stop + by) for start, stop in stream.comments if start >= end),
    ]
    for document in stream.documents:
        event, close, body, stop = document.event, document.close, document.body, document.stop
        if close >= last:
            close, stop = close + moved, stop + by
        if event >= last:
            event, body = event + moved, body + by
        result.documents.append(Document(event, close, body, stop, document.tags))
    return result
