"""The passages of a content: what is found and embedded one by one, each with the lines it stands in."""

from __future__ import annotations

import re
from collections.abc import Sequence

from linckia.proto.ops.decode import DOCUMENT_TYPES
from linckia.services.runtime.models.measure import Measure
from linckia.services.runtime.text.cutting import PREFIX_CHARS, Block, Section, cut, without_data
from linckia.services.runtime.text.html import plain
from linckia.services.runtime.text.markdown import outline

VERSION = 3
"""Rises when the same text would have other passages, or the search is told more of a content; that of `cutting` does
so when it cuts in other places."""

MAX_TEXT_CHARS = 1_000_000

EMBEDDED = 64
"""Passages of a table or of generated code that get a vector; the rest is found by words alone."""

_TABLES = frozenset(
    {
        "text/csv",
        "text/tab-separated-values",
        "application/json",
        "application/jsonl",
        "application/xml",
        "image/svg+xml",
    }
)
_WITH_HEADINGS = ("text/markdown", "text/html", *DOCUMENT_TYPES.values())
"""Types whose text is Markdown, or is made so."""
_GENERATED = frozenset({"text/javascript", "text/css"})
_GENERATED_LINE = 300
"""Characters of a line on average from which these were made by a program, for a program."""

_FRONT = re.compile(r"\A---[ \t]*\n.{,65536}?^(?:---|\.\.\.)[ \t]*$", re.DOTALL | re.MULTILINE)


def passages(text: str, mime: str, title: str, measure: Measure) -> list[Section]:
    """The passages of a text, which a model of that `measure` reads whole under `title`."""
    if mime.startswith("text/html"):
        text = plain(text)
    text = text[:MAX_TEXT_CHARS]
    lines, _ = without_data(text.split("\n"))
    if mime.startswith(_WITH_HEADINGS):
        blocks = _markdown(text)
    else:
        blocks = _prose(lines) if mime.startswith("text/plain") else [Block(0, len(lines))]
    return cut(lines, blocks, title, measure)


def embedded(text: str, mime: str, count: int) -> int:
    """How many of the `count` passages of a text get a vector."""
    long_lines = mime in _GENERATED and len(text) > _GENERATED_LINE * (1 + text.count("\n"))
    return min(count, EMBEDDED) if long_lines or mime in _TABLES else count


def _prose(lines: Sequence[str]) -> list[Block]:
    """A line alone at the top is the title: all that follows stands under it."""
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    title = lines[first].strip() if lines else ""
    if 0 < len(title) <= PREFIX_CHARS and first + 2 < len(lines) and not lines[first + 1].strip():
        return [Block(first, first + 1, 1, title), Block(first + 1, len(lines))]
    return [Block(0, len(lines))]


def _markdown(text: str) -> list[Block]:
    front = _FRONT.match(text)
    if front is None:
        return outline(text).blocks
    lines = front[0].count("\n") + 1
    return [Block(0, lines), *outline("\n" * (lines - 1) + text[front.end() :]).blocks]
