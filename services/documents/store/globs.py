"""Globs over names and paths, as ignore files and shells have them: `*` and `?` stay within one part of a path, `**`
does not.

A glob without `/` is compared with the name, or with any folder's; one that starts with `/` with the whole path; any
other with the end of the path, from a folder on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

Matcher = Callable[[str], bool]
"""Whether a path matches."""


def is_glob(text: str) -> bool:
    """Whether `text` is more than a plain name."""
    return any(mark in text for mark in "*?[")


@lru_cache(maxsize=1024)
def compiled(glob: str) -> re.Pattern[str]:
    """Matches whole paths."""
    text = glob.removeprefix("./")
    body = _body(text.rstrip("/") or "/")
    start = "" if text.startswith("/") else "(?:.*/)?"
    below = "(?:/.*)?" if text.endswith("/") and len(text) > 1 else ""
    return re.compile(start + body + below, re.DOTALL)


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
            inside = re.sub(r"([\\\[\]&~|^])", r"\\\1", inside[1:] if negated else inside)
            found.append(f"[{'^/' if negated else ''}{inside}]" if inside else re.escape(glob[index : end + 1]))
            index = end
        else:
            found.append(re.escape(char))
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
    patterns: list[re.Pattern[str]] = []
    for glob in globs:
        try:
            patterns.append(compiled(glob))
        except re.error:
            # A range such as [z-a]: nothing is in it, so the glob is a plain name.
            patterns.append(re.compile(f"(?:.*/)?{re.escape(glob)}", re.DOTALL))
    return lambda path: any(pattern.fullmatch(path) for pattern in patterns)
