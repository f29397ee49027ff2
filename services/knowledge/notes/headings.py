"""Headings of a note, addressed by their source or their rendered text.

`## Section B (`config.yaml`)` is found by its source and by `Section B (config.yaml)`. Case, white space and Unicode
form are ignored. Exact names are tried first, so that a heading is not confused with another that renders the same.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from services.knowledge.notes.spelling import nfc
from services.shared.text.markdown import Outline, outline, plain

_MARKS = re.compile(r"\s*#{1,6}(?=\s)")
_CLOSING = re.compile(r"(?:^|\s)#+\s*\Z")
_BETWEEN = re.compile(r"\s+>\s+")
_SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)|\[\[[^\[\]]*\]\]|\[[^\[\]]*\]\([^()]*\)")
_MARKUP = re.compile(r"[`*_\[\]<>&\\]")
_COMMENT = re.compile(r"^ {0,3}%%", re.MULTILINE)
_FENCE = re.compile(r" {0,3}(`{3,}(?!.*`)|~{3,})")
_HTML_END = re.compile("-->")
_INDEX = re.compile(r"(.*\S)\s*\[([1-9][0-9]{0,5})\]\s*", re.DOTALL)
_INLINE = MarkdownIt("commonmark")
_WIKILINK = re.compile(r"!?\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")


class Heading(NamedTuple):
    """A heading: its lines in the text after the front matter (end exclusive), its title in the outline, and the names
    by which it is found, exact ones first."""

    first: int
    end: int
    level: int
    title: str
    names: tuple[str, ...]


def of(body: str) -> list[Heading]:
    """Return the headings of a text (with `\\n` line breaks)."""
    lines = body.split("\n")
    found = []
    for block in outlined(body).blocks:
        if block.level:
            source = _source(lines[block.first : block.end])
            names = tuple(dict.fromkeys(_key(name) for name in (source, block.title, rendered(source))))
            found.append(Heading(block.first, block.end, block.level, block.title, names))
    return found


def outlined(body: str) -> Outline:
    """Return the outline of a note's text: headings in an Obsidian comment (`%% … %%`) are not its headings."""
    plan = outline(body)
    return plan if (shown := _without_comments(body)) == body else plan._replace(blocks=outline(shown).blocks)


def _without_comments(body: str) -> str:
    """Blank the comments that begin a line, outside code and HTML comments.  One without an end is text."""
    if _COMMENT.search(body) is None:
        return body
    lines = body.split("\n")
    # What ends the code or HTML comment that begins in a line.
    until: re.Pattern[str] | None = None
    number = 0
    while number < len(lines):
        line = lines[number]
        if until is not None:
            until = None if until.search(line) else until
        elif fence := _FENCE.match(line):
            until = re.compile(rf"^ {{0,3}}{fence[1][0]}{{{len(fence[1])},}}[ \t]*$")
        elif line.lstrip().startswith("<!--"):
            until = None if "-->" in line else _HTML_END
        elif _COMMENT.match(line) and "%%" not in line.strip()[2:]:
            end = next((at for at in range(number + 1, len(lines)) if "%%" in lines[at]), number)
            for at in range(number, end):
                lines[at] = ""
            if end > number:
                lines[end] = lines[end].partition("%%")[2]
                number = end
        number += 1
    return "\n".join(lines)


def indexed(title: str) -> tuple[str, int]:
    """Split `Log[2]`, the second heading of this name, into its name and number (0 if it has none)."""
    match = _INDEX.fullmatch(title)
    return (match[1], int(match[2])) if match else (title, 0)


def named(title: str, headings: Sequence[Heading]) -> list[Heading]:
    """Return the headings that match `title`: by source, else by rendered text, else by rendering `title` too."""
    text = without_marks(title)
    # `## Title ##` is the heading "Title", and may be given with only its closing marks.
    unclosed = _CLOSING.sub("", text)
    for keys in dict.fromkeys((_key(title.strip()), _key(text), _key(unclosed))):
        for exact in (True, False):
            same = [each for each in headings if keys and keys in (each.names[:1] if exact else each.names)]
            if same:
                return same
    read = {_key(form(name)) for name in (text, unclosed) for form in (rendered, plain)} - {""}
    return [each for each in headings if read.intersection(each.names)]


def same(title: str, other: str) -> bool:
    """Return whether two lines are the same heading."""
    return bool(
        {_key(without_marks(title)), _key(rendered(without_marks(title)))} - {""}
        & {_key(without_marks(other)), _key(rendered(without_marks(other)))}
    )


def without_marks(title: str) -> str:
    """Strip the `#` before and after the text of a heading."""
    marks = _MARKS.match(title)
    return _CLOSING.sub("", title[marks.end() :]).strip() if marks else title.strip()


def parts(section: str) -> list[str]:
    """Split a path of headings at each ` > ` outside code and links."""
    seen = _SPAN.sub(lambda span: "x" * len(span[0]), section)
    ends = [match.span() for match in _BETWEEN.finditer(seen)]
    starts = [0, *(end for _, end in ends)]
    return [section[start:end].strip() for start, end in zip(starts, [*(at for at, _ in ends), None], strict=True)]


def divisions(section: str) -> Iterator[tuple[str, str]]:
    """Yield every split of a path of headings into its first name and the rest, longest name first."""
    yield section, ""
    for at in reversed([at for at, character in enumerate(section) if character == ">"]):
        if section[:at].strip() and section[at + 1 :].strip():
            yield section[:at], section[at + 1 :]


def parents(section: str) -> Iterator[tuple[str, str]]:
    """Yield every split of a path of headings into the parent path and its last name, shortest name first."""
    for at in reversed([at for at, character in enumerate(section) if character == ">"]):
        if section[:at].strip() and section[at + 1 :].strip():
            yield section[:at].strip(), section[at + 1 :].strip()


def rendered(source: str) -> str:
    """Return a heading as rendered: without emphasis, code and link markup and HTML, with escapes resolved."""
    if not _MARKUP.search(source):
        return " ".join(source[:1000].split())
    tokens = _INLINE.parseInline(_WIKILINK.sub(r"\1", source[:1000]))
    return " ".join("".join(map(_text, tokens[0].children or ())).split()) if tokens else ""


def _text(token: Token) -> str:
    if token.type in ("softbreak", "hardbreak"):
        return " "
    return "" if token.type == "html_inline" else html.unescape(token.content)


def _source(lines: Sequence[str]) -> str:
    """Return the source text of a heading, underlined or with `#` marks."""
    first = lines[0].strip()
    if re.match(r"#{1,6}(?:\s|\Z)", first):
        return _CLOSING.sub("", first.lstrip("#")).strip()
    return " ".join(line.strip() for line in lines[:-1])


def _key(text: str) -> str:
    return nfc(nfc(" ".join(text.split())).casefold())
