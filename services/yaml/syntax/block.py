"""Block structure: the part of the parser that reads a document's nodes by their indentation.

It is a single loop over an explicit stack of open block collections, so depth costs memory but never Python's stack.
Each iteration is at the beginning of a line (`_next_line`), at a node (`_node`) or at the document's end.
"""

import re
from functools import cache
from typing import Final

from services.yaml.errors import SyntaxFault
from services.yaml.syntax.events import ALIAS, MAPPING, SEQUENCE, Stream
from services.yaml.syntax.flow import LONGEST_KEY, FlowReader
from services.yaml.syntax.scalars import folded, plain_lines, read_block_scalar, read_quoted
from services.yaml.syntax.tokens import (
    BLANK_LINES,
    COLON,
    LINE_REST,
    MARKER,
    PLAIN_BLOCK,
    PLAIN_NEXT_BLOCK,
    SPACING,
    TAB_LINE,
    Properties,
    read_alias,
    read_properties,
)

ROOT: Final = -1
_MARKS: Final = frozenset("-?:")
_SPACE_OR_END: Final = frozenset(("", " ", "\t", "\r", "\n"))
_WIDEST: Final = 120  # columns that have a pattern of their own


@cache
def _plain_pair(column: int) -> re.Pattern[str]:
    """Return a pattern for a whole line `key: value` that is followed by an entry at this column or further left; it
    takes a fifth of the time."""
    value = r"([A-Za-z0-9_$/(~.+;=^\\<](?:[^ \t\r\n:]++|:(?=[^ \t\r\n])| ++(?=[^ \t\r\n#:]))*+)"
    return re.compile(
        rf" {{{column}}}([A-Za-z0-9_$/(~][^ \t\r\n:]*+): ++{value} *+(?:\r\n|\n)(?= {{0,{column}}}[^ \t\r\n#])"
    )


