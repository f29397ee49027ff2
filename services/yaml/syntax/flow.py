"""Flow collections: `[…]` and `{…}`, read by a single loop over an explicit stack, so depth never costs Python's
stack."""

import re
from typing import Final

from services.yaml.errors import SyntaxFault
from services.yaml.syntax.events import ALIAS, MAPPING, SEQUENCE, Stream
from services.yaml.syntax.scalars import folded, plain_lines, read_quoted
from services.yaml.syntax.tokens import (
    MARKER,
    PLAIN_FLOW,
    PLAIN_NEXT_FLOW,
    SPACING,
    Properties,
    read_alias,
    read_properties,
)

# What may come next in the innermost collection
ENTRY: Final = 0  # an entry or the closing bracket
KEY_READ: Final = 1  # a node was read that a ":" may turn into a key
AWAIT_VALUE: Final = 2  # after ":"
ENTRY_DONE: Final = 3  # only "," or the closing bracket
AWAIT_KEY: Final = 4  # after "?"

# YAML 1.2.2, 7.4.2: so that a reader need not go far back to find that a node was a key. Only enforced for collections,
# since a long scalar costs nothing.
LONGEST_KEY: Final = 1024

_NEXT_LINE: Final = re.compile(r"(?:\r\n?|\n)(?:[ \t]*+(?:\r\n?|\n))*+( *+)[ \t]*+")
_AFTER_PLAIN_KEY: Final = frozenset(" \t\r\n,[]{}")
_FAST_PAIR: Final = re.compile(
    r'"([^"\\\r\n]*+)" *+:(?: ++([A-Za-z0-9_$/(~.+;=^\\<][^ \t\r\n,\[\]{}:#]*+)| *+"([^"\\\r\n]*+)"'
    r"| ++(-[0-9][^ \t\r\n,\[\]{}:#]*+))(?: *+(,)| *+(?=[\r\n}]))"
)


