"""Scalars: from their source to their value, by the folding and escaping rules of YAML 1.2.2 chapters 7 and 8."""

import re
from typing import Final, NamedTuple

from services.yaml.errors import SyntaxFault
from services.yaml.syntax.tokens import (
    BLOCK_HEADER,
    BREAK,
    DOUBLE_QUOTED,
    MARKER,
    SINGLE_QUOTED,
    block_scalar_lines,
)

_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([\s\S]|\Z))")
_SIMPLE_ESCAPES: Final = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    " ": " ", '"': '"', "/": "/", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip


class Quoted(NamedTuple):
    """A quoted scalar: its value, the offset after its closing quote, and whether it covers several lines."""

    value: str
    stop: int
    multiline: bool


class BlockScalar(NamedTuple):
    """A literal or folded scalar.

    `stop` is the end of the node: the last line's break is left out, unless kept blank lines (`+`) end it. `next_line`
    is where the next line begins, `comment` the span of the header's comment, `indent` the column of the content.
    """

    value: str
    stop: int
    next_line: int
    comment: tuple[int, int] | None
    indent: int


def read_quoted(text: str, start: int, line_start: int, indent: int) -> Quoted:
    """Read the quoted scalar at `start`; its further lines need at least `indent` spaces. Raises SyntaxFault."""
    double = text[start] == '"'
    match = (DOUBLE_QUOTED if double else SINGLE_QUOTED).match(text, start)
    if match is None:
        kind = "double-quoted" if double else "single-quoted"
        raise SyntaxFault(f"this {kind} scalar has no closing quote", start)
    raw = match.group(1)
    stop = match.end()
    multiline = "\n" in raw or "\r" in raw
    if multiline:
        _check_lines(text, start + 1, stop - 1, indent)
        raw = _fold_quoted(raw, double)
    if double:
        if "\\" in raw:
            raw = _unescape(raw, start)
    elif "''" in raw:
        raw = raw.replace("''", "'")
    return Quoted(raw, stop, multiline)


def _check_lines(text: str, start: int, stop: int, indent: int) -> None:
    for found in BREAK.finditer(text, start, stop):
        line = found.end()
        if MARKER.match(text, line):
            raise SyntaxFault("a document marker cannot stand inside a quoted scalar", line)
        content = line
        while content < stop and text[content] == " ":
            content += 1
        if content - line < indent:
            after = content
            while after < stop and text[after] in " \t":
                after += 1
            blank = after < stop and text[after] in "\r\n"
            if not blank:
                raise SyntaxFault(f"this line of a quoted scalar needs at least {indent} spaces of indentation", line)


def _fold_quoted(raw: str, double: bool) -> str:
    lines = BREAK.split(raw)
    out: list[str] = []
    blanks = 0
    escaped = False  # the line before ended with a backslash: its break is no content
    last = len(lines) - 1
    for number, full in enumerate(lines):
        line = full if number == 0 else full.lstrip(" \t")
        ends_escaped = False
        if number != last:
            stripped = line.rstrip(" \t")
            if double and (len(stripped) - len(stripped.rstrip("\\"))) % 2:
                if len(stripped) < len(line):
                    stripped = line[: len(stripped) + 1]  # an escaped space or tab is content
                else:
                    ends_escaped = True
                    stripped = stripped[:-1]
            line = stripped
        if number == 0:
            out.append(line)
        elif not line and number != last and not ends_escaped:
            blanks += 1
            continue
        else:
            if blanks:
                out.append("\n" * blanks)
            elif not escaped:
                out.append(" ")
            out.append(line)
        blanks = 0
        escaped = ends_escaped
    return "".join(out)


def _unescape(raw: str, start: int) -> str:
    def one(match: re.Match[str]) -> str:
        digits = match.group(1) or match.group(2) or match.group(3)
        if digits is not None:
            code = int(digits, 16)
            if code > 0x10FFFF:
                raise SyntaxFault(f"\\U{digits} is no Unicode character", start)
            return chr(code)
        simple = _SIMPLE_ESCAPES.get(match.group(4))
        if simple is None:
            raise SyntaxFault(f"{match.group(0)!r} is no escape of a double-quoted scalar", start)
        return simple

    return _ESCAPE.sub(one, raw)