class BlockReader:
    """Reads the content of one document into a `Stream`. Each document needs a new one."""

    def __init__(self, stream: Stream, tags: dict[str, str], lenient_closers: bool) -> None:
        self.out = stream
        self.text = stream.text
        self.size = len(stream.text)
        self.tags = tags
        self.max_depth = stream.max_depth
        self.lenient_closers = lenient_closers
        # The stack of open block collections: kind, column, index of the opening event, and for a mapping whether an
        # explicit key still awaits its value.
        self.kinds: list[int] = [ROOT]
        self.columns: list[int] = [-1]
        self.opens: list[int] = [-1]
        self.explicit: list[bool] = [False]
        # Whether the innermost collection awaits a node (if it turns out to be empty, it is at `null_at`).
        self.awaiting = True
        self.null_at = 0
        self.may_be_indentless = False
        self.held: Properties | None = None
        # A node announced by an indicator before it on its line, and its possible kinds.
        self.node_at = -1
        self.node_may_be_block = False
        self.line = 0

    def read(self, pos: int, line: int, on_marker_line: bool) -> int:
        """Read from `pos` up to the next document marker or the end of the text, and return that offset.

        `line` is the offset of the current line; `on_marker_line` says that `pos` follows a `---`, where only a scalar,
        a flow collection or properties are allowed. Raises SyntaxFault.
        """
        self.line = line
        self.null_at = pos
        if on_marker_line:
            pos = self._after_indicator(pos, block_allowed=False)
        while pos >= 0:
            if self.node_at < 0:
                pos = self._next_line(pos)
            else:
                at, self.node_at = self.node_at, -1
                pos = self._node(at, block_allowed=self.node_may_be_block)
        return ~pos

    # Each reading method returns the offset where the next line begins, or ~offset at the document's end.

    def _next_line(self, pos: int) -> int:
        text = self.text
        if not self.awaiting and self.kinds[-1] == MAPPING and not self.explicit[-1]:
            pos = self._plain_pairs(pos)
        while True:
            match = BLANK_LINES.match(text, pos)
            assert match is not None  # a pattern of stars always matches
            at = match.end()
            if text[at : at + 1] != "#":
                break
            pos = self.out.comment_line(at)
        self.line, spaces_stop = match.span(1)
        column = spaces_stop - self.line
        if at == self.size or (at == self.line and text[at] in "-." and MARKER.match(text, at)):
            self._finish()
            return ~self.line
        tabbed = at > spaces_stop
        dash = text[at] == "-" and text[at + 1 : at + 2] in _SPACE_OR_END
        if self.awaiting:
            parent = self.columns[-1]
            indentless = column == parent and dash and self.may_be_indentless and not tabbed
            if column > parent or indentless:
                return self._node(at, block_allowed=not tabbed)
            self._empty()
        self._close_beyond(at, column, dash)
        if tabbed:
            raise SyntaxFault("a tab cannot indent a line: use spaces", spaces_stop)
        if self.kinds[-1] == MAPPING:
            return self._mapping_entry(at)
        if self.kinds[-1] == ROOT:
            raise SyntaxFault("unexpected content after the end of the document's value", at)
        if not dash:
            raise SyntaxFault("expected a sequence entry: - and a space", at)
        return self._await(at + 1, block_allowed=True, indentless=False)

    def _plain_pairs(self, pos: int) -> int:
        """Read whole lines of the innermost mapping as long as they are plain `key: value` pairs."""
        if self.columns[-1] <= _WIDEST:
            match = _plain_pair(self.columns[-1]).match
            while (found := match(self.text, pos)) is not None:
                self.out.scalar(":", found.group(1), None, *found.span(1))
                self.out.scalar(":", found.group(2), None, *found.span(2))
                pos = found.end()
        return pos

    def _close_beyond(self, at: int, column: int, dash: bool) -> None:
        """Close the collections that the line at `column` ends, down to the one it belongs to."""
        columns = self.columns
        while columns[-1] > column:
            self._close()
        if columns[-1] == column and self.kinds[-1] == SEQUENCE and not dash and columns[-2] == column:
            self._close()
        if columns[-1] != column:
            if self.kinds[-1] == ROOT:
                raise SyntaxFault("unexpected content after the end of the document's value", at)
            raise SyntaxFault(f"this line is indented by {column}: the enclosing lines by {columns[-1]}", at)

    def _mapping_entry(self, at: int) -> int:
        text = self.text
        mark = text[at]
        if mark in "?:" and text[at + 1 : at + 2] in _SPACE_OR_END:
            has_key = self.explicit[-1]
            if mark == "?":
                self._settle_explicit()
            elif not has_key:
                self.out.empty(None, at)
            self.explicit[-1] = mark == "?"
            return self._await(at + 1, block_allowed=mark == "?" or has_key)
        self._settle_explicit()
        return self._node(at, block_allowed=False, entry=True)

    def _settle_explicit(self) -> None:
        if self.explicit[-1]:
            self.out.empty(None, self.out.last_stop)
            self.explicit[-1] = False

    def _await(self, at: int, *, block_allowed: bool, indentless: bool = True) -> int:
        """Continue after the indicator that ends at `at`: the innermost collection awaits a node."""
        self.awaiting = True
        self.null_at = at
        self.may_be_indentless = indentless
        return self._after_indicator(at, block_allowed=block_allowed)

    def _after_indicator(self, at: int, *, block_allowed: bool) -> int:
        """Continue after `-`, `?`, `:` or `---`: with the node on this line, or with the next line."""
        text = self.text
        content = SPACING.match(text, at).end()  # type: ignore[union-attr]  # a pattern of stars always matches
        if content == self.size or text[content] in "\r\n" or (text[content] == "#" and content > at):
            return self._line_end(content)
        if content == at:
            raise SyntaxFault("white space is needed here", at)
        # Left to the loop: `- - - …` may nest to any depth without a call for each level.
        self.node_at = content
        self.node_may_be_block = block_allowed and "\t" not in text[at:content]
        return content

    def _line_end(self, at: int) -> int:
        """Check that nothing but a comment follows on the line, and return where the next line begins."""
        match = LINE_REST.match(self.text, at)
        if match is None or match.group(3) is None:
            raise SyntaxFault("unexpected text after the value", match.end() if match else at)
        if match.group(2):
            if not match.group(1) and at > self.line and self.text[at - 1] not in " \t":
                raise SyntaxFault("a comment needs white space before its #", at)
            self.out.comments.append(match.span(2))
        return match.end()

    def _node(self, at: int, *, block_allowed: bool, entry: bool = False) -> int:
        """Read the node at `at`, or (for `entry`) the implicit key of the innermost mapping."""
        text = self.text
        start = at
        own: Properties | None = None
        mark = text[at]
        if mark in "&!":
            own, at = read_properties(text, at, self.tags, flow=False)
            if at == self.size or text[at] in "\r\n#":
                if entry:
                    raise SyntaxFault("expected a key after this anchor or tag", start)
                self.held = self._with_held(own)
                self.null_at = own.stop
                return self._line_end(at)
            mark = text[at]
        if mark in _MARKS and text[at + 1 : at + 2] in _SPACE_OR_END:
            return self._indicator(at, mark, own, block_allowed=block_allowed, entry=entry)
        if mark in "|>":
            return self._block_scalar(at, own, entry)
        first_event = len(self.out.events)
        line = self.line
        value, stop = self._content(at, own)
        colon = COLON.match(text, stop) if self.line == line else None
        if colon is None:
            if entry:
                raise SyntaxFault("expected a key with a colon and white space after it", start)
            return self._value(own, at, value, stop, first_event)
        if not entry:
            if not block_allowed:
                raise SyntaxFault("a block mapping cannot begin on this line: quote the value or indent it below", at)
            self._open(MAPPING, start, start - line, first_event)
        if mark in "[{" and stop - start > LONGEST_KEY:
            raise SyntaxFault(f"a collection as a key can have at most {LONGEST_KEY} characters", start)
        self._leaf(own, at, value, stop)
        return self._await(colon.end(), block_allowed=False)

    def _content(self, at: int, own: Properties | None) -> tuple[str, int]:
        """Return the value and the end of an alias, a quoted scalar, a flow collection (whose events are then complete)
        or the first line of a plain scalar."""
        text = self.text
        mark = text[at]
        if mark == "*":
            return read_alias(text, at, own)
        if mark in "\"'":
            value, stop, multiline = read_quoted(text, at, self.columns[-1] + 1)
        elif mark in "[{":
            depth = self.max_depth - len(self.columns) + 1
            reader = FlowReader(self.out, self.tags, self.columns[-1], depth, self.lenient_closers)
            value, stop, multiline = "", reader.read(at, own), reader.multiline
        else:
            match = PLAIN_BLOCK.match(text, at)
            if match is None:
                raise SyntaxFault(f"a value cannot begin with {mark!r}: quote it", at)
            return match.group(), match.end()
        if multiline:
            self.line = max(text.rfind("\n", self.line, stop), text.rfind("\r", self.line, stop)) + 1
        return value, stop

    def _leaf(self, own: Properties | None, at: int, value: str, stop: int) -> None:
        """Complete an alias or a scalar; a flow collection is already complete."""
        mark = self.text[at]
        if mark == "*":
            self.out.node((ALIAS, "", value, None, None), at, at, stop)
        elif mark not in "[{":
            self.out.scalar(mark if mark in "\"'" else ":", value, own, at, stop)

    def _value(self, own: Properties | None, at: int, value: str, stop: int, first_event: int) -> int:
        """Complete a node that is not a key, with properties held from previous lines."""
        mark = self.text[at]
        if self.held is not None:
            if mark == "*":
                raise SyntaxFault("an alias can have no anchor or tag", at)
            own = self._with_held(own)
            self.held = None
            if mark in "[{" and own is not None:
                self.out.add_properties(first_event, own)
        self.awaiting = False
        if mark not in "*\"'[{":
            value, stop = self._plain(value, stop)
        self._leaf(own, at, value, stop)
        return self._line_end(stop)

    def _with_held(self, own: Properties | None) -> Properties | None:
        """Return the properties of previous lines, joined with those of this line."""
        if self.held is None or own is None:
            return self.held or own
        return self.held.joined(own)

    def _plain(self, value: str, stop: int) -> tuple[str, int]:
        """Return the value and the end of a plain scalar whose first line has been read."""
        parts = [value]
        for fold, more in plain_lines(self.text, stop, PLAIN_NEXT_BLOCK):
            if len(fold.group(2)) <= self.columns[-1]:
                break
            parts += (folded(fold.group(1)), more.group())
            stop = more.end()
            self.line = fold.start(2)
            if COLON.match(self.text, stop):
                message = "a key cannot cover several lines, nor a mapping begin inside a plain scalar"
                raise SyntaxFault(message, more.start())
        return "".join(parts), stop

    def _indicator(self, at: int, mark: str, own: Properties | None, *, block_allowed: bool, entry: bool) -> int:
        start = at if own is None else own.start
        if entry:
            if mark != ":" or own is None:
                raise SyntaxFault(f"a {mark!r} entry is not allowed here", at)
        elif not block_allowed:
            raise SyntaxFault(f"a block collection cannot begin on this line with {mark!r}: indent it below", at)
        elif mark != ":" and own is not None:
            raise SyntaxFault("an anchor or tag of a block collection must be on the line before it", start)
        else:
            self._open(SEQUENCE if mark == "-" else MAPPING, start, start - self.line, len(self.out.events))
        if mark == ":":
            self.out.empty(own, at)
        self.explicit[-1] = mark == "?"
        return self._await(at + 1, block_allowed=mark != ":", indentless=mark != "-")

    def _block_scalar(self, at: int, own: Properties | None, entry: bool) -> int:
        if entry:
            raise SyntaxFault("a block scalar cannot be a key without ?", at)
        own = self._with_held(own)
        self.held = None
        scalar = read_block_scalar(self.text, at, self.columns[-1])
        if scalar.comment is not None:
            self.out.comments.append(scalar.comment)
        self.out.scalar(self.text[at], scalar.value, own, at, scalar.stop)
        self.awaiting = False
        if len(self.columns) > 1 and TAB_LINE.match(self.text, scalar.next_line):
            raise SyntaxFault("a line of a tab cannot follow a block scalar: leave it empty", scalar.next_line)
        return scalar.next_line

    def _open(self, kind: int, body: int, column: int, index: int) -> None:
        """Open a block collection before the event `index`; properties held from previous lines belong to it."""
        if len(self.columns) > self.max_depth:
            raise SyntaxFault(f"nesting is deeper than {self.max_depth} levels", body)
        self.out.open(kind, "", self.held, body, index)
        self.held = None
        self.kinds.append(kind)
        self.columns.append(column)
        self.opens.append(index)
        self.explicit.append(False)

    def _close(self) -> None:
        self._settle_explicit()
        self.explicit.pop()
        self.columns.pop()
        self.out.close(self.opens.pop(), self.kinds.pop())

    def _empty(self) -> None:
        self.out.empty(self.held, self.null_at)
        self.held = None
        self.awaiting = False

    def _finish(self) -> None:
        if self.awaiting:
            self._empty()
        while len(self.columns) > 1:
            self._close()
