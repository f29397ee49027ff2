"""Where a value stands in its file: after which indicator, at which column, on the indicator's line or below it."""

from dataclasses import dataclass

from services.yaml.errors import SyntaxFault
from services.yaml.syntax.events import SEQUENCE, Document
from services.yaml.syntax.properties import read_properties
from services.yaml.tree import Place, Tree


@dataclass(frozen=True, slots=True)
class Slot:
    """The surroundings of one value.

    `at` is the offset after the indicator (`:`, `-` or `---`) that introduces it, `column` the column of the block
    collection around it (-1 for a document), `introduced` false where the indicator is left out (`{a}`, `? a`).
    `compact` says that a block collection may begin on the indicator's line. `anchor` is the text of the value's
    anchor with its &, `properties_stop` the end of its properties.
    """

    node: int
    at: int
    column: int
    flow: bool
    introduced: bool
    compact: bool
    on_line: bool
    anchor: str
    tagged: bool
    properties_stop: int


def find_slot(tree: Tree, place: Place, document: Document) -> Slot:
    """The slot of an existing value."""
    stream = tree.stream
    text = tree.text
    node = place.node
    start, body = stream.starts[node], stream.bodies[node]
    column, flow = enclosing(tree, place, document)
    introduced = True
    compact = False
    if place.parent < 0:
        at = document.body
    elif flow:
        key_stop = stream.stops[place.key] if place.key >= 0 else start
        at = start
        introduced = place.key < 0 or text.find(":", key_stop, start) >= 0
    elif place.key < 0:
        at = _pass_to(text, _previous_stop(tree, place), start, "-")
        compact = True
    else:
        key_stop = stream.stops[place.key]
        at = _pass_to(text, key_stop, start, ":")
        introduced = at >= 0
        if at < 0:
            at = key_stop
        line = tree.line_start(at - 1)
        compact = not text[line : at - 1].strip(" ") and key_stop < line
    anchor = ""
    stop = start
    event = stream.events[node]
    if event[3] is not None or event[4] is not None:
        anchor = "&" + event[3] if event[3] is not None else ""
        stop = _properties_stop(text, start, body, document.tags)
    on_line = "\n" not in text[at:start] and "\r" not in text[at:start]
    return Slot(node, at, column, flow, introduced, compact, on_line, anchor, event[4] is not None, stop)


def enclosing(tree: Tree, place: Place, document: Document) -> tuple[int, bool]:
    """The column of the innermost block collection around a place (-1 for none), and whether a flow one is inside."""
    parent = place.parent
    if parent < 0:
        return -1, False
    if not tree.is_flow(parent):
        return tree.column(parent), False
    # Walk down from the root to the last block collection that contains the parent.
    column = -1
    at = document.event + 1
    while at != parent and tree.is_block_collection(at):
        column = tree.column(at)
        at = _child_around(tree, at, parent)
    return column, True


def _child_around(tree: Tree, node: int, inner: int) -> int:
    closes = tree.stream.closes
    at = node + 1
    while True:
        after = closes.get(at, at) + 1
        if after > inner:
            return at
        at = after


def _previous_stop(tree: Tree, place: Place) -> int:
    if place.number == 0:
        return tree.stream.bodies[place.parent]
    return tree.stream.stops[tree.children(place.parent)[place.number - 1].node]


def _pass_to(text: str, at: int, stop: int, mark: str) -> int:
    """The offset after the first `mark` from `at` on, past white space and comments only; -1 where there is none."""
    while at < stop or (at == stop and text[at : at + 1] == mark):
        if text[at] == mark:
            return at + 1
        if text[at] == "#":
            while at < stop and text[at] not in "\r\n":
                at += 1
        else:
            at += 1
    return -1


def _properties_stop(text: str, start: int, body: int, tags: dict[str, str]) -> int:
    """The end of the properties between `start` and `body`, which may stand on several lines."""
    stop = start
    at = start
    while at < body or at == start:
        if text[at : at + 1] in ("&", "!"):
            try:
                found, at = read_properties(text, at, tags, flow=True)
            except SyntaxFault as fault:
                raise AssertionError("properties of a parsed node parse again") from fault
            stop = found.stop
        elif text[at] == "#":
            while at < body and text[at] not in "\r\n":
                at += 1
        else:
            at += 1
    return stop


def is_sequence(tree: Tree, node: int) -> bool:
    return tree.stream.events[node][0] == SEQUENCE
