"""Replaces an existing value: the candidate edits, in the order in which they are tried.

A candidate is only a guess at what a careful person would type. The check decides; the first one that passes is used.
"""

from collections.abc import Iterator

from services.yaml.check import Expected, Splice, first_right
from services.yaml.fragment import Fragment
from services.yaml.layout import Slot, Style, find_slot
from services.yaml.syntax.events import Document
from services.yaml.syntax.tokens import BREAK
from services.yaml.tree import NodePlace, Tree


def replace_value(tree: Tree, document: Document, place: NodePlace, fragment: Fragment) -> Tree:
    """Return the tree after replacing the value at `place` with `fragment`. Raises YamlError (-32003) if no edit is
    right."""
    node, after = place.node, tree.stream.after(place.node)
    slot = find_slot(tree, place, document)
    if slot.flow:
        fragment.require_inline()
    events = fragment.with_anchor(tree.stream.events[node][3])
    expected = Expected(node, after, events, _dropped_comments(tree, node, fragment), fragment.comments)
    candidates = _Candidates(tree, document, slot, fragment).all()
    return first_right(tree, candidates, expected, lambda: _why_not(tree, node, after))


def _why_not(tree: Tree, start: int, stop: int) -> str:
    for alias, target in tree.alias_targets().items():
        if start <= target < stop and not start <= alias < stop:
            name = tree.stream.events[target][3]
            return f"the value has the anchor &{name}, which an alias elsewhere needs: keep it in the new value"
    anchors = sorted({anchor for *_, anchor, _ in tree.stream.events[start:stop] if anchor is not None})
    hint = f" (anchors there: {', '.join(anchors)})" if anchors else ""
    return f"this value would change something else in the file{hint}: quote it, or check its indentation"


def _dropped_comments(tree: Tree, node: int, fragment: Fragment) -> frozenset[int]:
    """Return the comments inside the replaced value. A block scalar's header comment is only dropped if the new one has
    its own."""
    stream = tree.stream
    if tree.is_block_scalar(node) and not (fragment.is_block_scalar and fragment.comments):
        return frozenset()
    first = stream.starts[node] if fragment.is_block_collection and "#" in fragment.head else stream.bodies[node]
    return frozenset(index for index, (start, _) in enumerate(stream.comments) if first <= start < stream.stops[node])


