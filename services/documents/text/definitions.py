"""Finds where functions, classes and the like begin in source code, by the words that begin a line in most languages.

It is quick and needs no parser for the language: a definition that is missed, or a line that only looks like one,
changes where a text is cut and what a passage is called, and loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from services.shared.text.cutting import Block

_BEFORE = (
    r"(?:(?:export|default|declare|public|private|protected|internal|static|final|abstract|sealed|open|override|virtual"
    r"|async|pub(?:\([\w:]+\))?|unsafe|const|inline|extern|data|suspend|local|partial|readonly|template<[^>]*>)\s+)*"
)
_WORDS = (
    r"def|class|function\*?|func|fun|fn|interface|struct|enum|trait|impl(?:<[^>]*>)?|module|namespace|protocol|extension"
    r"|object|record|type|macro_rules!|sub|proc"
)
_DEFINITION = re.compile(
    rf"^(?P<indent>[ \t]*){_BEFORE}(?:{_WORDS})\s+(?:\([^()]*\)\s*)?(?P<name>[A-Za-z_$][\w$]*(?:(?:\.|::)[\w$]+)*)"
)
"""The brackets before the name are the receiver of a method in Go."""

_ASSIGNED = re.compile(
    r"^(?P<indent>[ \t]*)(?:export\s+)?(?:const|let|var)\s+(?P<name>[\w$]+)\s*(?::[^=]+)?=\s*(?:async\s*)?"
    r"(?:function\b|\([^()]*\)\s*(?::[^=]+)?=>|[\w$]+\s*=>)"
)
_TYPED = re.compile(
    r"^(?P<indent>[ \t]*)(?!return\b|else\b|new\b|throw\b|case\b|await\b|delete\b|goto\b|typedef\b)"
    r"(?:[A-Za-z_][\w:<>,\[\]*&?.]*[ \t]+[*&]?)+(?P<name>[A-Za-z_~]\w*(?:::~?\w+)?)[ \t]*\([^;=]*\)?[^;=]*\{?[ \t]*$"
)
"""A function that begins with the type of its result, as in C, C++, C# and Java."""

_C_LIKE = ("text/x-c", "text/x-c++", "text/x-java", "text/x-csharp")
_ABOVE = re.compile(r"^\s*(?:@|#\[|#(?!\s*(?:include|define|if|endif))|//|/\*|\*|--|\[\w)")
"""Comments and decorators directly above a definition belong to it."""

_TAB = 4
_MOST_CHARS = 400
"""Longer lines are data or generated."""


def outline(lines: Sequence[str], mime: str) -> list[Block]:
    """Return the blocks of a source text: each definition is a heading, below those that are indented less."""
    kind = mime.partition(";")[0]
    patterns = (_DEFINITION, _ASSIGNED, *([_TYPED] if kind in _C_LIKE else []))
    blocks: list[Block] = []
    begin = 0
    for number, line in enumerate(lines):
        if not line or len(line) > _MOST_CHARS:
            continue
        found = next((match for pattern in patterns if (match := pattern.match(line)) is not None), None)
        if found is None:
            continue
        first = number
        while first > begin and _ABOVE.match(lines[first - 1]):
            first -= 1
        if first > begin:
            blocks.append(Block(begin, first))
        level = 1 + len(found["indent"].expandtabs(_TAB))
        blocks.append(Block(first, number + 1, level, found["name"]))
        begin = number + 1
    if begin < len(lines):
        blocks.append(Block(begin, len(lines)))
    return blocks
