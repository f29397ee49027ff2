"""Says in which character a text differs from what was looked for in it."""

from __future__ import annotations

import re
import unicodedata

from services.shared.text.invisible import INVISIBLE, visible

MOST = 10_000
"""Characters of a text that is looked for with other white space."""

_SPACES = "\t\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_ALIKE = {
    **dict.fromkeys(_SPACES, " "),
    **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc\u0060\u00b4", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
}
"""Characters that look alike, and the one that each is compared as."""
_TABLE = str.maketrans(_ALIKE)


def difference(text: str, wanted: str) -> str:
    """Return how the place in `text` that looks like `wanted` differs from it; "" if there is none."""
    if (at := text.translate(_TABLE).find(wanted.translate(_TABLE))) >= 0:
        return _first(text, text[at : at + len(wanted)], at, wanted)
    if len(wanted) <= MOST and (words := wanted.split()):
        spaced = re.search(r"\s+".join(map(re.escape, words)), text)
        if spaced is not None:
            return _first(text, spaced[0], spaced.start(), wanted.strip())
    seen = visible(wanted)
    for match in re.finditer(r"[^\n]+", text) if seen and "\n" not in seen else ():
        if seen in visible(match[0]) and (hidden := INVISIBLE.search(match[0] + wanted)) is not None:
            return f"line {_line(text, match.start())} has an invisible {named(hidden[0])}, or `old` has"
    for form in ("NFC", "NFD"):
        if (other := unicodedata.normalize(form, wanted)) != wanted and (at := text.find(other)) >= 0:
            return f"line {_line(text, at)} has its accented letters in the form {form}"
    return ""


def _first(text: str, found: str, at: int, wanted: str) -> str:
    """Say where `found`, which begins at `at`, first differs from `wanted`."""
    place = next((n for n, (one, other) in enumerate(zip(found, wanted, strict=False)) if one != other), None)
    if place is None:
        # One is the beginning of the other.
        place = min(len(found), len(wanted))
    has, asked = (named(one[place : place + 1]) for one in (found, wanted))
    return f"line {_line(text, at + place)} has {has} where `old` has {asked}"


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def named(character: str) -> str:
    """Return a character as a person would call it."""
    known = {"": "its end", " ": "a space", "\t": "a tab", "\n": "a line end", "\r": "a carriage return"}
    if character in known:
        return known[character]
    name = unicodedata.name(character, "")
    return f"{character!r} (U+{ord(character):04X}{f', {name}' if name else ''})"
