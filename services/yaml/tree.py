"""The node tree over a parsed stream: children, keys, columns, aliases, and the way from a path to a node.

Nothing is copied: a node is the index of its event. What a look-up needs is built once per collection and kept, so a
second look-up in a file of any size is a few dictionary accesses.
"""

from typing import Final, NamedTuple

from services.yaml.errors import SyntaxFault
from services.yaml.path import Key, Step, show_path
from services.yaml.syntax.events import ALIAS, MAPPING, SCALAR, SEQUENCE, Document, Stream

_NULL_WORDS: Final = frozenset(("~", "null", "Null", "NULL"))


class Place(NamedTuple):
    """Where a node stands: its own index, its parent collection (-1 for a root), and its key or position there.

    `key` is the index of the key's event (-1 outside a mapping), `number` the position among the parent's children.
    """

    node: int
    parent: int
    key: int
    number: int


class NotThere(Exception):
    """A path that leads nowhere. `parent` is the deepest node that exists and `rest` the steps that remain.

    `reason` tells why; `creatable` says that a set may create the rest.
    """

    def __init__(self, reason: str, parent: Place, rest: list[Step], *, creatable: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.parent = parent
        self.rest = rest
        self.creatable = creatable


class Tree:
    """A parsed stream with its look-up tables."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.text = stream.text
        self._keys: dict[int, dict[str, Place]] = {}
        self._children: dict[int, list[Place]] = {}
        self._targets: dict[int, int] | None = None

    def root(self, document: Document) -> Place:
        return Place(document.event + 1, -1, -1, 0)

    def children(self, node: int) -> list[Place]:
        """The values of a collection in order (for a mapping with their keys)."""
        found = self._children.get(node)
        if found is None:
            found = self._children[node] = self._read_children(node)
        return found

    def _read_children(self, node: int) -> list[Place]:
        stream = self.stream
        closes = stream.closes
        mapping = stream.events[node][0] == MAPPING
        end = closes[node]
        at = node + 1
        out: list[Place] = []
        while at < end:
            key = -1
            if mapping:
                key = at
                at = closes.get(at, at) + 1
            out.append(Place(at, node, key, len(out)))
            at = closes.get(at, at) + 1
        return out

    def keys(self, mapping: int) -> dict[str, Place]:
        """The entries of a mapping by the text of their keys; of duplicates the last."""
        found = self._keys.get(mapping)
        if found is None:
            found = self._keys[mapping] = {self.key_text(place.key): place for place in self.children(mapping)}
        return found

    def key_text(self, key: int) -> str:
        """What a path calls a key: its value, or for a collection or alias its source."""
        kind, _, value, _, _ = self.stream.events[key]
        if kind == SCALAR:
            return value
        return self.text[self.stream.bodies[key] : self.stream.stops[key]]

    def is_flow(self, node: int) -> bool:
        return self.stream.events[node][1] in ("[]", "{}")

    def is_block_collection(self, node: int) -> bool:
        kind, style, _, _, _ = self.stream.events[node]
        return kind in (SEQUENCE, MAPPING) and style == ""

    def is_block_scalar(self, node: int) -> bool:
        kind, style, _, _, _ = self.stream.events[node]
        return kind == SCALAR and style in ("|", ">")

    def is_empty(self, node: int) -> bool:
        """Whether the node is a null that has no text of its own (it may have properties)."""
        return self.stream.events[node][0] == SCALAR and self.stream.bodies[node] == self.stream.stops[node]

    def is_null(self, node: int) -> bool:
        """Whether the node is null under the core schema: empty, or the plain word for it."""
        kind, style, value, _, tag = self.stream.events[node]
        return kind == SCALAR and style == ":" and tag is None and (not value or value in _NULL_WORDS)

    def line_start(self, at: int) -> int:
        """The offset where the line of `at` begins."""
        line = self.text.rfind("\n", 0, at) + 1
        line = self.text.rfind("\r", line, at) + 1 or line
        return line + 1 if at > line and self.text[line] == "\ufeff" else line  # a byte order mark has no column

    def line_stop(self, at: int) -> int:
        """The offset of the break that ends the line of `at`, or the end of the text."""
        text = self.text
        stop = text.find("\n", at)
        if stop < 0:
            stop = len(text)
        carriage = text.find("\r", at, stop)
        return carriage if carriage >= 0 else stop

    def next_line(self, at: int) -> int:
        """The offset after the break that ends the line of `at`, or the end of the text."""
        stop = self.line_stop(at)
        if self.text.startswith("\r\n", stop):
            return stop + 2
        return min(stop + 1, len(self.text))

    def column(self, node: int) -> int:
        """The column of a node's body; for a block collection the column of its entries."""
        at = self.stream.bodies[node]
        return at - self.line_start(at)

    def find(self, document: Document, steps: list[Step]) -> Place:
        """The node at a path. Raises NotThere."""
        place = self.root(document)
        events = self.stream.events
        for number, step in enumerate(steps):
            kind = events[place.node][0]
            here = show_path(steps[:number])
            rest = steps[number:]
            if kind == ALIAS:
                name = events[place.node][2]
                raise NotThere(f"{here} is the alias *{name}: use the path of its anchor", place, rest, creatable=False)
            if isinstance(step, Key):
                if kind == MAPPING:
                    child = self.keys(place.node).get(step.name)
                    if child is None:
                        raise NotThere(f"{here} has no key {step.name!r}", place, rest, creatable=True)
                    place = child
                elif kind == SEQUENCE:
                    raise NotThere(f"{here} is a sequence: use [n], not a key", place, rest, creatable=False)
                else:
                    raise NotThere(
                        f"{here} is a scalar: it has no keys", place, rest, creatable=self.is_null(place.node)
                    )
            elif kind == SEQUENCE:
                items = self.children(place.node)
                if not 0 <= step.number < len(items):
                    raise NotThere(
                        f"{here} has {len(items)} items, so [{step.number}] is not one of them",
                        place,
                        rest,
                        creatable=False,
                    )
                place = items[step.number]
            else:
                what = "mapping" if kind == MAPPING else "scalar"
                raise NotThere(f"{here} is a {what}: it has no items", place, rest, creatable=False)
        return place

    def source(self, node: int) -> str:
        """The node's source: a block collection from the start of its first line where it stands on its own line."""
        start = self.stream.starts[node]
        if self.is_block_collection(node):
            line = self.line_start(start)
            if not self.text[line:start].strip(" "):
                start = line
        return self.text[start : self.stream.stops[node]]

    def alias_targets(self) -> dict[int, int]:
        """For each alias event the event that carries its anchor. Raises SyntaxFault for an alias without one."""
        if self._targets is None:
            self._targets = _resolve(self.stream)
        return self._targets


def _resolve(stream: Stream) -> dict[int, int]:
    targets: dict[int, int] = {}
    if "*" not in stream.text:
        return targets
    anchors: dict[str, int] = {}
    for index, (kind, _, value, anchor, _) in enumerate(stream.events):
        if anchor is not None:
            anchors[anchor] = index
        elif kind == ALIAS:
            target = anchors.get(value)
            if target is None:
                raise SyntaxFault(f"the alias *{value} has no anchor &{value} before it", stream.starts[index])
            targets[index] = target
        elif kind == 0:
            anchors.clear()
    return targets
