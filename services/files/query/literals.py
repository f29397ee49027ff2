"""The parts that a text must hold literally to match a pattern: what a search can look for before it asks the pattern.

Where a pattern says something that is not understood here, it has no such parts, which is never wrong.
"""

from __future__ import annotations

import re

_REPEAT = re.compile(r"\{\d*,?\d*\}")
_GROUP = re.compile(r"\(\?(:|P?<\w+>)")
_ASSERTED = "dDwWsSbBAz"
"""After a backslash: stands for other characters than itself, or for none."""


def of_glob(pattern: str) -> list[tuple[str, str]]:
    """Each with where it must be: `prefix`, `suffix` or `contains`."""
    if "[" in pattern:
        # A class may hold the signs that would end a part.
        head = pattern[: pattern.index("[")]
        parts = re.split(r"[*?]+", head)
        found = [(part, "contains") for part in parts[1:]]
        return [(parts[0], "prefix"), *found] if parts[0] else found
    parts = re.split(r"[*?]+", pattern)
    if len(parts) == 1:
        return [(pattern, "prefix"), (pattern, "suffix")]
    found = [(parts[0], "prefix"), *((part, "contains") for part in parts[1:-1]), (parts[-1], "suffix")]
    return [(part, mode) for part, mode in found if part]


def of_regex(pattern: str) -> list[str]:
    """Those outside of groups, of a pattern of RE2."""
    if "[:" in pattern or "\\Q" in pattern:
        return []
    found: list[str] = []
    run = ""
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "|":
            return []
        if char in "*?{":
            if char == "{":
                repeat = _REPEAT.match(pattern, at)
                if repeat is None:
                    return []
                at = repeat.end() - 1
            # What is repeated may be there not at all.
            found.append(run[:-1])
            run = ""
        elif char in ".^$+([":
            found.append(run)
            run = ""
            if char in "([":
                end = _end_of_group(pattern, at) if char == "(" else _end_of_class(pattern, at)
                if end < 0:
                    return []
                at = end
        elif char == "\\":
            at += 1
            escaped = pattern[at : at + 1]
            if escaped in _ASSERTED:
                found.append(run)
                run = ""
            elif escaped.isascii() and not escaped.isalnum():
                run += escaped
            else:
                return []
        else:
            run += char
        at += 1
    return [part for part in (*found, run) if len(part) > 1]


def _end_of_class(pattern: str, at: int) -> int:
    """Where the `]` of the class is that begins here; negative where there is none."""
    at += 1
    if pattern[at : at + 1] == "^":
        at += 1
    # A `]` that comes first is one of the class.
    first = True
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "]" and not first:
            return at
        first = False
        at += 1
    return -1


def _end_of_group(pattern: str, at: int) -> int:
    """Where the `)` of the group is that begins here; negative where it sets flags, or there is none."""
    depth = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif char == "[":
            at = _end_of_class(pattern, at)
            if at < 0:
                return -1
        elif char == "(":
            if pattern[at + 1 : at + 2] == "?" and not _GROUP.match(pattern, at):
                return -1
            depth += 1
        elif char == ")":
            depth -= 1
            if not depth:
                return at
        at += 1
    return -1