def fold_plain(parts: list[str], breaks: list[int]) -> str:
    """Join the lines of a plain scalar: one break folds to a space, n breaks to n - 1 line feeds."""
    out = [parts[0]]
    for count, part in zip(breaks, parts[1:], strict=True):
        out.append(" " if count == 1 else "\n" * (count - 1))
        out.append(part)
    return "".join(out)


def count_breaks(gap: str) -> int:
    """The number of line breaks in a run of white space."""
    return gap.count("\n") + gap.count("\r") - gap.count("\r\n")


def read_block_scalar(text: str, start: int, parent: int) -> BlockScalar:
    """Read the literal or folded scalar whose indicator is at `start`; `parent` is the column of the collection that
    holds it (-1 for a document). Raises SyntaxFault."""
    header = BLOCK_HEADER.match(text, start)
    if header is None:
        raise SyntaxFault(
            "a block scalar's header is | or >, then at most a digit 1-9 and + or -, then a comment", start
        )
    comment = header.span(5) if header.group(5) else None
    digit = header.group(1) or header.group(4)
    chomp = header.group(2) or header.group(3) or ""
    first = header.end()
    # The indentation indicator counts from the parent's own column; a document's top counts as column 0.
    indent = max(parent, 0) + int(digit) if digit else _detect_indent(text, first, parent)
    body = block_scalar_lines(indent).match(text, first)
    next_line = body.end() if body is not None else first
    lines = BREAK.split(text[first:next_line])
    if not lines[-1]:
        lines.pop()
    open_ended = next_line > first and text[next_line - 1] not in "\r\n"
    content = [line[indent:] for line in lines]
    blanks = 0
    while content and not content[-1]:
        content.pop()
        blanks += 1
    value = "\n".join(content) if text[start] == "|" else _fold_block(content)
    # The end of the text counts as the break of a last line that has none, as the YAML test suite (L24T) has it.
    last_break = "\n" if content else ""
    if chomp == "+":
        value += last_break + "\n" * blanks
    elif not chomp:
        value += last_break
    if chomp == "+" and blanks:
        stop = next_line
    elif content:
        stop = _block_scalar_stop(text, first, next_line, blanks, open_ended)
    else:
        stop = comment[1] if comment is not None else start + 1 + len(digit or "") + len(chomp)
    return BlockScalar(value, stop, next_line, comment, indent)


def _block_scalar_stop(text: str, first: int, next_line: int, blanks: int, open_ended: bool) -> int:
    """The end of the last content line, before its break: step back over `blanks` blank lines."""
    stop = next_line if open_ended else _before_break(text, next_line)
    for _ in range(blanks):
        while stop > first and text[stop - 1] == " ":
            stop -= 1
        stop = _before_break(text, stop)
    return stop


def _before_break(text: str, at: int) -> int:
    return at - 2 if text.startswith("\r\n", at - 2) and at > 1 else at - 1


def _detect_indent(text: str, first: int, parent: int) -> int:
    size = len(text)
    at = first
    widest = 0
    widest_at = first
    while True:
        column = at
        while column < size and text[column] == " ":
            column += 1
        if column < size and text[column] in "\r\n":
            if column - at > widest:
                widest, widest_at = column - at, at
            at = column + (2 if text.startswith("\r\n", column) else 1)
            continue
        indent = column - at
        if column >= size:
            return max(indent, widest, parent + 1)
        if indent <= parent:
            if text[column] == "\t":
                raise SyntaxFault("a tab cannot indent the lines of a block scalar: use spaces", column)
            return max(widest, parent + 1)
        if widest > indent:
            raise SyntaxFault(
                "a blank line before a block scalar's first line has more spaces than that line", widest_at
            )
        return indent


def _fold_block(lines: list[str]) -> str:
    out: list[str] = []
    blanks = 0
    spaced = True  # the line before keeps its breaks: it is more indented, or there is none
    for number, line in enumerate(lines):
        if not line:
            blanks += 1
            continue
        more = line[0] in " \t"
        if number == blanks:  # only blank lines came before
            out.append("\n" * blanks)
        elif more or spaced:
            out.append("\n" * (blanks + 1))
        else:
            out.append("\n" * blanks if blanks else " ")
        out.append(line)
        blanks = 0
        spaced = more
    return "".join(out)