class FlowReader:
    """Reads a flow collection with everything inside it. `parent` is the column of the enclosing block collection (-1
    for a document): further lines need more indentation. Afterwards, `multiline` says whether it covered several
    lines."""

    def __init__(self, out: Stream, tags: dict[str, str], parent: int, max_depth: int, lenient_closers: bool) -> None:
        self.out = out
        self.text = out.text
        self.size = len(out.text)
        self.tags = tags
        self.need = parent + 1
        self.max_depth = max_depth
        self.lenient_closers = lenient_closers
        self.multiline = False
        self.opens: list[int] = []
        self.is_mapping: list[bool] = []
        self.states: list[int] = []
        # For a single pair inside a sequence: the index of its mapping event, else -1.
        self.pairs: list[int] = []
        # The index of the node that may become a key, whether it is JSON-like, and whether it is on a single line.
        self.key_event = 0
        self.key_json = False
        self.key_line_safe = True

    def read(self, at: int, own: Properties | None) -> int:
        """Read the collection whose bracket is at `at`. Returns the offset after its closing bracket."""
        self._open(at, own, ENTRY)
        text = self.text
        at += 1
        while True:
            at = self._skip(at)
            mark = text[at]
            if mark in "]}":
                at = self._close(at, mark)
                if not self.states:
                    return at
                continue
            state = self.states[-1]
            if mark == ",":
                if state == ENTRY:
                    raise SyntaxFault("expected an entry before this comma", at)
                self._end_entry(state)
                self.states[-1] = ENTRY
                at += 1
            elif mark == ":" and state != ENTRY_DONE and self._is_colon(at, state):
                at = self._colon(at, state)
            elif state in (KEY_READ, ENTRY_DONE):
                raise SyntaxFault(f"expected , or the closing bracket, not {mark!r}", at)
            elif mark == "?" and state == ENTRY and text[at + 1 : at + 2] in ("", " ", "\t", "\r", "\n"):
                if not self.is_mapping[-1]:
                    self._open_pair(at, len(self.out.events))
                self.states[-1] = AWAIT_KEY
                at += 1
            else:
                if state == ENTRY and mark == '"' and self.is_mapping[-1]:
                    at = self._fast_pairs(at)
                    if self.states[-1] != ENTRY or text[at : at + 1] != '"':
                        continue
                at = self._node(at, state)

    def _fast_pairs(self, at: int) -> int:
        """Read whole entries `"key": scalar,` of a mapping, in JSON style, as long as they match."""
        out = self.out
        match = _FAST_PAIR.match
        while (found := match(self.text, at)) is not None:
            key, plain, double, number, comma = found.groups()
            stop = at + len(key) + 2
            out.scalar('"', key, None, at, stop)
            if double is not None:
                out.scalar('"', double, None, found.start(3) - 1, found.end(3) + 1)
            elif plain is not None:
                out.scalar(":", plain, None, *found.span(2))
            else:
                out.scalar(":", number, None, *found.span(4))
            at = found.end()
            if comma is None:
                self.states[-1] = ENTRY_DONE
                return at
            at = self._skip(at)
        return at

    def _skip(self, at: int) -> int:
        """Skip white space, comments and line breaks, checking the indentation of the line reached."""
        text = self.text
        while True:
            begin = at
            at = SPACING.match(text, at).end()  # type: ignore[union-attr]  # a pattern of stars always matches
            if at == self.size:
                raise SyntaxFault("this flow collection is not closed", self.out.starts[self.opens[0]])
            mark = text[at]
            if mark == "#":
                if at == begin and text[at - 1] not in " \t\r\n":
                    raise SyntaxFault("a comment needs white space before its #", at)
                self.out.comment_line(at)
                at = self.out.comments[-1][1]
                continue
            if mark not in "\r\n":
                return at
            line = _NEXT_LINE.match(text, at)
            assert line is not None  # it begins with a line break
            self.multiline = True
            self.key_line_safe = False
            at = line.end()
            if at == self.size or text[at] == "#":
                continue
            spaces = line.end(1) - line.start(1)
            if spaces == 0 and line.start(1) == at and MARKER.match(text, at):
                raise SyntaxFault("a document marker is not allowed inside a flow collection", at)
            if spaces < self.need:
                if text[at] not in "]}" or len(self.opens) != 1 or spaces != self.need - 1 or not self.lenient_closers:
                    raise SyntaxFault(
                        f"this line of a flow collection needs at least {self.need} spaces of indentation", at
                    )
                self.out.lenient = True
            return at

    def _open(self, at: int, own: Properties | None, state: int) -> None:
        if len(self.opens) >= self.max_depth:
            raise SyntaxFault("nesting is too deep", at)
        is_mapping = self.text[at] == "{"
        kind, style = (MAPPING, "{}") if is_mapping else (SEQUENCE, "[]")
        self.opens.append(len(self.out.events))
        self.out.open(kind, style, own, at, self.opens[-1])
        self.is_mapping.append(is_mapping)
        self.states.append(state)
        self.pairs.append(-1)

    def _open_pair(self, at: int, index: int) -> None:
        if len(self.opens) >= self.max_depth:
            raise SyntaxFault("nesting is too deep", at)
        start = self.out.starts[index] if index < len(self.out.events) else at
        self.out.open(MAPPING, "{}", None, start, index)
        self.pairs[-1] = index

    def _close(self, at: int, mark: str) -> int:
        is_mapping = self.is_mapping[-1]
        if is_mapping != (mark == "}"):
            raise SyntaxFault(f"expected {'}' if is_mapping else ']'}, not {mark}", at)
        self._end_entry(self.states[-1])
        out = self.out
        index = self.opens.pop()
        self.is_mapping.pop()
        self.states.pop()
        self.pairs.pop()
        out.last_stop = at + 1
        out.close(index, MAPPING if is_mapping else SEQUENCE)
        if self.states:
            self._node_read(index, json=True, safe=self._on_one_line(out.starts[index], at))
        return at + 1

    def _on_one_line(self, start: int, stop: int) -> bool:
        text = self.text
        return not self.multiline or (text.find("\n", start, stop) < 0 and text.find("\r", start, stop) < 0)

    def _node_read(self, index: int, *, json: bool, safe: bool) -> None:
        """Complete the node at `index`, and update the state of the innermost collection."""
        state = self.states[-1]
        if state == AWAIT_VALUE:
            self.states[-1] = ENTRY_DONE
            self._end_pair()
            return
        explicit = state == AWAIT_KEY
        self.states[-1] = KEY_READ
        self.key_event = index
        self.key_json = json
        # The key of a pair in a sequence must be on one line, unless ? announced it.
        self.key_line_safe = safe or explicit or self.is_mapping[-1]

    def _end_pair(self) -> None:
        index = self.pairs[-1]
        if index >= 0:
            self.out.close(index, MAPPING)
            self.pairs[-1] = -1

    def _end_entry(self, state: int) -> None:
        """Complete the entry before a comma or closing bracket with the empty nodes that it omits."""
        stop = self.out.last_stop
        if state == AWAIT_KEY:
            self.out.empty(None, stop)
        lacks_value = state == KEY_READ and (self.is_mapping[-1] or self.pairs[-1] >= 0)
        if lacks_value or state in (AWAIT_KEY, AWAIT_VALUE):
            self.out.empty(None, stop)
        self._end_pair()

    def _is_colon(self, at: int, state: int) -> bool:
        after = self.text[at + 1 : at + 2]
        return after == "" or after in _AFTER_PLAIN_KEY or (state == KEY_READ and self.key_json)

    def _colon(self, at: int, state: int) -> int:
        out = self.out
        if state == AWAIT_VALUE:
            raise SyntaxFault("expected a value, not a second colon", at)
        if state == KEY_READ:
            if not self.is_mapping[-1] and self.pairs[-1] < 0:
                if not self.key_line_safe:
                    raise SyntaxFault("the key of a pair in a flow sequence must be on one line, with its colon", at)
                if out.starts[self.key_event] < at - LONGEST_KEY and self.key_event in out.closes:
                    raise SyntaxFault(f"a collection as a key can have at most {LONGEST_KEY} characters", at)
                self._open_pair(at, self.key_event)
        else:
            if state == ENTRY and not self.is_mapping[-1]:
                self._open_pair(at, len(out.events))
            out.empty(None, at)
        self.states[-1] = AWAIT_VALUE
        out.last_stop = at + 1
        return at + 1

    def _node(self, at: int, state: int) -> int:
        text = self.text
        out = self.out
        start = at
        own: Properties | None = None
        if text[at] in "&!":
            while True:
                found, at = read_properties(text, at, self.tags, flow=True)
                own = found if own is None else own.joined(found)
                out.last_stop = own.stop
                at = self._skip(own.stop)
                if text[at] not in "&!":
                    break
            if text[at] in ",]}" or (text[at] == ":" and text[at + 1 : at + 2] in ("", *_AFTER_PLAIN_KEY)):
                out.empty(own, at)
                self._node_read(len(out.events) - 1, json=False, safe=self._on_one_line(start, at))
                return own.stop
        mark = text[at]
        if mark in "[{":
            self._open(at, own, ENTRY)
            return at + 1
        if mark == "*":
            value, stop = read_alias(text, at, own)
            out.node((ALIAS, "", value, None, None), at, at, stop)
        elif mark in "\"'":
            value, stop, multiline = read_quoted(text, at, self.need)
            self.multiline |= multiline
            out.scalar(mark, value, own, at, stop)
        else:
            value, stop = self._plain(at)
            out.scalar(":", value, own, at, stop)
        self._node_read(len(out.events) - 1, json=mark in "\"'", safe=self._on_one_line(start, stop))
        return stop

    def _plain(self, at: int) -> tuple[str, int]:
        text = self.text
        match = PLAIN_FLOW.match(text, at)
        if match is None:
            raise SyntaxFault(f"a value cannot begin with {text[at]!r} here: quote it", at)
        stop = match.end()
        parts = [match.group()]
        for fold, more in plain_lines(text, stop, PLAIN_NEXT_FLOW):
            if len(fold.group(2)) < self.need:
                message = f"this line of a plain scalar needs at least {self.need} spaces of indentation"
                raise SyntaxFault(message, more.start())
            self.multiline = True
            parts += (folded(fold.group(1)), more.group())
            stop = more.end()
        return "".join(parts), stop
