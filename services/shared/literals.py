"""The literal text that any match of a regular expression or glob must contain, so that a search can query an index
first.

Python's own parser reads the expression after RE2's syntax has been translated. `trigrams_of` returns a boolean query,
after Russ Cox, "Regular Expression Matching with a Trigram Index" (2012), without his prefixes and suffixes. `parts_of`
returns the runs of literal text in every match. Anything that is not understood is assumed to match any text.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from re import _constants, _parser  # type: ignore[attr-defined]  # typeshed does not describe the parser of `re`
from typing import Any

MAX_EXACT = 16
"""Most exact strings tracked for a part; beyond that, only its trigrams are."""
MAX_CLASS = 12
"""Most characters of a class that are enumerated."""
_RAREST = 32
"""Most trigrams used from one literal run: those with the rarest characters."""
_COMMON = {char: -place for place, char in enumerate(" etaoinsrhldcumfpgwybvkxjqz")}
"""How common a character is in English; a missing one, such as a capital letter, is about as rare as `v`."""
UNUSUAL = -20
_CASED = (*range(0x3000), *range(0xA640, 0xAC00), *range(0xFF21, 0xFF5B))
"""Characters of the first plane that may have upper and lower case."""


@dataclass(frozen=True, slots=True)
class Query:
    """A boolean query: `any` matches every text, `and` requires all of `trigrams` and `parts`, `or` one of `parts`."""

    op: str
    trigrams: frozenset[str] = frozenset()
    parts: tuple[Query, ...] = ()


ANYTHING = Query("any")


def trigrams_of(pattern: str, *, literal: bool = False, ignore_case: bool = False) -> Query:
    """Return a query for the trigrams of every line in which an expression (RE2 or `regex`) matches."""
    if literal:
        return trigrams_of_any((pattern,), ignore_case=ignore_case)
    try:
        items, any_case = _parsed(pattern)
        found = _required(*_sequence(items))
    except (_NotUnderstood, RecursionError):
        return ANYTHING
    return _in_any_case(found) if ignore_case or any_case else found


def trigrams_of_any(texts: Collection[str], *, ignore_case: bool) -> Query:
    """Return a query for the trigrams of every text that contains one of `texts`."""
    return _in_any_case(_of_any(texts)) if ignore_case else _of_any(texts)


def parts_of(pattern: str) -> list[str]:
    """Return the runs of two or more characters that every match of an RE2 expression contains.

    A case-insensitive expression has none.
    """
    try:
        items, any_case = _parsed(pattern)
        return [] if any_case else [run for run in _runs(items) if len(run) > 1]
    except (_NotUnderstood, RecursionError):
        return []


def parts_of_glob(pattern: str) -> list[tuple[str, str]]:
    """Return the literal parts of every match of a glob, each with its position: `prefix`, `suffix` or `contains`."""
    head, bracket, _ = pattern.partition("[")
    parts = re.split(r"[*?]+", head)
    if len(parts) == 1 and not bracket:
        return [(pattern, "prefix"), (pattern, "suffix")]
    # A class may contain the characters that end a part, so nothing is known after one.
    modes = ["prefix", *["contains"] * (len(parts) - 1)]
    if not bracket:
        modes[-1] = "suffix"
    return [(part, mode) for part, mode in zip(parts, modes, strict=True) if part]


def commonness(trigram: str) -> int:
    """Rate how common the characters of a trigram are: 0 is most common; only rare letters fall below `3 * UNUSUAL`."""
    return sum(_COMMON.get(char, UNUSUAL) for char in trigram)


# Parsing.


class _NotUnderstood(Exception):
    pass


Items = Sequence[tuple[object, Any]]
"""Operations of Python's parser, each with its argument."""

_ANY_CHARACTER = "[^a]"
"""Stands for anything that may match any non-empty text."""
_SPELLING = re.compile(
    r"""
      \\Q (?P<quoted> .*?) (?: \\E | \Z)
    | \\x\{ (?P<code> [0-9A-Fa-f]{1,8}) \}
    | (?P<property> \\[pP] (?: \{[^}]*+ (?: \} | \Z) | .))
    | (?P<several> \\[hHNRXC])
    | (?P<end> \\z)
    | \\.
    | (?P<class> \[ \^? \]? (?: \\. | \[: \^? \w+ :\] | [^\]\\])*+ (?: \] | \Z))
    | (?P<flags> \(\? [imsU]* (?: -[imsU]*)? \))
    | \( \? (?P<name> <[A-Za-z_]\w*>)
    | (?P<differs> \{, | \{[a-z] | \(\? [a-zA-Z]* x)
    """,
    re.VERBOSE | re.DOTALL,
)
_SETS_CASE = re.compile(r"\(\?[a-zA-Z]*i")
_ODD_CLASS = re.compile(r"\[|--|&&|~~|\|\||\\[pPhHNRX]|\\x\{")
"""In a class: a nested class, which RE2, `regex` and Python read differently, or syntax that only some of them know."""


