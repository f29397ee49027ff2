"""Characters that a model reads and a person does not see: zero-width, bidirectional controls, tags and the like.

Some of them belong to ordinary text: a variation selector after an emoji, a joiner in an emoji or in Arabic and Indic
words, the tags in the flags of England, Scotland and Wales. Those are not flagged.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

_SUSPECT = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)
_FLAGS = re.compile(
    "\U0001f3f4\U000e0067\U000e0062(?:\U000e0065\U000e006e\U000e0067|\U000e0073\U000e0063\U000e0074|\U000e0077\U000e006c\U000e0073)\U000e007f"
)
_NON_JOINER, _JOINER, _TEXT_STYLE, _EMOJI_STYLE = "\u200c", "\u200d", "\ufe0e", "\ufe0f"
_SHAPED = ("ARABIC", "SYRIAC", "MONGOLIAN", "DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA", "TAMIL", "TELUGU",
           "KANNADA", "MALAYALAM", "SINHALA", "KHMER", "MYANMAR")  # fmt: skip
"""Scripts in whose words joiners are ordinary."""


def found_in(text: str) -> list[str]:
    """Return the kinds of hidden characters in a text, such as `2 times U+200B ZERO WIDTH SPACE`."""
    if text.isascii() and text.isprintable():
        return []
    text = _FLAGS.sub("\U0001f3f4", text)
    counts = Counter(match[0] for match in _SUSPECT.finditer(text) if not _is_ordinary(text, match.start()))
    return [f"{count} times {_named(letter)}" for letter, count in counts.items()]


def visible(text: str) -> str:
    """Return the text with an escape (`\\u200b`) for each character that may be hidden."""
    return _SUSPECT.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _named(letter: str) -> str:
    name = unicodedata.name(letter, "")
    return f"U+{ord(letter):04X}{f' {name}' if name else ''}"


def _is_ordinary(text: str, at: int) -> bool:
    letter, before, after = text[at], text[at - 1 : at], text[at + 1 : at + 2]
    if letter in (_EMOJI_STYLE, _TEXT_STYLE):
        # As in ⚠️ and 1️⃣.
        return before != "" and (_is_symbol(before) or (before in "0123456789#*" and after == "\u20e3"))
    if letter in (_JOINER, _NON_JOINER):
        # An emoji of several, or a word of a script whose letters change their shape.
        in_emoji = letter == _JOINER and (_is_symbol(before) or before == _EMOJI_STYLE) and _is_symbol(after)
        return in_emoji or (_is_shaped(before) and _is_shaped(after))
    if "\U000e0100" <= letter <= "\U000e01ef":
        return unicodedata.name(before, "").startswith("CJK") if before else False
    return False


def _is_symbol(letter: str) -> bool:
    return letter != "" and (unicodedata.category(letter) in ("So", "Sk", "Sm") or letter in "‼⁉〰〽")


def _is_shaped(letter: str) -> bool:
    return letter != "" and unicodedata.name(letter, "").startswith(_SHAPED)
