"""Regular expressions whose time is linear in the text (RE2): for every pattern or text that comes from outside.

They have no look-around and no back-references; `\\w`, `\\d`, `\\s` and `\\b` know ASCII alone. Offsets are of bytes
where the text is given as bytes, else of characters.
"""

from __future__ import annotations

import re
from typing import Any

import re2  # type: ignore[import-untyped]  # it ships neither types nor stubs


class BadPattern(ValueError):
    """The text is no regular expression, or beyond what RE2 can do; says why."""


def options(**given: Any) -> re2.Options:
    """The options of RE2 by name; nothing is written to stderr."""
    made = re2.Options()
    made.log_errors = False
    for name, value in given.items():
        setattr(made, name, value)
    return made


def compiled(pattern: str | bytes, **given: Any) -> re2._Regexp:
    """A compiled pattern, which is used like one of `re`. Raises BadPattern."""
    try:
        return re2.compile(pattern, options(**given))
    except re2.error as error:
        why = error.args[0] if error.args else "it is no regular expression"
        raise BadPattern(why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)) from None
    except UnicodeEncodeError:
        raise BadPattern("it is not valid Unicode") from None


def searching(*patterns: str | bytes, **given: Any) -> re2.Set:
    """A set whose `Match` tells which of the patterns are anywhere in a text, in one pass. Raises BadPattern."""
    found = re2.Set.SearchSet(options(**given))
    for pattern in patterns:
        # Only the compiled pattern reports its error; a set does not.
        compiled(pattern, **given)
        found.Add(pattern)
    try:
        found.Compile()
    except re2.error:
        raise BadPattern("it takes too much memory") from None
    return found


def readable(text: str) -> str:
    """A path with what is no UTF-8 in it as question marks, which RE2 takes and a glob's own stand for."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def without_spans(opening: re.Pattern[str], text: str, trailing: re.Pattern[str] | None = None) -> str:
    """`text` without each `<NAME …>…</NAME>` and what follows it; `opening` finds the first tag, its group 1 is NAME.

    An expression that does so looks for the end of every tag that has none through all of the text.
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