def _parsed(pattern: str) -> tuple[Items, bool]:
    """Parse a pattern. Returns the items, and True if a part ignores case. Raises _NotUnderstood."""
    try:
        parsed: Items = _parser.parse(_SPELLING.sub(_spelt, pattern))
    except (re.error, OverflowError, ValueError) as error:
        raise _NotUnderstood from error
    return parsed, _SETS_CASE.search(pattern) is not None


def _spelt(match: re.Match[str]) -> str:
    """Translate a part of a pattern to Python's syntax."""
    kind = match.lastgroup
    if kind == "differs":
        # `{,2}` is plain text to RE2, and `{e}` allows errors to `regex`. Verbose mode is not supported.
        raise _NotUnderstood
    if kind == "quoted":
        return re.escape(match["quoted"])
    if kind == "code":
        return re.escape(chr(int(match["code"], 16)))
    if kind in ("property", "several") or (kind == "class" and _ODD_CLASS.search(match[0], 1)):
        return _ANY_CHARACTER
    if kind == "name":
        return f"(?P{match['name']}"
    return {"flags": "", "end": "\\Z"}.get(kind or "", match[0])


# For each part of an expression: the strings that it can match exactly, or None if there are too many, and a query that
# each match fulfils.
_Info = tuple[frozenset[str] | None, Query]
_NOTHING: _Info = (frozenset({""}), ANYTHING)
_SOMETHING: _Info = (None, ANYTHING)


def _sequence(items: Items) -> _Info:
    """Combine items that follow each other."""
    exact: frozenset[str] | None = frozenset({""})
    run = frozenset({""})
    query = ANYTHING
    for item in items:
        can_be, needs = _info(item)
        query = both(query, needs)
        if can_be is not None and len(run) * len(can_be) <= MAX_EXACT:
            run = frozenset(map("".join, itertools.product(run, can_be)))
            continue
        query = both(query, _of_any(run))
        exact = None
        ends = frozenset(text[-2:] for text in run)
        if can_be is None:
            run = frozenset({""})
        elif len(ends) * len(can_be) <= MAX_EXACT:
            run = frozenset(map("".join, itertools.product(ends, can_be)))
        else:
            run = can_be
    return (run, query) if exact is not None else (None, both(query, _of_any(run)))


def _info(item: tuple[object, Any]) -> _Info:
    op, argument = item
    match op, argument:
        case _constants.LITERAL, int(code):
            return frozenset({chr(code)}), ANYTHING
        case _constants.IN, list(members):
            return _class(members)
        case (_constants.SUBPATTERN, (_, _, _, inner)) | (_constants.ATOMIC_GROUP, inner):
            return _sequence(inner)
        case _constants.BRANCH, (_, list(branches)):
            return functools.reduce(_alternate, map(_sequence, branches))
        case (
            (_constants.MAX_REPEAT | _constants.MIN_REPEAT | _constants.POSSESSIVE_REPEAT),
            (int(least), int(most), inner),
        ):
            return _repeat(_sequence(inner), least, most)
        case ((_constants.AT | _constants.ASSERT | _constants.ASSERT_NOT), _):
            # Look-around is not part of the match. It could add requirements, but they are not needed.
            return _NOTHING
    # ANY, NOT_LITERAL, CATEGORY; a reference to a group may match empty text.
    return _SOMETHING


def _class(members: Items) -> _Info:
    chars: set[str] = set()
    for op, argument in members:
        match op, argument:
            case _constants.LITERAL, int(code):
                chars.add(chr(code))
            case _constants.RANGE, (int(low), int(high)) if high - low <= MAX_CLASS:
                chars.update(map(chr, range(low, high + 1)))
            case _:
                return _SOMETHING
    return _SOMETHING if len(chars) > MAX_CLASS else (frozenset(chars), ANYTHING)


