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

from services.runtime import linear

Matcher = Callable[[str], bool]
"""Whether a path matches."""


def is_glob(text: str) -> bool:
    """Whether `text` is more than a plain name."""
    return any(mark in text for mark in "*?[")


@lru_cache(maxsize=1024)
def compiled(glob: str) -> Any:
    """Its `fullmatch` takes whole paths. Raises BadPattern where it has a range such as [z-a]."""
    text = glob.removeprefix("./")
    body = _body(text.rstrip("/") or "/")
    start = "" if text.startswith("/") else "(?:.*/)?"
    below = "(?:/.*)?" if text.endswith("/") and len(text) > 1 else ""
    return linear.compiled(start + body + below, dot_nl=True)


def _body(glob: str) -> str:
    found: list[str] = []
    index = 0
    while index < len(glob):
        char = glob[index]
        if glob.startswith("**/", index):
            found.append("(?:[^/]+/)*")
            index += 3
            continue
        if glob.startswith("**", index):
            found.append(".*")
            index += 2
            continue
        if char == "*":
            found.append("[^/]*")
        elif char == "?":
            found.append("[^/]")
        elif char == "[" and (end := glob.find("]", index + 2)) > 0:
            inside = glob[index + 1 : end]
            negated = inside[0] in "!^"
            inside = re.sub(r"([\\\[\]^])", r"\\\1", inside[1:] if negated else inside)
            found.append(f"[{'^/' if negated else ''}{inside}]" if inside else re2.escape(glob[index : end + 1]))
            index = end
        else:
            found.append(re2.escape(char))
        index += 1
    return "".join(found)


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
