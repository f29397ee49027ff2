"""A text cut into passages that are found and embedded one by one, each with the lines it stands in."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

PASSAGE_CHARS = 1200
MAX_PASSAGES = 400
MAX_TEXT_CHARS = 1_000_000
_HEADING = re.compile(r"(#{1,6})\s+(?=\S)")
_RAW = frozenset({"script", "style"})
_SKIPPED = frozenset({"template", "noscript", "svg"})
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "p div br li tr h1 h2 h3 h4 h5 h6 section article header footer pre table ul ol blockquote title",
    )
)


@dataclass(frozen=True, slots=True)
class Passage:
    """Lines from 1, the last included."""

    first: int
    last: int
    heading: str
    text: str


def passages(text: str, mime: str) -> list[Passage]:
    """The passages of a text, cut between lines, at blank ones and at headings where it can be."""
    if mime.startswith("text/html"):
        text = plain(text)
    lines = text[:MAX_TEXT_CHARS].split("\n")
    headings: list[tuple[int, str]] = []
    found: list[Passage] = []
    held: list[str] = []
    size = 0
    first = 1
    markdown = mime.startswith("text/markdown")
    fenced = False

    def close(last: int) -> None:
        nonlocal held, size, first
        body = "\n".join(held).strip("\n")
        if body.strip():
            found.append(Passage(first, last, " > ".join(title for _, title in headings), body))
        held, size, first = [], 0, last + 1

    for number, line in enumerate(lines, 1):
        if markdown and line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        heading = _HEADING.match(line) if markdown and not fenced else None
        if heading is not None:
            close(number - 1)
            level = len(heading[1])
            headings = [one for one in headings if one[0] < level]
            title = line[heading.end() :].rstrip()
            headings.append((level, title.rstrip("#").rstrip() or title[:1]))
        elif size >= PASSAGE_CHARS or (size >= PASSAGE_CHARS // 2 and not line.strip()):
            close(number - 1)
        for start in range(0, max(1, len(line)), 4 * PASSAGE_CHARS):
            part = line[start : start + 4 * PASSAGE_CHARS]
            if start:
                close(number)
                first = number
            held.append(part)
            size += len(part) + 1
        if len(found) >= MAX_PASSAGES:
            return found
    close(len(lines))
    return found[:MAX_PASSAGES]


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
