"""Suggestions for unknown names, for the end of an error message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

_LOOKED_AT = 10_000
_LONGEST = 200
"""Maximum number of names compared, and of characters in each: takes some 50 ms at most."""


def did_you_mean(name: str, known: Iterable[str], *, before: str = "; ", most: int = 3) -> str:
    """Return `; did you mean A, B?` with the most similar names, or "" if none is similar."""
    similar = close(name, known, most)
    return f"{before}did you mean {', '.join(similar)}?" if similar else ""


def close(name: str, known: Iterable[str], most: int) -> list[str]:
    """Return the most similar names, best first."""
    by_key: dict[str, str] = {}
    for each in islice(known, _LOOKED_AT):
        by_key.setdefault(each[-_LONGEST:].lower(), each)
    return [by_key[key] for key in difflib.get_close_matches(name[-_LONGEST:].lower(), by_key, n=most)]


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the most similar name, or else list all known names."""
    known = sorted(known) if isinstance(known, set | frozenset) else list(known)
    return did_you_mean(name, known, most=1) or f"; there are: {', '.join(known)}"
