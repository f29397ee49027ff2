"""Conditions on text as SQL: literal parts, regular expressions in linear time (RE2), and globs."""

from __future__ import annotations

from typing import Any, NamedTuple

import re2  # type: ignore[import-untyped]  # ships no types; patterns are only compiled here

from proto.errors import InvalidParams
from proto.ops.files_resources import MODES
from services.files.functions import key, searcher


class Condition(NamedTuple):
    """An SQL expression and what its placeholders stand for."""

    sql: str
    bindings: tuple[Any, ...] = ()


def text_matches(column: str, pattern: str, mode: str, *, case_sensitive: bool) -> Condition:
    """Whether the text of an SQL expression matches.

    Raises:
        InvalidParams: the mode is unknown, or the pattern is none.
    """
    if mode in ("contains", "prefix", "suffix"):
        return _literal(column, pattern, mode, case_sensitive)
    if mode == "regex":
        return _regex(column, pattern if case_sensitive else f"(?i){pattern}", pattern)
    if mode == "glob":
        return _glob(column, pattern, case_sensitive)
    raise InvalidParams(f"`mode`: there is no mode {mode[:100]!r}; there are: {', '.join(MODES)}", field="mode")


def _literal(column: str, pattern: str, mode: str, case_sensitive: bool) -> Condition:
    if not pattern:
        return Condition("1")
    if not case_sensitive and pattern.isascii():
        # LIKE takes ASCII letters in either case.
        escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        like = f"{'' if mode == 'prefix' else '%'}{escaped}{'' if mode == 'suffix' else '%'}"
        return Condition(f"{column} LIKE ? ESCAPE '\\'", (like,))
    if not case_sensitive:
        column, pattern = key(column), pattern.casefold()
    if mode == "contains":
        return Condition(f"instr({column}, ?) > 0", (pattern,))
    if mode == "prefix":
        return Condition(f"substr({column}, 1, ?) = ?", (len(pattern), pattern))
    return Condition(f"substr({column}, -?) = ?", (len(pattern), pattern))


def _regex(column: str, pattern: str, given: str) -> Condition:
    try:
        searcher(pattern)
    except re2.error as error:
        why = error.args[0]
        text = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise InvalidParams(
            f"`pattern` {given[:200]!r} is no regular expression (RE2): {text}", field="pattern"
        ) from None
    return Condition(f"matches(?, {column})", (pattern,))


def _glob(column: str, pattern: str, case_sensitive: bool) -> Condition:
    if "[" not in pattern and (case_sensitive or pattern.isascii()):
        if case_sensitive:
            return Condition(f"{column} GLOB ?", (pattern,))
        escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        return Condition(f"{column} LIKE ? ESCAPE '\\'", (escaped.replace("*", "%").replace("?", "_"),))
    return _regex(column, f"(?s{'' if case_sensitive else 'i'})^(?:{glob_to_regex(pattern)})$", pattern)


def glob_to_regex(pattern: str) -> str:
    """`*` any characters, `?` one, `[a-z]` and `[!a-z]` one of a class; a `[` without its `]` stands for itself."""
    parts = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*":
            parts.append(".*")
        elif char == "?":
            parts.append(".")
        elif char == "[":
            # A `]` that comes first is one of the class.
            first = at + (pattern[at : at + 1] in ("!", "^"))
            end = pattern.find("]", first + 1)
            if end < 0:
                parts.append("\\[")
                continue
            inside = pattern[first:end].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
            parts.append(f"[{'^' if first > at else ''}{inside.replace('^', chr(92) + '^')}]")
            at = end + 1
        else:
            parts.append(re2.escape(char))
    return "".join(parts)
