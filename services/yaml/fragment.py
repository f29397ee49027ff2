"""A replacement value: a piece of YAML that must be exactly one node, and its lines in the form needed elsewhere."""

import re
from dataclasses import dataclass, field
from typing import Final

from services.yaml.errors import NotApplicable, SyntaxFault, line_and_column
from services.yaml.syntax.events import ALIAS, Event
from services.yaml.syntax.parser import parse
from services.yaml.syntax.scalars import read_block_scalar
from services.yaml.syntax.tokens import BREAK
from services.yaml.tree import Tree

# The indentation indicator in the header of a block scalar, after its properties.
_INDICATOR: Final = re.compile(r"^((?:[&!][^ \t]*[ \t]+)*[|>])([+\-]?)[1-9]")
_LOOKS_LIKE_ENTRIES: Final = re.compile(r"[\r\n][ \t]*[-?:](?:[ \t\r\n]|\Z)")


@dataclass(frozen=True, slots=True)
class Fragment:
    """A parsed node. `events` are its events; `head` is the part on the line of the key (an inline value, a block
    scalar's header, a block collection's properties), `lines` is the part on the lines below, at `column`."""

    tree: Tree
    events: list[Event]
    comments: list[str]
    head: str
    lines: list[str] = field(default_factory=list)
    column: int = 0
    is_block_collection: bool = False
    is_block_scalar: bool = False

    @property
    def lacks_anchor(self) -> bool:
        """True if the anchor of the node that it replaces can stay."""
        return self.events[0][3] is None and self.events[0][0] != ALIAS

    def with_anchor(self, anchor: str | None) -> list[Event]:
        """Return the events if an anchor stays on the replaced node."""
        if anchor is None or not self.lacks_anchor:
            return self.events
        kind, style, value, _, tag = self.events[0]
        return [(kind, style, value, anchor, tag), *self.events[1:]]

    def require_inline(self) -> None:
        """Raises YamlError (-32003) for a block value."""
        if self.is_block_collection or self.is_block_scalar:
            raise NotApplicable(
                "a flow collection cannot contain a block value: write it as {…}, […] or a quoted string"
            )

    def inline_lines(self, indent: int) -> list[str]:
        """Return the lines of an inline value; those after the first are indented by `indent` columns."""
        first, *rest = BREAK.split(self.head)
        return [first, *(" " * indent + line if line.strip(" \t") else line for line in rest)]

    def block_header(self, indent: int) -> str:
        """Return the header of a block scalar whose content is indented by `indent` columns relative to its parent."""
        return _INDICATOR.sub(lambda found: found.group(1) + found.group(2) + str(indent), self.head, count=1)

    def shifted(self, column: int) -> list[str] | None:
        """Return the lines below, moved so that the node is at `column`; None if a line cannot move that far left."""
        by = column - self.column
        if by == 0:
            return self.lines
        if by > 0:
            return [" " * by + line if line else line for line in self.lines]
        return None if any(line[:-by].strip(" ") for line in self.lines) else [line[-by:] for line in self.lines]


def read_fragment(value: str, tags: dict[str, str], pad: int = 0) -> Fragment:
    """Parse a replacement value. `pad` makes the first line parse as if it began at that column.

    Raises YamlError (-32003) if it is not YAML, is empty, or has more than one node.
    """
    text = " " * pad + value
    try:
        stream = parse(text, tags=tags, lenient_closers=True)
    except SyntaxFault as fault:
        line, column = line_and_column(text, fault.offset)
        message = f"the value is not valid YAML: {fault.message} (line {line}, column {column} of the value)"
        raise NotApplicable(message) from None
    documents = stream.documents
    if text.startswith("\ufeff") or len(documents) > 1 or any(event[0] < 2 and event[1] for event in stream.events):
        raise NotApplicable("the value must be one node, without document markers or directives")
    tree = Tree(stream)
    if not documents or (tree.is_empty(1) and stream.starts[1] == stream.stops[1]):
        raise NotApplicable('the value is empty: write null or ~ for null, "" for an empty string')
    events = stream.events[1:-1]
    comments = stream.comment_texts()
    start, body, stop = stream.starts[1], stream.bodies[1], stream.stops[1]
    if tree.is_block_scalar(1):
        content = tree.next_line(body)
        lines = _lines(text, content, stop) if stop > content else []
        head = text[start : tree.line_stop(body)].rstrip(" \t")
        indent = read_block_scalar(text, body, -1).indent
        return Fragment(tree, events, comments, head, lines, indent, is_block_scalar=True)
    if tree.is_block_collection(1):
        column = tree.column(1)
        line = tree.line_start(body)
        first, last = line, stop
        if stream.comments:
            if start >= line:
                first = min(line, tree.line_start(stream.comments[0][0]))
            last = max(stop, stream.comments[-1][1])
        head = text[start:line].strip(" \t\r\n") if start < line else ""
        return Fragment(tree, events, comments, head, _lines(text, first, last), column, is_block_collection=True)
    head = text.strip(" \t\r\n")
    if events[0][1] == ":" and _LOOKS_LIKE_ENTRIES.search(head):
        # Moving such lines would silently turn them into text of the scalar.
        raise NotApplicable("a line of this plain scalar looks like an entry of a collection: quote it")
    return Fragment(tree, events, comments, head)


def read_pair(value: str, tags: dict[str, str]) -> Fragment:
    """Parse a replacement for a pair without braces in a flow sequence, such as `b` in `[a, b: 1]`.

    Raises YamlError (-32003).
    """
    text = f"[{value}\n]"
    try:
        stream = parse(text, tags=tags)
    except SyntaxFault as fault:
        raise NotApplicable(f"the value is not valid here: {fault.message}") from None
    tree = Tree(stream)
    if len(stream.documents) != 1 or stream.closes[1] != len(stream.events) - 2 or len(tree.children(1)) != 1:
        raise NotApplicable("the value must be one node, without a comma or bracket of its own")
    return Fragment(tree, stream.events[2:-2], stream.comment_texts(), value.strip(" \t\r\n"))


def looks_like_entries(fragment: Fragment) -> bool:
    """True if a plain scalar in the fragment has lines that look like entries of a collection."""
    stream = fragment.tree.stream
    return any(
        event[1] == ":" and _LOOKS_LIKE_ENTRIES.search(stream.text, stream.bodies[index], stream.stops[index])
        for index, event in enumerate(stream.events)
    )


def _lines(text: str, start: int, stop: int) -> list[str]:
    lines = BREAK.split(text[start:stop])
    if stop > start and text[stop - 1] in "\r\n":
        lines.pop()  # kept blank lines end with their own break
    return lines
