"""Characters that a model reads and a person does not see: zero-width, bidirectional controls, tags and the like.

Some of them belong to ordinary text: a variation selector after an emoji, a joiner in an emoji or in Arabic and Indic
words, the tags in the flags of England, Scotland and Wales. Those are neither flagged nor removed, because without them
the text says something else (a family falls apart into persons, a word into two). Each stands beside characters that
everybody sees and that give it a meaning; a second one at the same place is hidden text again. Marks for the direction
of text are not spared: a line that is shown in another order than it is read deceives, and without them it can be read.

Characters of private use and the blank of Braille are flagged, but stay: people see a box or a gap.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

_SUSPECT = (
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)
_FLAGS = (
    "\U0001f3f4\U000e0067\U000e0062"
    "(?:\U000e0065\U000e006e\U000e0067|\U000e0073\U000e0063\U000e0074|\U000e0077\U000e006c\U000e0073)\U000e007f"
)
_EACH = re.compile(f"{_FLAGS}|{_SUSPECT}")
_ESCAPED = re.compile(_SUSPECT)
_SEEN = re.compile("[\u2800\ue000-\uf8ff\U000f0000-\U0010ffff]")
"""Suspects that people see somehow."""
_SEPARATORS = "\u2028\u2029"
_NON_JOINER, _JOINER, _TEXT_STYLE, _EMOJI_STYLE = "\u200c", "\u200d", "\ufe0e", "\ufe0f"
_SHAPED = ("ARABIC", "SYRIAC", "MONGOLIAN", "DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA", "TAMIL", "TELUGU",
           "KANNADA", "MALAYALAM", "SINHALA", "KHMER", "MYANMAR")  # fmt: skip
"""Scripts in whose words joiners are ordinary."""


def found_in(text: str) -> list[str]:
    """Return the kinds of hidden characters in a text, such as `2 times U+200B ZERO WIDTH SPACE, removed`."""
    if text.isascii() and text.isprintable():
        return []
    return [f"{count} times {_named(letter)}{_fate(letter)}" for letter, count in _parted(text)[1].items()]


def without(text: str) -> str:
    """Return the text without its hidden characters; separators of lines become line breaks."""
    return text if text.isascii() and text.isprintable() else _parted(text)[0]


def visible(text: str) -> str:
    """Return the text with an escape (`\\u200b`) for each character that may be hidden."""
    return _ESCAPED.sub(_escape, text)


def _parted(text: str) -> tuple[str, Counter[str]]:
    """Return the text without its hidden characters, and those that are hidden or suspect."""
    pieces: list[str] = []
    counts: Counter[str] = Counter()
    end, before = 0, ""
    for match in _EACH.finditer(text):
        letter = match[0]
        if match.start() > end:
            pieces.append(text[end : match.start()])
            before = text[match.start() - 1]
        end = match.end()
        if len(letter) == 1 and not _is_ordinary(letter, before, text[end : end + 1]):
            counts[letter] += 1
            if not _SEEN.match(letter):
                letter = "\n" if letter in _SEPARATORS else ""
        if letter:
            pieces.append(letter)
            before = letter[0]
    return "".join([*pieces, text[end:]]), counts


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _named(letter: str) -> str:
    name = unicodedata.name(letter, "")
    return f"U+{ord(letter):04X}{f' {name}' if name else ''}"


def _fate(letter: str) -> str:
    return "" if _SEEN.match(letter) else ", now a line break" if letter in _SEPARATORS else ", removed"


def _is_ordinary(letter: str, before: str, after: str) -> bool:
    """Return whether a suspect is ordinary between these characters; `before` is one that is not removed."""
    if letter in (_EMOJI_STYLE, _TEXT_STYLE):
        # As in ⚠️ and 1️⃣.
        return before != "" and (_is_symbol(before) or (before in "0123456789#*" and after == "\u20e3"))
    if letter in (_JOINER, _NON_JOINER):
        # An emoji of several, or a word of a script whose letters change their shape.
        in_emoji = letter == _JOINER and (_is_symbol(before) or before == _EMOJI_STYLE) and _is_symbol(after)
        return in_emoji or (_is_shaped(before) and _is_shaped(after))
    if "\u180b" <= letter <= "\u180f":
        return before != "" and unicodedata.name(before, "").startswith("MONGOLIAN LETTER")
    if "\U000e0100" <= letter <= "\U000e01ef":
        return before != "" and unicodedata.name(before, "").startswith("CJK")
    return False


def _is_symbol(letter: str) -> bool:
    return letter not in ("", "\u2800") and (unicodedata.category(letter) in ("So", "Sk", "Sm") or letter in "‼⁉〰〽")


def _is_shaped(letter: str) -> bool:
    return letter != "" and unicodedata.name(letter, "").startswith(_SHAPED)
