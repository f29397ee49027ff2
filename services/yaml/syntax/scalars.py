"""Scalars: converts their source to their value, by the folding and escaping rules of YAML 1.2.2 chapters 7 and 8."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from services.yaml.errors import SyntaxFault
from services.yaml.syntax.tokens import (
    BLOCK_HEADER,
    BREAK,
    DOUBLE_QUOTED,
    MARKER,
    PLAIN_FOLD,
    SINGLE_QUOTED,
    block_scalar_lines,
)

_BREAKS: Final = r"((?:\r\n?|\n)(?:[ \t]*+(?:\r\n?|\n))*+)[ \t]*+"
# Line breaks of a quoted scalar with the white space around them. White space within a line, and characters escaped by
# a backslash, are also matched and left unchanged: so no stretch is examined twice.
_FOLD_SINGLE: Final = re.compile(rf"[ \t]++(?![\r\n])|[ \t]*+{_BREAKS}")
_FOLD_DOUBLE: Final = re.compile(rf"\\[^\r\n]|[ \t]++(?![\r\n])|\\?[ \t]*+{_BREAKS}")
_INDENT: Final = re.compile(r"( *+)[ \t]*+([\r\n])?")
_LINE: Final = re.compile(r"(?=[\s\S])([^\r\n]*+)(?:\r\n?|\n|\Z)")
_BLANK: Final = re.compile(r"( *+)(\r\n?|\n)?")
_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([\s\S]|\Z))")
_SIMPLE_ESCAPES: Final = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    " ": " ", '"': '"', "/": "/", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip


class BlockScalar(NamedTuple):
    """A literal or folded scalar.

    `stop` is the end of the node, which excludes the last line's break unless kept blank lines (`+`) end it.
    `next_line` is where the next line begins, `comment` the span of the header's comment, `indent` the column of the
    content.
    """

    value: str
    stop: int
    next_line: int
    comment: tuple[int, int] | None
    indent: int


def read_quoted(text: str, start: int, indent: int) -> tuple[str, int, bool]:
    """Read the quoted scalar at `start`; its further lines need at least `indent` spaces. Raises SyntaxFault.

    Returns its value, the offset after its closing quote, and whether it covers several lines.
    """
    double = text[start] == '"'
    match = (DOUBLE_QUOTED if double else SINGLE_QUOTED).match(text, start)
    if match is None:
        kind = "double-quoted" if double else "single-quoted"
        raise SyntaxFault(f"this {kind} scalar has no closing quote", start)
    raw = match.group(1)
    multiline = "\n" in raw or "\r" in raw
    if multiline:
        _check_lines(text, start + 1, match.end(1), indent)
        raw = (_FOLD_DOUBLE if double else _FOLD_SINGLE).sub(_fold_quoted, raw)
    value = _unescape(raw, start) if double else raw.replace("''", "'")
    return value, match.end(), multiline


def _check_lines(text: str, start: int, stop: int, indent: int) -> None:
    for found in BREAK.finditer(text, start, stop):
        line = found.end()
        if MARKER.match(text, line):
            raise SyntaxFault("a document marker is not allowed inside a quoted scalar", line)
        match = _INDENT.match(text, line)
        assert match is not None  # a pattern of stars always matches
        if len(match.group(1)) < indent and match.group(2) is None:
            raise SyntaxFault(f"this line of a quoted scalar needs at least {indent} spaces of indentation", line)


def _fold_quoted(match: re.Match[str]) -> str:
    gap = match.group(1)
    if gap is None:
        return match.group()
    # An escaped break is not content; blank lines after it are.
    return folded("\n" + gap)[1:] if match.group().startswith("\\") else folded(gap)


def _unescape(raw: str, start: int) -> str:
    if "\\" not in raw:
        return raw

    def one(match: re.Match[str]) -> str:
        digits = match.group(1) or match.group(2) or match.group(3)
        if digits is not None:
            code = int(digits, 16)
            if code > 0x10FFFF:
                raise SyntaxFault(f"\\U{digits} is not a Unicode character", start)
            return chr(code)
        simple = _SIMPLE_ESCAPES.get(match.group(4))
        if simple is None:
            raise SyntaxFault(f"{match.group(0)!r} is not an escape sequence of a double-quoted scalar", start)
        return simple

    return _ESCAPE.sub(one, raw)


def folded(gap: str) -> str:
    """Fold the line breaks of a flow scalar: one becomes a space, n become n - 1 line feeds."""
    count = gap.count("\n") + gap.count("\r") - gap.count("\r\n")
    return " " if count == 1 else "\n" * (count - 1)


def plain_lines(text: str, stop: int, pattern: re.Pattern[str]) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """Yield the further lines of a plain scalar whose first line ends at `stop`: the fold before each (`PLAIN_FOLD`),
    and its text as `pattern` matches it."""
    while (fold := PLAIN_FOLD.match(text, stop)) is not None:
        begin = fold.end()
        if text[begin : begin + 1] in ("", "#") or (fold.start(2) == begin and MARKER.match(text, begin)):
            return
        more = pattern.match(text, begin)
        if more is None:
            return
        yield fold, more
        stop = more.end()


def read_block_scalar(text: str, start: int, parent: int) -> BlockScalar:
    """Read the literal or folded scalar whose indicator is at `start`; `parent` is the column of the collection that
    contains it (-1 for a document). Raises SyntaxFault."""
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
    lines = [found.span(1) for found in _LINE.finditer(text, first, next_line)]
    count = len(lines)
    while lines and lines[-1][1] - lines[-1][0] <= indent:
        lines.pop()
    blanks = count - len(lines)
    content = [text[begin + indent : end] for begin, end in lines]
    value = "\n".join(content) if text[start] == "|" else _fold_block(content)
    if content and chomp != "-":
        # The end of the text counts as the break of an unterminated last line, as in the YAML test suite (L24T).
        value += "\n"
    if chomp == "+":
        value += "\n" * blanks
    if chomp == "+" and blanks:
        stop = next_line
    elif lines:
        stop = lines[-1][1]
    else:
        stop = comment[1] if comment is not None else start + 1 + len(digit or "") + len(chomp)
    return BlockScalar(value, stop, next_line, comment, indent)


def _detect_indent(text: str, first: int, parent: int) -> int:
    at = widest_at = first
    widest = 0
    while True:
        blank = _BLANK.match(text, at)
        assert blank is not None  # a pattern of stars always matches
        column = blank.end(1)
        indent = column - at
        if blank.group(2) is None:
            break
        if indent > widest:
            widest, widest_at = indent, at
        at = blank.end()
    if column == len(text):
        return max(indent, widest, parent + 1)
    if indent <= parent:
        if text[column] == "\t":
            raise SyntaxFault("a tab cannot indent the lines of a block scalar: use spaces", column)
        return max(widest, parent + 1)
    if widest > indent:
        raise SyntaxFault("a blank line before a block scalar's first line has more spaces than that line", widest_at)
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
