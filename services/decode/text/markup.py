"""Converts the XML of office documents to Markdown in one pass, without a tree, recursion, or entities other than XML's
own.

A `Dialect` says what a format calls its paragraphs, tables and headings. Element names have no namespace; an attribute
with a namespace is called `:NAME`, one without `NAME`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

from services.decode.results import NotDecoded, Writer

MAX_DEPTH: Final = 2000

Attributes = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The vocabulary by which a format expresses structure."""

    texts: frozenset[str]
    """Elements whose characters are text."""
    blocks: frozenset[str]
    """Elements that are paragraphs and headings."""
    prefix: Callable[[str, Attributes], str | None]
    """Returns the prefix that an element gives to the paragraph around it, or else to the next one: `"## "`, `"- "` or
    nothing."""
    signs: Mapping[str, str] = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()
    row: str = ""
    cell: str = ""


@dataclass(slots=True)
class _Open:
    """A paragraph, row or cell that has not ended."""

    name: str
    prefix: str = ""
    parts: list[str] = field(default_factory=list)


def events(
    pieces: Iterable[bytes],
    start: Callable[[str, Attributes], None],
    end: Callable[[str], None] | None = None,
    characters: Callable[[str], None] | None = None,
) -> None:
    """Parse XML. Raises NotDecoded if it declares entities or is nested too deeply, and expat.ExpatError."""
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    depth = 0

    def start_element(name: str, given: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise NotDecoded("it is nested too deeply")
        if given and " " in "".join(given):
            given = {f":{key.rpartition(' ')[2]}" if " " in key else key: value for key, value in given.items()}
        start(name.rpartition(" ")[2], given)

    def end_element(name: str) -> None:
        nonlocal depth
        depth -= 1
        if end is not None:
            end(name.rpartition(" ")[2])

    def refuse(*_: object) -> None:
        raise NotDecoded("its XML declares entities, which office programs never do")

    parser.StartElementHandler, parser.EndElementHandler = start_element, end_element
    parser.EntityDeclHandler = refuse
    if characters is not None:
        parser.CharacterDataHandler = characters
    for piece in pieces:
        parser.Parse(piece, False)
    parser.Parse(b"", True)


def elements(pieces: Iterable[bytes], *names: str) -> list[tuple[str, Attributes]]:
    """Return the elements with these names and their attributes, in order; empty if the member is missing."""
    found: list[tuple[str, Attributes]] = []

    def start(name: str, attributes: Attributes) -> None:
        if name in names:
            found.append((name, attributes))

    given = b"".join(pieces)
    if given:
        events([given], start)
    return found


class XmlConverter:
    """Converts pieces of XML to Markdown, one after another."""

    def __init__(self, dialect: Dialect, out: Writer) -> None:
        self._dialect = dialect
        self._out = out
        self._open: list[_Open] = []
        self._pending = ""
        self._texts = 0
        self._skipping = 0
        self._after_row = False

    def read(self, pieces: Iterable[bytes]) -> None:
        """Convert a piece of XML. Raises the errors of `events`, and Enough."""
        self._open, self._pending, self._texts, self._skipping = [], "", 0, 0
        if first := next(given := iter(pieces), b""):
            events(_chained(first, given), self._start, self._end, self._characters)

    def _start(self, name: str, attributes: Attributes) -> None:
        dialect = self._dialect
        if self._skipping or name in dialect.skipped:
            self._skipping += 1
            return
        self._out.check()
        if name in dialect.blocks:
            self._open.append(_Open(name, self._pending))
            self._pending = ""
        elif name in (dialect.row, dialect.cell):
            self._open.append(_Open(name))
        if (prefix := dialect.prefix(name, attributes)) is not None:
            if self._open and self._open[-1].name in dialect.blocks:
                if not self._open[-1].prefix.startswith("#"):
                    self._open[-1].prefix = prefix
            else:
                self._pending = prefix
        if (sign := dialect.signs.get(name)) is not None and self._open:
            self._open[-1].parts.append(sign)
        self._texts += name in dialect.texts

    def _characters(self, text: str) -> None:
        if self._texts and not self._skipping and self._open:
            self._open[-1].parts.append(text)

    def _end(self, name: str) -> None:
        if self._skipping:
            self._skipping -= 1
            return
        dialect = self._dialect
        self._texts -= name in dialect.texts
        if name in dialect.blocks or name in (dialect.row, dialect.cell):
            ended = self._open.pop()
            joint = {dialect.row: " | ", dialect.cell: " "}.get(name, "")
            text = joint.join(ended.parts).strip()
            around = next((one for one in reversed(self._open) if one.name in (dialect.cell, dialect.row)), None)
            if around is not None:
                around.parts.append(" ".join(text.split()))
            elif text.strip("| "):
                self._write(name, ended.prefix, text)

    def _write(self, name: str, prefix: str, text: str) -> None:
        is_row = name == self._dialect.row
        if self._after_row and not is_row:
            self._out.write("\n")
        self._after_row = is_row
        if is_row:
            self._out.write(f"{text}\n")
        else:
            self._out.block(prefix + (" ".join(text.split()) if prefix.startswith("#") else text))


def _chained(first: bytes, rest: Iterable[bytes]) -> Iterable[bytes]:
    yield first
    yield from rest
