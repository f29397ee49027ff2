"""Splits Markdown into blocks: headings with their levels, other blocks with their lines, and which lines are code.

It uses the block rules of a CommonMark parser, so a `#` in a code fence, a list or a comment is not a heading.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from markdown_it import MarkdownIt

from services.shared.text.cutting import Block

_PARSER = MarkdownIt("commonmark")
_PARSER.core.ruler.enableOnly(["normalize", "block"])
# Treated as a paragraph, a link definition keeps its lines.
_PARSER.disable("reference")

_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\s+\"[^\"]*\")?\)")
_WIKILINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_EMPHASIS = re.compile(r"(?<!\w)(\*{1,3}|_{1,3})(?=\S)(.+?)(?<=\S)\1(?!\w)")


class Outline(NamedTuple):
    """The blocks of a text, and the lines (from 0, end exclusive) that are code."""

    blocks: list[Block]
    code: list[tuple[int, int]]

    @property
    def headings(self) -> tuple[str, ...]:
        return tuple(block.title for block in self.blocks if block.level and block.title)


def outline(text: str) -> Outline:
    r"""Return the outline of `text`, whose line breaks are `\n`."""
    blocks: list[Block] = []
    code: list[tuple[int, int]] = []
    tokens = _PARSER.parse(text)
    for index, token in enumerate(tokens):
        if token.map is None:
            continue
        if token.type in ("fence", "code_block"):
            code.append((token.map[0], token.map[1]))
        if token.level == 0 and token.nesting >= 0 and token.type != "inline":
            heading = token.type == "heading_open"
            title = plain(tokens[index + 1].content) if heading else ""
            blocks.append(Block(token.map[0], token.map[1], int(token.tag[1]) if heading else 0, title))
    return Outline(blocks, code)


def plain(inline: str) -> str:
    """Return the text of a heading without the markup of links, emphasis and code."""
    text = _WIKILINK.sub(r"\1", _LINK.sub(r"\1", inline[:1000]))
    text = _EMPHASIS.sub(r"\2", text.replace("`", ""))
    return " ".join(text.split())[:300]
