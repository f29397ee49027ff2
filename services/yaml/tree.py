"""The node tree over a parsed stream: children, keys, columns, aliases, and lookup of a node by its path.

Nothing is copied: a node is the index of its event. Lookup tables are built once per collection and kept, so a second
lookup in a file of any size takes a few dictionary accesses.
"""

from typing import Final, NamedTuple

from services.yaml.errors import SyntaxFault
from services.yaml.path import Key, Step, show_path
from services.yaml.syntax.events import ALIAS, DOCUMENT, MAPPING, SCALAR, SEQUENCE, Document, Stream

_NULL_WORDS: Final = frozenset(("~", "null", "Null", "NULL"))


class NodePlace(NamedTuple):
    """The position of a node: its own index, its parent collection (-1 for a root), and its key or position there.

    `key` is the index of the key's event (-1 outside a mapping), `number` the position among the parent's children.
    """

    node: int
    parent: int
    key: int
    number: int

    @property
    def first(self) -> int:
        """The index of the entry's first event: its key's, or its own if it has no key."""
        return self.node if self.key < 0 else self.key


class PathNotFound(Exception):
    """A path that does not exist. `parent` is the deepest existing node and `rest` the steps that remain.

    `reason` says why; `creatable` is True if a set may create the rest.
    """

    def __init__(self, reason: str, parent: NodePlace, rest: list[Step], *, creatable: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.parent = parent
        self.rest = rest
        self.creatable = creatable


class Tree:
    """A parsed stream with lookup tables."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.text = stream.text
        self._keys: dict[int, dict[str, NodePlace]] = {}
        self._children: dict[int, list[NodePlace]] = {}
        self._targets: dict[int, int] | None = None

    def root(self, document: Document) -> NodePlace:
        return NodePlace(document.event + 1, -1, -1, 0)

    def children(self, node: int) -> list[NodePlace]:
        """Return the values of a collection in order (for a mapping with their keys)."""
        found = self._children.get(node)
        if found is None:
            found = self._children[node] = []
            stream = self.stream
            mapping = stream.events[node][0] == MAPPING
            # `Stream.after`, inlined: there may be a hundred thousand.
            close = stream.closes.get
            at, end = node + 1, stream.closes[node]
            while at < end:
                key, value = (at, close(at, at) + 1) if mapping else (-1, at)
                found.append(NodePlace(value, node, key, len(found)))
                at = close(value, value) + 1
        return found

    def keys(self, mapping: int) -> dict[str, NodePlace]:
        """Return the entries of a mapping by the text of their keys; of duplicates, the last."""
        found = self._keys.get(mapping)
        if found is None:
            found = self._keys[mapping] = {self.key_text(place.key): place for place in self.children(mapping)}
        return found

    def key_text(self, key: int) -> str:
        """Return how a path refers to a key: its value, or for a collection or alias its source."""
        kind, _, value, _, _ = self.stream.events[key]
        if kind == SCALAR:
            return value
        return self.text[self.stream.bodies[key] : self.stream.stops[key]]

    def is_flow(self, node: int) -> bool:
        return self.stream.events[node][1] in ("[]", "{}")

    def is_sequence(self, node: int) -> bool:
        return self.stream.events[node][0] == SEQUENCE

    def is_block_collection(self, node: int) -> bool:
        kind, style, _, _, _ = self.stream.events[node]
        return kind in (SEQUENCE, MAPPING) and style == ""

    def is_block_scalar(self, node: int) -> bool:
        kind, style, _, _, _ = self.stream.events[node]
        return kind == SCALAR and style in ("|", ">")

    def is_empty(self, node: int) -> bool:
        """True if the node is a null without text of its own (it may have properties)."""
        return self.stream.events[node][0] == SCALAR and self.stream.bodies[node] == self.stream.stops[node]

    def is_null(self, node: int) -> bool:
        """True if the node is null under the core schema: empty, or the plain word for it."""
        kind, style, value, _, tag = self.stream.events[node]
        return kind == SCALAR and style == ":" and tag is None and (not value or value in _NULL_WORDS)

    def line_start(self, at: int) -> int:
        """Return the offset where the line of `at` begins."""
        line = self.text.rfind("\n", 0, at) + 1
        line = self.text.rfind("\r", line, at) + 1 or line
        return line + 1 if at > line and self.text[line] == "\ufeff" else line  # a byte order mark has no column

    def line_stop(self, at: int) -> int:
        """Return the offset of the break that ends the line of `at`, or the end of the text."""
        stop = self.text.find("\n", at)
        if stop < 0:
            stop = len(self.text)
        carriage = self.text.find("\r", at, stop)
        return carriage if carriage >= 0 else stop

    def next_line(self, at: int) -> int:
        """Return the offset after the break that ends the line of `at`, or the end of the text."""
        stop = self.line_stop(at)
        if self.text.startswith("\r\n", stop):
            return stop + 2
        return min(stop + 1, len(self.text))

    def before_break(self, line: int) -> int:
        """Return the offset of the break that ends the line before the one that begins at `line`."""
        return max(line - (2 if self.text.startswith("\r\n", line - 2) else 1), 0)

    def before_spaces(self, at: int) -> int:
        """Return the offset after the last character before `at` that is not a space or tab."""
        while at > 0 and self.text[at - 1] in " \t":
            at -= 1
        return at

    def pass_to(self, at: int, stop: int, mark: str) -> int:
        """Return the offset after the first `mark` from `at` up to `stop`, past only white space and comments; -1 if
        there is no such mark."""
        text = self.text
        while at <= stop and at < len(text):
            if text[at] == mark:
                return at + 1
            at = self.line_stop(at) if text[at] == "#" else at + 1
        return -1

    def dash_stop(self, place: NodePlace) -> int:
        """Return the offset after the dash of an item of a block sequence."""
        stream = self.stream
        before = self.children(place.parent)[place.number - 1].node if place.number else -1
        at = stream.stops[before] if before >= 0 else stream.bodies[place.parent]
        return self.pass_to(at, stream.starts[place.node], "-")

    def column(self, node: int) -> int:
        """Return the column of a node's body; for a block collection, the column of its entries."""
        at = self.stream.bodies[node]
        return at - self.line_start(at)

    def find(self, document: Document, steps: list[Step]) -> NodePlace:
        """Return the node at a path. Raises NotThere."""
        place = self.root(document)
        for number, step in enumerate(steps):
            kind, _, value, _, _ = self.stream.events[place.node]
            child: NodePlace | None = None
            if kind == ALIAS:
                reason = f"is the alias *{value}: use the path of its anchor"
            elif isinstance(step, Key):
                if kind == MAPPING:
                    child = self.keys(place.node).get(step.name)
                    reason = f"has no key {step.name!r}"
                else:
                    reason = "is a sequence: use [n], not a key" if kind == SEQUENCE else "is a scalar: it has no keys"
            elif kind == SEQUENCE:
                items = self.children(place.node)
                if 0 <= step.number < len(items):
                    child = items[step.number]
                reason = f"has {len(items)} items, so [{step.number}] does not exist"
            else:
                reason = f"is a {'mapping' if kind == MAPPING else 'scalar'}: it has no items"
            if child is None:
                creatable = isinstance(step, Key) and (kind == MAPPING or self.is_null(place.node))
                reason = f"{show_path(steps[:number])} {reason}"
                raise PathNotFound(reason, place, steps[number:], creatable=creatable)
            place = child
        return place

    def source(self, node: int) -> str:
        """Return the node's source; a block collection on its own line includes the line's indentation."""
        start = self.stream.starts[node]
        if self.is_block_collection(node):
            line = self.line_start(start)
            if not self.text[line:start].strip(" "):
                start = line
        return self.text[start : self.stream.stops[node]]

    def alias_targets(self) -> dict[int, int]:
        """Return, for each alias event, the event with its anchor. Raises SyntaxFault for an alias without one."""
        if self._targets is None:
            targets: dict[int, int] = {}
            anchors: dict[str, int] = {}
            for index, (kind, _, value, anchor, _) in enumerate(self.stream.events if "*" in self.text else ()):
                if anchor is not None:
                    anchors[anchor] = index
                elif kind == ALIAS:
                    if value not in anchors:
                        start = self.stream.starts[index]
                        raise SyntaxFault(f"the alias *{value} has no anchor &{value} before it", start)
                    targets[index] = anchors[value]
                elif kind == DOCUMENT:
                    anchors.clear()
            self._targets = targets
        return self._targets
