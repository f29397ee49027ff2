"""What may have been meant by a name that is not there: the end of an error's message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

_LOOKED_AT = 10_000
_LONGEST = 200
"""Names looked at, and characters of each: some 50 ms at most."""


def did_you_mean(name: str, known: Iterable[str], *, before: str = "; ", most: int = 3) -> str:
    """`; did you mean A, B?`, of the names that are most like this one; empty where none is."""
    near = close(name, known, most)
    return f"{before}did you mean {', '.join(near)}?" if near else ""


def close(name: str, known: Iterable[str], most: int) -> list[str]:
    """The names that are most like this one, the likest first."""
    by_key: dict[str, str] = {}
    for each in islice(known, _LOOKED_AT):
        by_key.setdefault(each[-_LONGEST:].lower(), each)
    return [by_key[key] for key in difflib.get_close_matches(name[-_LONGEST:].lower(), by_key, n=most)]


def nearest(name: str, known: Iterable[str]) -> str:
    """The same of the nearest name, or else all the names that there are."""
    known = sorted(known) if isinstance(known, set | frozenset) else list(known)
    return did_you_mean(name, known, most=1) or f"; there are: {', '.join(known)}"
