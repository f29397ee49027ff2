"""Links in the front matter of a note: in any property, at any depth, quoted or not.

Links are searched in the decoded value of a scalar, so that escapes and folded lines do not hide them. Each character
keeps its offset in the file, so that a renaming can change just the link. An unquoted `[[A]]` is a nested list in YAML
but a link to its author. Comments are ignored.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from services.knowledge.notes.frontmatter import FrontMatter, Scalar

WIKILINK = re.compile(r"(?<!\\)(?:\\\\)*+\[\[([^\[\]\n|]+)(?:\|[^\[\]\n]*)?\]\]")
"""A bracket after a backslash is a bracket."""
DESTINATION = re.compile(r"\]\(\s*(?:<([^<>\n]*)>|([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*))")
ATTRIBUTE = re.compile(
    r"<(?:a|img|source|video|audio|embed|iframe|object|track)\b[^<>]*?\s(?:src|href|data)\s*=\s*"
    r"""(?:"([^"<>\n]*)"|'([^'<>\n]*)')""",
    re.IGNORECASE,
)
"""The destination of an HTML element."""

BARE = ""
"""The style of an unquoted link."""

_FOLD = r"[ \t]*\n[ \t\n]*"
_PIECES = {
    '"': re.compile(rf"\\(?:x[0-9A-Fa-f]{{2}}|u[0-9A-Fa-f]{{4}}|U[0-9A-Fa-f]{{8}}|\n[ \t]*|.)|{_FOLD}|."),
    "'": re.compile(rf"''|{_FOLD}|."),
    BARE: re.compile(rf"{_FOLD}|."),
    ">": re.compile(rf"{_FOLD}|."),
}
_HEADER = re.compile(r">[^\n]*\n *")
"""The header of a folded block: its sign, an optional comment, and the indentation."""
_ESCAPES = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip
_KEY = re.compile(r"([^\s#:\[\]{}\"'][^:\n]*):(?=\s|$)")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
_UNQUOTABLE = re.compile(r"[:#](?:\s|$)|\s#|[{}]|^[-?:&*!|>'\"%@`,]")
"""Names that match this must be quoted."""


class PropertyLink(NamedTuple):
    """A link in the front matter: `inside` is the text between its brackets, and `offsets` the positions of its
    characters in the source, and of its end."""

    key: str
    inside: str
    offsets: Sequence[int]
    is_path: bool
    style: str


def property_links(front: FrontMatter) -> Iterator[PropertyLink]:
    """Yield the links in a front matter, in no particular order."""
    if front.problem is not None:
        yield from _raw(front)
        return
    text = front.source
    for scalar in front.linking:
        meant, offsets = _meant(text, scalar)
        style = scalar.style if scalar.style in _PIECES else "|"
        for inside, at, is_path in _matches(meant):
            yield PropertyLink(scalar.key, inside, offsets[at : at + len(inside) + 1], is_path, style)
    starts = [scalar.start for scalar in front.linking]
    for key, start, end in front.flows:
        for match in WIKILINK.finditer(text, start, end):
            before = bisect_right(starts, match.start())
            if not before or front.linking[before - 1].end <= match.start():
                at = match.start(1)
                yield PropertyLink(key, match[1], range(at, match.end(1) + 1), False, BARE)


def encoded(name: str, style: str) -> str | None:
    """Encode a name for a scalar of this style; None if that is impossible."""
    if style == '"':
        return name.replace("\\", "\\\\").replace('"', '\\"')
    if style == "'":
        return name.replace("'", "''")
    return None if style == BARE and _UNQUOTABLE.search(name) else name


def _matches(text: str) -> Iterator[tuple[str, int, bool]]:
    for match in WIKILINK.finditer(text):
        yield match[1], match.start(1), False
    for match in DESTINATION.finditer(text):
        group = 2 if match[1] is None else 1
        yield match[group], match.start(group), True


def _meant(text: str, scalar: Scalar) -> tuple[str, Sequence[int]]:
    """Return the value of a scalar with the offset of each character, or its source if they cannot be aligned."""
    start, end = scalar.start, scalar.end
    if (pieces := _PIECES.get(scalar.style)) is not None:
        at, stop = start, end
        if scalar.style == ">":
            header = _HEADER.match(text, start, end)
            # Trailing line breaks may be chomped, and cannot contain a link.
            at, stop = header.end() if header else end, start + len(text[start:end].rstrip())
        elif scalar.style:
            at, stop = start + 1, end - 1
        meant: list[str] = []
        offsets: list[int] = []
        while at < stop and (match := pieces.match(text, at, stop)):
            characters = _character(match[0], scalar.style)
            meant.append(characters)
            offsets += [at] * len(characters)
            at = match.end()
        means = "".join(meant)
        # A folded block keeps trailing white space, such as half of a CRLF.
        if means == scalar.value or (scalar.style == ">" and means.split() == scalar.value.split()):
            return means, [*offsets, stop]
    return text[start:end], range(start, end + 1)


def _character(piece: str, style: str) -> str:
    if piece[0] == "\\" and style == '"':
        if piece[1] in "xuU":
            return chr(min(int(piece[2:], 16), 0x10FFFF))
        return "" if piece[1] == "\n" else _ESCAPES.get(piece[1], piece[1])
    if "\n" in piece:
        return "\n" * (piece.count("\n") - 1) or " "
    return "'" if piece == "''" and style == "'" else piece


def _raw(front: FrontMatter) -> Iterator[PropertyLink]:
    """Find links line by line in front matter that is not valid YAML."""
    key, at = "", 0
    for line in front.source.split("\n"):
        if found := _KEY.match(line):
            key = found[1].strip().lower()
        seen = _COMMENT.sub(lambda comment: " " * len(comment[0]), line)
        for inside, start, is_path in _matches(seen):
            yield PropertyLink(key, inside, range(at + start, at + start + len(inside) + 1), is_path, "|")
        at += len(line) + 1
