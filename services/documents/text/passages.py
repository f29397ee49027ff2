"""Cut a content into passages, the units of search and embedding, with their line numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from proto.ops.decode import DOCUMENT_TYPES
from services.documents.store.kinds import PAGE_TYPES
from services.documents.text import definitions
from services.shared.models.measure import Measure
from services.shared.text.cutting import PREFIX_CHARS, Block, Section, cut, without_data
from services.shared.text.markdown import outline

VERSION = 4
"""Increment if the same text would yield other passages or the search is fed other fields.  `cutting` has its own."""

MAX_TEXT_CHARS = 1_000_000

EMBEDDED = 64
"""Number of passages of a table or of generated code that are embedded; the rest is found only by words."""

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
_WITH_HEADINGS = ("text/markdown", *PAGE_TYPES, *DOCUMENT_TYPES.values())
"""Types whose text is Markdown or is converted to it."""
_CODE = ("text/x-", "text/javascript")
_GENERATED = frozenset({"text/javascript", "text/css"})
_GENERATED_LINE = 300
"""Average line length in characters from which such files count as generated."""

_FRONT = re.compile(r"\A---[ \t]*\n.{,65536}?^(?:---|\.\.\.)[ \t]*$", re.DOTALL | re.MULTILINE)


def passages(text: str, mime: str, title: str, measure: Measure) -> list[Section]:
    """Cut a text into passages that, with `title`, fit the model that `measure` describes."""
    text = text[:MAX_TEXT_CHARS]
    lines, _ = without_data(text.split("\n"))
    if mime.startswith(_WITH_HEADINGS):
        blocks = _markdown(text)
    elif mime.startswith("text/plain"):
        blocks = _prose(lines)
    else:
        blocks = definitions.outline(lines, mime) if mime.startswith(_CODE) else [Block(0, len(lines))]
    return cut(lines, blocks, title, measure)


def embedded(text: str, mime: str, count: int) -> int:
    """Return how many of the `count` passages of a text are embedded."""
    long_lines = mime in _GENERATED and len(text) > _GENERATED_LINE * (1 + text.count("\n"))
    return min(count, EMBEDDED) if long_lines or mime in _TABLES else count


def _prose(lines: Sequence[str]) -> list[Block]:
    """Treat a separate line at the top as the title of everything below."""
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
