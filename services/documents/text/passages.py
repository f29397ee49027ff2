"""The passages of a content: what is found and embedded one by one, each with the lines it stands in."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from services.runtime.models.measure import Measure
from services.runtime.text.cutting import PREFIX_CHARS, Block, Section, cut, without_data
from services.runtime.text.markdown import outline

VERSION = 2
"""Rises when the same text would have other passages; that of `cutting` does so when it cuts in other places."""

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
_PROSE = ("text/plain", "text/html")
_GENERATED = frozenset({"text/javascript", "text/css"})
_GENERATED_LINE = 300
"""Characters of a line on average from which these were made by a program, for a program."""

_FRONT = re.compile(r"\A---[ \t]*\n.{,65536}?^(?:---|\.\.\.)[ \t]*$", re.DOTALL | re.MULTILINE)
_RAW = frozenset({"script", "style"})
_SKIPPED = frozenset({"template", "noscript", "svg"})
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "p div br li tr h1 h2 h3 h4 h5 h6 section article header footer pre table ul ol blockquote title",
    )
)


def passages(text: str, mime: str, title: str, measure: Measure) -> list[Section]:
    """The passages of a text, which a model of that `measure` reads whole under `title`."""
    if mime.startswith("text/html"):
        text = plain(text)
    text = text[:MAX_TEXT_CHARS]
    lines, _ = without_data(text.split("\n"))
    if mime.startswith("text/markdown"):
        blocks = _markdown(text)
    else:
        blocks = _prose(lines) if mime.startswith(_PROSE) else [Block(0, len(lines))]
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
    """Its blocks; front matter is one."""
    front = _FRONT.match(text)
    if front is None:
        return outline(text).blocks
    lines = front[0].count("\n") + 1
    return [Block(0, lines), *outline("\n" * (lines - 1) + text[front.end() :]).blocks]


_MARKUP = re.compile(r"<(?:(?P<comment>!--)|(?P<other>[!?])|(?P<end>/?)(?P<name>[A-Za-z][^\s/>]*+))")
_TAG_REST = re.compile(r"""(?:[^=>]|=\s*+(?:"[^"]*+"|'[^']*+')?)*+>""")
_TOO_LARGE = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9A-Fa-f]{8,});?")


def plain(text: str) -> str:
    """What a reader of an HTML page sees. In linear time, which the parser of the standard library is not."""
    text = text[:MAX_TEXT_CHARS]
    found: list[str] = []
    position = skipping = 0
    while match := _MARKUP.search(text, position):
        if not skipping:
            found.append(text[position : match.start()])
        position, name = match.start(), (match["name"] or "").lower()
        if match["comment"]:
            end = text.find("-->", match.end()) + 3
        elif name:
            end = rest.end() if (rest := _TAG_REST.match(text, match.end())) else 0
        else:
            end = text.find(">", match.end()) + 1
        if end <= match.end():
            # It has no end, and is no markup.
            break
        position = end
        if name in _RAW and not match["end"]:
            closing = re.compile(rf"</{name}\b", re.IGNORECASE).search(text, position)
            position = len(text) if closing is None else closing.start()
        elif name in _SKIPPED and not match["end"]:
            skipping += text[end - 2] != "/"
        elif name in _SKIPPED:
            skipping = max(0, skipping - 1)
        elif name in _BLOCKS:
            found.append("\n")
    if not skipping:
        found.append(text[position:])
    seen = html.unescape(_TOO_LARGE.sub("\N{REPLACEMENT CHARACTER}", "".join(found)))
    return re.sub(r"\n[ \t]*(\n[ \t]*)+", "\n\n", seen).strip()