def _alternate(a: _Info, b: _Info) -> _Info:
    """Combine two alternatives."""
    if a[0] is not None and b[0] is not None and len(a[0] | b[0]) <= MAX_EXACT:
        return a[0] | b[0], either(a[1], b[1])
    return None, either(_required(*a), _required(*b))


def _repeat(info: _Info, least: int, most: int) -> _Info:
    if least == 0:
        return _alternate(info, _NOTHING) if most == 1 else _SOMETHING
    exact, query = info
    if exact is not None and least == most and len(exact) ** least <= MAX_EXACT and least <= 4:
        return frozenset(map("".join, itertools.product(exact, repeat=least))), query
    return None, _required(*info)


def _required(exact: frozenset[str] | None, query: Query) -> Query:
    return query if exact is None else both(query, _of_any(exact))


def _runs(items: Items) -> list[str]:
    """Return the runs of literal text in order; alternatives have none."""
    found = [""]
    for op, argument in items:
        match op, argument:
            case _constants.LITERAL, int(code):
                found[-1] += chr(code)
            case _constants.SUBPATTERN, (_, _, _, inner):
                first, *rest = _runs(inner)
                found[-1] += first
                found += rest
            case ((_constants.MAX_REPEAT | _constants.MIN_REPEAT), (int(least), _, inner)) if least:
                # The first repetition continues the run before the group, and the last one begins the run after it.
                first, *rest = _runs(inner)
                found[-1] += first
                found += rest or [first]
            case _:
                found.append("")
    return found


# Queries.


def both(a: Query, b: Query) -> Query:
    """Return a query that requires both."""
    if a.op == "any" or a == b:
        return b
    return a if b.op == "any" else Query("and", a.trigrams | b.trigrams, _parts("and", a, b))


def either(a: Query, b: Query) -> Query:
    """Return a query that requires either."""
    if a.op == "any" or b.op == "any":
        return ANYTHING
    return a if a == b else Query("or", frozenset(), _parts("or", a, b))


def _parts(op: str, *queries: Query) -> tuple[Query, ...]:
    return tuple(dict.fromkeys(part for each in queries for part in (each.parts if each.op == op else (each,))))


def _of_text(text: str) -> Query:
    """Return a query for texts that contain this one."""
    windows = dict.fromkeys(text[at : at + 3] for at in range(len(text) - 2))
    usable = [window for window in windows if not any(char in "\0\n\r" for char in window)]
    return Query("and", frozenset(sorted(usable, key=commonness)[:_RAREST])) if usable else ANYTHING


def _of_any(texts: Collection[str]) -> Query:
    """Return a query for texts that contain one of these."""
    return functools.reduce(either, map(_of_text, sorted(texts))) if texts else ANYTHING


def _in_any_case(query: Query) -> Query:
    """Return a query that ignores the case of letters."""
    if query.op == "any":
        return query
    parts = [_in_any_case(part) for part in query.parts]
    if query.op == "or":
        return functools.reduce(either, parts)
    some = sorted(query.trigrams, key=lambda one: [min(_alike().get(char, {char})) for char in one])
    return functools.reduce(both, [*map(_cases, some), *parts], ANYTHING)


def _cases(trigram: str) -> Query:
    """Return a query for the case variants of a trigram; matches anything if they are not known."""
    if any(ord(char) > 0xFFFF and char.lower() + char.upper() != 2 * char for char in trigram):
        return ANYTHING
    alternatives = itertools.product(*(sorted(_alike().get(char, {char})) for char in trigram))
    return functools.reduce(either, (Query("and", frozenset({"".join(one)})) for one in alternatives))


@functools.cache
def _alike() -> dict[str, set[str]]:
    """Map each character of the first plane to the characters that equal it when case is ignored."""
    found: dict[str, set[str]] = {}
    # One of the two libraries treats this as `i`; Python says that it is two characters.
    pairs = [("i", "\u0130")]
    for code in _CASED:
        char = chr(code)
        pairs += ((char, other) for other in (char.lower(), char.upper(), char.casefold()) if len(other) == 1)
    for one, other in pairs:
        joined = found.get(one, {one}) | found.get(other, {other})
        if len(joined) > 1:
            found.update(dict.fromkeys(joined, joined))
    return found
