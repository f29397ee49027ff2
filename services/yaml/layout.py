"""The position of a value in its file (after which indicator, at which column, on the indicator's line or below it),
and the file's formatting (line break, indent unit and sequence style), so that new lines look like their neighbours."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from services.yaml.errors import SyntaxFault
from services.yaml.syntax.events import MAPPING, SEQUENCE, Document
from services.yaml.syntax.tokens import BREAK, read_properties
from services.yaml.tree import NodePlace, Tree

_SAMPLE: Final = 4000  # events examined: only the first ones determine the style


@dataclass(frozen=True, slots=True)
class Slot:
    """The surroundings of a value.

    `at` is the offset after the indicator (`:`, `-` or `---`) that introduces it, `column` the column of the enclosing
    block collection (-1 for a document), `introduced` is False if there is no indicator (`{a}`, `? a`). `compact` says
    that a block collection may begin on the indicator's line. `anchor` is the text of the value's anchor with its &,
    `properties_stop` the end of its properties.
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


def find_slot(tree: Tree, place: NodePlace, document: Document) -> Slot:
    """Return the slot of an existing value."""
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
        at = tree.dash_stop(place)
        compact = True
    else:
        key_stop = stream.stops[place.key]
        at = tree.pass_to(key_stop, start, ":")
        introduced = at >= 0
        at = at if introduced else key_stop
        line = tree.line_start(at - 1)
        compact = not text[line : at - 1].strip(" ") and key_stop < line
    anchor = ""
    stop = start
    event = stream.events[node]
    if event[3] is not None or event[4] is not None:
        anchor = "&" + event[3] if event[3] is not None else ""
        stop = _properties_stop(tree, start, body, document.tags)
    on_line = "\n" not in text[at:start] and "\r" not in text[at:start]
    return Slot(node, at, column, flow, introduced, compact, on_line, anchor, event[4] is not None, stop)


def enclosing(tree: Tree, place: NodePlace, document: Document) -> tuple[int, bool]:
    """Return the column of the innermost enclosing block collection (-1 for none), and whether there is a flow
    collection inside it."""
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
        at += 1
        while (after := tree.stream.after(at)) <= parent:
            at = after
    return column, True


def _properties_stop(tree: Tree, start: int, body: int, tags: dict[str, str]) -> int:
    """Return the end of the properties between `start` and `body`, which may be on several lines."""
    stop = at = start
    while at < body or at == start:
        if tree.text[at : at + 1] in ("&", "!"):
            try:
                found, at = read_properties(tree.text, at, tags, flow=True)
            except SyntaxFault as fault:
                raise AssertionError("properties of a parsed node parse again") from fault
            stop = found.stop
        else:
            at = tree.line_stop(at) if tree.text[at] == "#" else at + 1
    return stop


class Style:
    """The formatting of a parsed file; lengths are in columns."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def line_break(self, at: int) -> str:
        """Return the line break to write near an offset: that of its own line, else of the line before, else LF."""
        text = self.tree.text
        found = BREAK.search(text, self.tree.line_stop(at)) if at < len(text) else None
        if found is not None:
            return found.group()
        start = self.tree.line_start(at)
        return text[self.tree.before_break(start) : start] or "\n"

    @cached_property
    def _steps(self) -> tuple[Counter[int], Counter[int]]:
        """Indentation counts of block mappings and of block sequences, relative to the mapping that contains them."""
        tree = self.tree
        stream = tree.stream
        mappings: Counter[int] = Counter()
        sequences: Counter[int] = Counter()
        for index in range(min(len(stream.events), _SAMPLE)):
            if stream.events[index][0] != MAPPING or not tree.is_block_collection(index):
                continue
            column = tree.column(index)
            at = index + 1
            end = min(stream.closes[index], _SAMPLE)
            while at < end:
                value = stream.after(at)
                if tree.is_block_collection(value) and tree.line_start(stream.bodies[value]) > stream.stops[at]:
                    step = tree.column(value) - column
                    (sequences if stream.events[value][0] == SEQUENCE else mappings)[step] += 1
                at = stream.after(value)
        return mappings, sequences

    @cached_property
    def unit(self) -> int:
        """The indentation of a nested mapping."""
        mappings, sequences = self._steps
        for counter in (mappings, Counter({step: count for step, count in sequences.items() if step})):
            if counter:
                return counter.most_common(1)[0][0]
        return 2

    @cached_property
    def sequence_step(self) -> int:
        """The indentation of a sequence under its key: 0 if the file does not indent them."""
        _, sequences = self._steps
        return sequences.most_common(1)[0][0] if sequences else self.unit
