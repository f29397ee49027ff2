"""Globs over names and paths, as ignore files and shells have them: `*` and `?` stay within one part of a path, `**`
does not.

A glob without `/` is compared with the name, or with any folder's; one that starts with `/` with the whole path; any
other with the end of the path, from a folder on. Each is matched in time linear in the path, however many stars it has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]  # it ships neither types nor stubs

from linckia.services.runtime import linear

Matcher = Callable[[str], bool]


def is_glob(text: str) -> bool:
    """Whether `text` is more than a plain name."""
    return any(mark in text for mark in "*?[")


@lru_cache(maxsize=1024)
def compiled(glob: str) -> Any:
    """Its `fullmatch` takes whole paths. Raises BadPattern where it has a range such as [z-a]."""
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
"""Between globs that are given as one text; no path has it."""


@lru_cache(maxsize=256)
def matcher_of(text: str) -> Matcher:
    """The matcher of globs that are given as one text."""
    return matcher(text.split(SEPARATOR))


def matcher(globs: Sequence[str]) -> Matcher:
    """Whether a path matches any of them."""
    # RE2's own type, which has no stubs.
    patterns: list[Any] = []
    for glob in map(linear.readable, globs):
        try:
            patterns.append(compiled(glob))
        except linear.BadPattern:
            # Nothing is in it, so the glob is a plain name.
            patterns.append(linear.compiled(f"(?:.*/)?{re2.escape(glob)}", dot_nl=True))
    return lambda path: any(pattern.fullmatch(path.encode("utf-8", "replace")) for pattern in patterns)
