"""A text cut into passages that are found and embedded one by one, each with the lines it stands in."""

from __future__ import annotations

import html.parser
import re
from dataclasses import dataclass

PASSAGE_CHARS = 1200
MAX_PASSAGES = 400
MAX_TEXT_CHARS = 1_000_000
_HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*#*$")
_SKIPPED = frozenset({"script", "style", "template", "noscript", "svg"})
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
            headings.append((level, heading[2]))
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


class _Plain(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._skipping = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SKIPPED:
            self._skipping += 1
        elif tag in _BLOCKS:
            self.found.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SKIPPED:
            self._skipping = max(0, self._skipping - 1)
        elif tag in _BLOCKS:
            self.found.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self.found.append(data)


def plain(text: str) -> str:
    """What a reader of an HTML page sees."""
    parser = _Plain()
    parser.feed(text[:MAX_TEXT_CHARS])
    parser.close()
    return re.sub(r"\n[ \t]*(\n[ \t]*)+", "\n\n", "".join(parser.found)).strip()
