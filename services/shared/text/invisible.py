"""Characters that nobody sees and that change no word: soft hyphens, zero-width and direction marks."""

from __future__ import annotations

import re

INVISIBLE = re.compile("[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]")


def visible(text: str) -> str:
    """Return a text without them, for comparisons: what is stored keeps them."""
    return text if text.isascii() else INVISIBLE.sub("", text)


_BREAKS = re.compile("[\u00ad\u2060\ufeff]|(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\u200b")


def without_breaks(text: str) -> str:
    """Return an extracted text without marks of where a line may break; where they separate words, they stay."""
    return text if text.isascii() else _BREAKS.sub("", text)