class _Candidates:
    def __init__(self, tree: Tree, document: Document, slot: Slot, fragment: Fragment) -> None:
        self.tree = tree
        self.text = tree.text
        self.document = document
        self.slot = slot
        self.fragment = fragment
        self.style = Style(tree)
        stream = tree.stream
        node = slot.node
        self.start, self.body, self.stop = stream.starts[node], stream.bodies[node], stream.stops[node]
        self.line_break = self.style.line_break(self.start)
        self.keeps_anchor = bool(slot.anchor) and fragment.lacks_anchor
        self.empty = tree.is_empty(node)
        # The lines of a value below its first; for a block collection, from its first line on.
        self.block_scalar = tree.is_block_scalar(node)
        self.first_line = tree.line_start(self.body)
        self.below = tree.is_block_collection(node) and (
            not self.text[self.first_line : self.body].strip(" ") and (slot.at <= self.first_line or slot.column < 0)
        )
        start_line = tree.line_start(self.start)
        self.own_line = (
            not (self.empty or self.below or self.block_scalar)
            and not self.text[start_line : self.start].strip(" ")
            and slot.at <= start_line
        )

    def all(self) -> Iterator[list[Splice]]:
        if self.fragment.is_block_collection:
            yield from self._collection()
        elif self.fragment.is_block_scalar:
            yield from self._scalar_lines()
        else:
            for head in self._inline_texts():
                if self.below:
                    yield from self._below_to_inline(head)
                elif self.block_scalar:
                    yield [*self._head(head), *self._without_lines()]
                else:
                    yield self._head(head)

    def _inline_texts(self) -> Iterator[str]:
        lines = BREAK.split(self.fragment.head)
        yield self._joined(lines)
        if len(lines) > 1:
            yield self._joined(self.fragment.inline_lines(max(self.slot.column, 0) + self.style.unit))

    def _joined(self, lines: list[str]) -> str:
        return self.line_break.join(lines)

    # The line of the key

    def _prefix(self) -> tuple[int, str]:
        """Return where the replaced text begins, and the anchor that must be written again there."""
        if self.keeps_anchor and not self.slot.tagged:
            return self.body, ""
        return self.start, self.slot.anchor + " " if self.keeps_anchor else ""

    def _head(self, text: str) -> list[Splice]:
        """Put `text` at the start of the value's own first line; the rest of that line stays."""
        slot = self.slot
        properties = slot.properties_stop > self.start or bool(slot.anchor) or slot.tagged
        if not slot.introduced:
            return self._introduce(text)
        if (self.empty or self.below) and (not properties or (self.keeps_anchor and not slot.tagged)):
            at = slot.properties_stop if properties else self.start if slot.flow else slot.at
            return [self._beside(at, text)] if text else []
        if self.block_scalar:
            stop = self._header_stop(bool(self.fragment.is_block_scalar and self.fragment.comments))
        else:
            stop = slot.properties_stop if self.empty or self.below else self.stop
        start, prefix = self._prefix()
        if text:
            return [Splice(start, stop, prefix + text)]
        if prefix:
            return [Splice(self.start, stop, slot.anchor)]
        if self.keeps_anchor:
            return [Splice(slot.properties_stop, stop, "")]
        return [Splice(slot.at if slot.on_line else self.start, stop, "")]

    def _beside(self, at: int, text: str) -> Splice:
        """Put `text` after an indicator or property, reusing a space that is already there."""
        if self._at_document_line():
            return Splice(at, at, text)
        rest = self.text[at : self.tree.line_stop(at)]
        follows = rest.lstrip(" \t")[:1]
        if rest.startswith(" ") and follows in (("", ",", "}", "]") if self.slot.flow else ("",)):
            return Splice(at + 1, at + 1, text)
        return Splice(at, at, " " + text)

    def _at_document_line(self) -> bool:
        """True if the value is a document's own, without --- on its line."""
        body = self.document.body
        return self.slot.column < 0 and not self.slot.flow and self.text[body - 3 : body] != "---"

    def _introduce(self, text: str) -> list[Splice]:
        if self.slot.flow:
            return [Splice(self.start, self.start, ": " + text)] if text else []
        at = self.tree.line_stop(self.start)
        return [Splice(at, at, f"{self.line_break}{' ' * self.slot.column}:{' ' + text if text else ''}")]

    def _header_stop(self, with_comment: bool) -> int:
        at = self.body + 1
        if with_comment:
            return self.tree.before_spaces(self.tree.line_stop(at))
        while self.text[at : at + 1] in tuple("+-123456789"):
            at += 1
        return at

    # The lines below

    def _region(self) -> tuple[int, int]:
        """Return the lines of a value below its first (for a block collection: from its first), without the last
        break."""
        first = self.first_line if self.below else self.tree.next_line(self.body)
        stop = self.stop
        if stop > first and self.text[stop - 1] in "\r\n":
            stop = self.tree.before_break(stop)
        return first, stop

    def _without_lines(self) -> list[Splice]:
        """Remove those lines; a comment after the last of them stays, on a line of its own."""
        first, stop = self._region()
        if stop < first or (stop == first and not self.block_scalar) or self.stop <= first:
            return []
        line_stop = self.tree.line_stop(stop)
        if self.text[stop:line_stop].strip(" \t"):
            return [Splice(first, stop, "")]
        if line_stop < len(self.text):
            return [Splice(first, self.tree.next_line(stop), "")]
        return [Splice(self.tree.before_break(first), line_stop, "")]

    def _below_to_inline(self, text: str) -> Iterator[list[Splice]]:
        slot = self.slot
        if slot.column < 0 and self.start >= self.first_line:
            yield [Splice(self.body, self.stop, text)]
            return
        begin = slot.properties_stop if self.keeps_anchor else slot.at
        gap = self.text[max(begin, slot.properties_stop) : self.body]
        if "#" not in gap and not (self.keeps_anchor and slot.tagged):
            yield [Splice(begin, self.stop, " " + text)]
        yield [*self._head(text), *self._without_lines()]

    def _scalar_lines(self) -> Iterator[list[Splice]]:
        fragment = self.fragment
        column = max(self.slot.column, 0)
        own = 0
        if self.block_scalar and self.stop > self.tree.next_line(self.body):
            first, stop = self._region()
            lines = [line for line in self.text[first:stop].split("\n") if line.strip(" \r")]
            own = min((len(line) - len(line.lstrip(" ")) for line in lines), default=0)
        indents = [own, column + self.style.unit]
        if self.own_line:
            # If the header has its own line, the content is indented more than the header, as libfyaml requires.
            indents = [self.start - self.tree.line_start(self.start) + self.style.unit]
        else:
            yield self._placed(fragment.head, fragment.lines)
        for indent in indents:
            moved = fragment.shifted(indent) if indent > self.slot.column else None
            if moved is not None:
                yield self._placed(fragment.block_header(indent - column), moved)

    def _placed(self, head: str, lines: list[str]) -> list[Splice]:
        """Put a head on the key's line and `lines` directly below it."""
        splices = self._head(head)
        block = self.line_break + self._joined(lines) if lines else ""
        if self.below:
            at = self.tree.line_stop(splices[0].stop)
            return [*splices, Splice(at, at, block), *self._without_lines()]
        if not self.slot.introduced:
            return [Splice(start, stop, text + block) for start, stop, text in splices]
        at = self.tree.line_stop(self.body if self.block_scalar else self.stop)
        return [*splices, Splice(at, max(at, self._region()[1]) if self.block_scalar else at, block)]

    # Block collections

    def _columns(self) -> Iterator[int]:
        """Yield possible columns of a block collection below the key, the likeliest first."""
        tree, slot = self.tree, self.slot
        sequence = self.fragment.tree.is_sequence(1)
        if slot.column < 0:
            yield tree.column(slot.node) if self.below else 0
            return
        in_mapping = not slot.compact
        if self.below:
            own = tree.column(slot.node)
            if tree.is_sequence(slot.node) == sequence or own > slot.column:
                yield own
        if sequence and in_mapping:
            yield slot.column + self.style.sequence_step
        yield slot.column + (self.style.unit if in_mapping else 2)

    def _collection(self) -> Iterator[list[Splice]]:
        fragment, slot, tree = self.fragment, self.slot, self.tree
        one_line = len(fragment.lines) == 1 and not fragment.head
        trailing = self.text[self.stop : tree.line_stop(self.stop)].strip(" \t")
        compact_here = slot.compact and slot.on_line and not self.below
        if "#" in fragment.head and self.below:
            yield self._whole()
        first_choice = one_line or not trailing or tree.is_block_collection(slot.node)
        if compact_here and first_choice:
            yield from self._compact()
        if self.own_line:
            column = tree.column(slot.node)
            lines = fragment.shifted(column)
            if lines and not fragment.head and self.start == self.body:
                start, prefix = self._prefix()
                yield [Splice(start, self.stop, prefix + self._joined([lines[0][column:], *lines[1:]]))]
        for column in self._columns():
            lines = fragment.shifted(column)
            if lines is not None:
                yield self._lines_below(lines)
        yield self._lines_below(fragment.lines)
        if compact_here and not first_choice:
            yield from self._compact()

    def _whole(self) -> list[Splice]:
        """Replace the value with its properties and the comments between them and its first line."""
        column = next(self._columns())
        _, stop = self._region()
        start = self.start if self.slot.properties_stop > self.start else self.body
        lines = self.fragment.shifted(column) or self.fragment.lines
        return [Splice(start, stop, self._joined([self.fragment.head, *lines]))]

    def _compact(self) -> Iterator[list[Splice]]:
        slot = self.slot
        column = slot.at + 1 - self.tree.line_start(slot.at) if self.empty else self.body - self.first_line
        lines = self.fragment.shifted(column)
        if not lines or self.fragment.head:
            return
        text = self._joined([lines[0][column:], *lines[1:]])
        if self.block_scalar:
            yield [Splice(self.body, self._header_stop(False), text), *self._without_lines()]
        else:
            yield self._head(text)

    def _lines_below(self, lines: list[str]) -> list[Splice]:
        head = self.fragment.head
        block = self._joined(lines)
        if self.below:
            first, stop = self._region()
            if self.slot.column < 0 and self.start >= self.first_line and not head:
                return [Splice(self.start if not self.keeps_anchor else self.body, stop, block.lstrip(" "))]
            return [*self._head(head), Splice(first, stop, block)]
        if self._at_document_line() and not self.block_scalar:
            return [Splice(self.start, self.stop, block)]
        return self._placed(head, lines)
