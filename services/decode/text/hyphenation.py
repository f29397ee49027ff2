"""Rejoins words that are divided at a line's end.

A hyphen at a line's end may be the typesetter's (reimburse-ment) or the word's own (well-known). The spelling elsewhere
in the document decides. If it does not, the word is joined, and noted below the page as divided.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_MARK: Final = re.compile(r"[\x02\ufffe]|[-\u2010\u00ad][ \t]*\n[ \t]*")
"""The control characters that pdfium substitutes for hyphens at a line's end, and the hyphens that it leaves there."""
_INSIDE: Final = "-\u2010'\u2019"
"""Punctuation that occurs inside words."""
_WORD: Final = re.compile(rf"[^\W_]+(?:[{_INSIDE}][^\W_]+)*")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\u00ad\ufffe\uffff]")
_MAX_PART: Final = 60
FEW_WORDS: Final = 1000
"""In a document with fewer distinct words, the absence of a word is no evidence."""


class Words:
    """The words of a document, except those divided at a line's end."""

    def __init__(self, text: str) -> None:
        self._known: set[str] = set()
        for match in _WORD.finditer(_undivided(text)):
            word = match[0].casefold().replace("\u2010", "-")
            self._known.add(word)
            self._known.update(word.split("-"))

    def joint(self, left: str, right: str) -> tuple[str, bool]:
        """Return what joins the parts of a divided word, and whether it is certain."""
        first, second = left.casefold().replace("\u2010", "-"), right.casefold()
        if first + second in self._known:
            return "", True
        if f"{first}-{second}" in self._known:
            return "-", True
        if left[-1].isdigit() or right[0].isdigit() or (right[0].isupper() and not left.isupper()):
            return "-", True
        both = first in self._known and second in self._known
        return "", not both and len(self._known) >= FEW_WORDS


def _undivided(text: str) -> str:
    """Return a text without its divided words."""
    parts: list[str] = []
    at = 0
    for match in _MARK.finditer(text):
        if match.start() > at:
            first = max(at, match.start() - _MAX_PART)
            before = text[first : match.start()]
            parts.append(text[at : first + max(before.rfind(" "), before.rfind("\n")) + 1])
        after = text[match.end() : match.end() + _MAX_PART]
        at = match.end() + len(re.split(r"\s", after, maxsplit=1)[0])
    return "".join([*parts, text[at:]])


def joined(text: str, following: str, words: Words) -> str:
    """Return a page's text with divided words rejoined, and without soft hyphens and control characters. A word that
    continues on the next page is noted below."""
    parts: list[str] = []
    doubtful: dict[str, None] = {}
    tail = ""
    at = 0
    for match in _MARK.finditer(text):
        tail = (tail + text[at : match.start()])[-_MAX_PART:]
        parts.append(text[at : match.start()])
        at = match.end()
        left, right = _trailing(tail), _leading(text[at : at + _MAX_PART])
        between = match[0]
        if left and right:
            between, is_certain = ("", True) if match[0][0] == "\u00ad" else words.joint(left, right)
            if not is_certain:
                doubtful[f"{left}-{right}"] = None
        elif between in ("\x02", "\ufffe"):
            between = "-"
        parts.append(between)
        tail += between
    parts.append(text[at:])
    page = _CONTROL.sub("", "".join(parts))
    if doubtful:
        page += f"\n(Divided at a line's end, possibly at their own hyphen: {', '.join(doubtful)})"
    left, right = _trailing(text.rstrip()[:-1][-_MAX_PART:]), _leading(following.lstrip()[:_MAX_PART])
    if left and right and text.rstrip()[-1] in "-\u2010\u00ad\x02\ufffe" and not right[0].isupper():
        page += f"\n(Continued on the next page: {left}{words.joint(left, right)[0]}{right})"
    return page


def _trailing(text: str) -> str:
    start = len(text)
    while start and (_is_of_word(text[start - 1]) or (text[start - 1] in _INSIDE and start < len(text))):
        start -= 1
    return text[start:].lstrip(_INSIDE)


def _leading(text: str) -> str:
    end = 0
    while end < len(text) and _is_of_word(text[end]):
        end += 1
    return text[:end]


def _is_of_word(character: str) -> bool:
    # Vowel signs are marks in many scripts.
    return character.isalnum() or (character > "\u02ff" and unicodedata.category(character).startswith("M"))
