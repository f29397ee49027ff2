r"""Linear-time regular expressions (RE2), for every pattern or text that comes from outside.

They have no look-around and no back-references; `\w`, `\d`, `\s` and `\b` match ASCII only. Offsets count bytes if the
text is bytes, else characters.
"""

from __future__ import annotations

import re
from typing import Any

import re2  # type: ignore[import-untyped]  # it ships neither types nor stubs


class BadPattern(ValueError):
    """The text is not a regular expression that RE2 supports; the message says why."""


def options(**given: Any) -> re2.Options:
    """Build RE2 options by name; RE2 writes nothing to stderr."""
    made = re2.Options()
    made.log_errors = False
    for name, value in given.items():
        setattr(made, name, value)
    return made


def compiled(pattern: str | bytes, **given: Any) -> re2._Regexp:
    """Return a compiled pattern, used like one of `re`. Raises BadPattern."""
    try:
        return re2.compile(pattern, options(**given))
    except re2.error as error:
        why = error.args[0] if error.args else "it is not a regular expression"
        raise BadPattern(why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)) from None
    except UnicodeEncodeError:
        raise BadPattern("it is not valid Unicode") from None


def searching(*patterns: str | bytes, **given: Any) -> re2.Set:
    """Return a set whose `Match` reports in one pass which patterns occur anywhere in a text. Raises BadPattern."""
    found = re2.Set.SearchSet(options(**given))
    for pattern in patterns:
        # Only compiling a pattern reports its error; a set does not.
        compiled(pattern, **given)
        found.Add(pattern)
    try:
        found.Compile()
    except re2.error:
        raise BadPattern("it takes too much memory") from None
    return found


def readable(text: str) -> str:
    """Replace the non-UTF-8 bytes of a path with question marks, which RE2 accepts and a glob's `?` matches."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def without_spans(opening: re.Pattern[str], text: str, trailing: re.Pattern[str] | None = None) -> str:
    """Remove each `<NAME …>…</NAME>` and the trailing match after it; `opening` finds the first tag and captures NAME.

    A single expression would search the whole rest of the text for each tag that is never closed.
    """
    kept: list[str] = []
    endless: set[str] = set()
    position = searched = 0
    while match := opening.search(text, searched):
        searched = match.end()
        name = match[1] if not opening.flags & re.IGNORECASE else match[1].lower()
        if name in endless:
            continue
        closing = re.compile(f"</{re.escape(name)}>", opening.flags & re.IGNORECASE).search(text, searched)
        if closing is None:
            endless.add(name)
            continue
        kept.append(text[position : match.start()])
        after = trailing.match(text, closing.end()) if trailing is not None else None
        position = searched = closing.end() if after is None else after.end()
    return "".join((*kept, text[position:])) if kept else text
