"""Globs over names and paths, as in ignore files and shells: `*` and `?` do not cross `/`, `**` does.

A glob without `/` matches the name, one that starts with `/` matches the whole path, and any other matches the end of
the path from a folder on. Matching takes time linear in the path, however many stars the glob has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]  # it ships neither types nor stubs

from services.shared import linear

Matcher = Callable[[str], bool]


def is_glob(text: str) -> bool:
    """Return whether `text` contains wildcards."""
    return any(mark in text for mark in "*?[")


def has_stars(text: str) -> bool:
    """Return whether `text` is a glob beyond doubt. Names such as `[id].tsx` and `notes[1].txt` are common."""
    return "*" in text or "?" in text


def literal(glob: str) -> str:
    """Return a glob that matches only `glob` itself."""
    return re.sub(r"[*?\[]", r"[\g<0>]", glob)


@lru_cache(maxsize=1024)
def compiled(glob: str) -> Any:
    """Compile a glob to a pattern that is used with `fullmatch`.  Raises BadPattern for ranges such as [z-a]."""
    text = glob.removeprefix("./")
    body = _TOKEN.sub(_translated, text.rstrip("/") or "/")
    start = "" if text.startswith("/") else "(?:.*/)?"
    below = "(?:/.*)?" if text.endswith("/") and len(text) > 1 else ""
    return linear.compiled(start + body + below, dot_nl=True)


_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[(.[^\]]*)\]|.", re.DOTALL)
_STARS = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _translated(token: re.Match[str]) -> str:
    given = token[1] or ""
    negated = "^/" if given[:1] in ("!", "^") else ""
    inside = re.sub(r"([\\\[\]^])", r"\\\1", given[1:] if negated else given)
    return f"[{negated}{inside}]" if inside else _STARS.get(token[0]) or re2.escape(token[0])


SEPARATOR = "\0"
"""Separates globs that are passed as one string; paths cannot contain it."""


@lru_cache(maxsize=256)
def matcher_of(text: str) -> Matcher:
    """Return the matcher of globs that are passed as one string."""
    return matcher(text.split(SEPARATOR))


def matcher(globs: Sequence[str]) -> Matcher:
    """Return a function that tells whether a path matches any of the globs."""
    # RE2's own type, which has no stubs.
    patterns: list[Any] = []
    for glob in map(linear.readable, globs):
        try:
            patterns.append(compiled(glob))
        except linear.BadPattern:
            # The range is empty, so treat the glob as a plain name.
            patterns.append(linear.compiled(f"(?:.*/)?{re2.escape(glob)}", dot_nl=True))
    return lambda path: any(pattern.fullmatch(path.encode("utf-8", "replace")) for pattern in patterns)
