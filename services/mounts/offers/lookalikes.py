# ruff: noqa: RUF001, RUF002
"""Names that look like other names: `сору` with Cyrillic letters, `read_fi1e` beside `read_file`.

A name's skeleton is its shape to a reader. Two different names with one skeleton can be mistaken for each other (they
are confusable, says Unicode Technical Standard 39). The table here has the letters of Greek and Cyrillic that are drawn
like Latin ones, which is what attackers use; it is not the whole table of that standard.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache

_DRAWN_ALIKE = {
    # Cyrillic
    "аАвВеЕёЁкКмМнНоОрРсСтТуУхХ": "aAbBeEeEkKmMhHoOpPcCtTyYxX",
    "ѕЅіІїЇјЈԁһҺԛԜԝӏӀҮүпгь": "sSiIiIjJdhHqWwllYynrb",
    # Greek
    "αΑΒΕΖΗΙιΚκΜΝνΟοΡρΤτΥυΧχγωσ": "aABEZHIiKkMNvOoPpTtYuXxywo",
    # Latin letters of other languages and of phonetics
    "ıɑɡɩʏɴʀꞌ": "iagiynr'",
    # Digits and capitals that are drawn like a small letter
    "I1|0": "lllo",
    # Dashes
    "‐‑‒–—−": "------",
}
_TABLE = str.maketrans(
    {letter: drawn for letters, like in _DRAWN_ALIKE.items() for letter, drawn in zip(letters, like, strict=True)}
)
_SCRIPTS = ("LATIN", "GREEK", "CYRILLIC")
"""Scripts that share shapes. A name of two of them was not written by accident."""


@lru_cache(maxsize=65_536)
def skeleton(name: str) -> str:
    """Return the shape of a name: names with one skeleton look the same."""
    drawn = unicodedata.normalize("NFKC", name).translate(_TABLE).translate(_TABLE)
    return drawn.casefold().translate(_TABLE).replace("rn", "m").replace("vv", "w")


def disguise_of(name: str) -> str:
    """Return a complaint about a name by itself, or "": it mixes scripts, or looks like another in plain letters."""
    if name.isascii():
        return ""
    plain = unicodedata.normalize("NFKC", name).translate(_TABLE)
    if plain.isascii():
        return f"looks like `{plain}`, with other letters"
    letters = (unicodedata.name(letter, "").partition(" ")[0] for letter in name if letter.isalpha())
    scripts = sorted(set(letters).intersection(_SCRIPTS))
    return f"mixes letters of {' and '.join(script.title() for script in scripts)}" if len(scripts) > 1 else ""


def pairs(names: Iterable[str]) -> dict[str, str]:
    """Return the names that look like another of them, each with that one; the first of the list is not accused."""
    seen: dict[str, str] = {}
    found: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(skeleton(name), name)
        if other != name:
            found[name] = other
    return found


def among(names: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Return what each of `names` can be mistaken for. Both map a full name (`MOUNT_tool`) to its description; two full
    names that are equal collide, which is worse than looking alike."""
    drawn = {skeleton(name): said for name, said in others.items()}
    return {name: drawn[skeleton(name)] for name in names if skeleton(name) in drawn}
