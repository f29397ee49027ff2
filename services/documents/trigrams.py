"""Which trigrams a text must have for a regular expression to match in it.

The method of Russ Cox, "Regular Expression Matching with a Trigram Index" (2012): of each part of the expression, the
strings that it can be exactly (while they are few), what it can begin and end with, and a boolean query of trigrams
that every match fulfils.  What is not understood is taken to match anything, so the query admits too much, never too
little.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

MAX_EXACT = 16
MAX_SET = 24
MAX_CLASS = 12
MAX_TERMS = 1000
"""Trigrams of a query; one with more is given up for anything."""
_RAREST, _SPREAD = 24, 8
"""Trigrams that are kept of one run of literal text, from which `thinned` chooses: those of rare characters, and some
of the rest of it."""
_COMMON = {char: -place for place, char in enumerate(" etaoinsrhldcumfpgwybvkxjqz")}
"""How common a character is, as in English; what is not here, as a capital letter, is about as rare as `v`."""
_UNUSUAL = -20
_CASED = (*range(0x3000), *range(0xA640, 0xAC00), *range(0xFF21, 0xFF5B))
"""Where the characters of the first plane lie that have upper and lower case."""
_WORTH = 20_000
"""So many entries of the index are gone through for one text that need not be looked at.  It takes as long as some
5,000 do; but trigrams of one pattern come together more often than by chance.
"""
_OVERLAP = 1 / 3
"""What is left of what a trigram excludes, as a power of its share, beside one that has two characters of the same
text: most pieces that have the one have the other."""
Share = Callable[[str], float]
"""The part, from 0 to 1, of all pieces of text that have a trigram."""


@dataclass(frozen=True, slots=True)
class Query:
    """`any` of it, or: all of `trigrams` and of `all_of`, or one of `one_of`."""

    op: str
    trigrams: frozenset[str] = frozenset()
    parts: tuple[Query, ...] = ()


ANYTHING = Query("any")


def both(a: Query, b: Query) -> Query:
    """What fulfils the two."""
    if a.op == "any":
        return b
    if b.op == "any" or a == b:
        return a
    if a.op == b.op == "and":
        return Query("and", a.trigrams | b.trigrams, tuple(dict.fromkeys((*a.parts, *b.parts))))
    if a.op == "and":
        return Query("and", a.trigrams, (*a.parts, b))
    if b.op == "and":
        return both(b, a)
    return Query("and", frozenset(), (a, b))


def either(a: Query, b: Query) -> Query:
    """What fulfils one of the two."""
    if a.op == "any" or b.op == "any":
        return ANYTHING
    if a == b:
        return a
    parts = (*(a.parts if a.op == "or" else (a,)), *(b.parts if b.op == "or" else (b,)))
    return Query("or", frozenset(), tuple(dict.fromkeys(parts)))


def of_text(text: str) -> Query:
    """What a text that holds this one has."""
    windows = dict.fromkeys(text[i : i + 3] for i in range(len(text) - 2))
    usable = [window for window in windows if not any(char in "\0\n\r" for char in window)]
    if len(usable) > _RAREST + _SPREAD:
        rarest = sorted(usable, key=_commonness)[:_RAREST]
        rest = [window for window in usable if window not in rarest]
        usable = rarest + [rest[round(i * (len(rest) - 1) / (_SPREAD - 1))] for i in range(_SPREAD)]
    return Query("and", frozenset(usable)) if usable else ANYTHING


def _commonness(trigram: str) -> int:
    return sum(_COMMON.get(char, _UNUSUAL) for char in trigram)


def of_any(texts: Iterable[str]) -> Query:
    """What a text that holds one of these has."""
    found: Query | None = None
    for text in texts:
        query = of_text(text)
        if query.op == "any":
            return ANYTHING
        found = query if found is None else either(found, query)
    return found or ANYTHING


@dataclass(slots=True)
class Info:
    """What is known of the strings that a part of the expression matches.

    `exact` is all of them, or None where they are too many; `prefix` and `suffix` what they can begin and end with.
    """

    empty: bool
    exact: frozenset[str] | None
    prefix: frozenset[str] = frozenset({""})
    suffix: frozenset[str] = frozenset({""})
    match: Query = field(default=ANYTHING)


def exactly(*texts: str) -> Info:
    return Info("" in texts, frozenset(texts))


def something(*, empty: bool) -> Info:
    return Info(empty, None)


def _loose(info: Info) -> Info:
    """The same without `exact`, its trigrams put into `match`."""
    if info.exact is None:
        return info
    match = both(info.match, of_any(info.exact)) if info.exact else info.match
    return _bounded(Info(info.empty, None, info.exact or frozenset({""}), info.exact or frozenset({""}), match))


def _bounded(info: Info) -> Info:
    prefix, suffix, match = info.prefix, info.suffix, info.match
    if any(len(text) > 2 for text in prefix):
        match = both(match, of_any(prefix))
        prefix = frozenset(text[:2] for text in prefix)
    if any(len(text) > 2 for text in suffix):
        match = both(match, of_any(suffix))
        suffix = frozenset(text[-2:] for text in suffix)
    if len(prefix) > MAX_SET:
        prefix = frozenset(text[:1] for text in prefix)
        prefix = prefix if len(prefix) <= MAX_SET else frozenset({""})
    if len(suffix) > MAX_SET:
        suffix = frozenset(text[-1:] for text in suffix)
        suffix = suffix if len(suffix) <= MAX_SET else frozenset({""})
    return Info(info.empty, None, prefix, suffix, match)


def _cross(a: frozenset[str], b: frozenset[str]) -> frozenset[str]:
    return frozenset(x + y for x in a for y in b)


def concat(a: Info, b: Info) -> Info:
    """One after the other."""
    if a.exact is not None and b.exact is not None and len(a.exact) * len(b.exact) <= MAX_EXACT:
        return Info(a.empty and b.empty, _cross(a.exact, b.exact), match=both(a.match, b.match))
    match = both(a.match, b.match)
    ends = a.exact if a.exact is not None else a.suffix
    begins = b.exact if b.exact is not None else b.prefix
    if len(ends) * len(begins) <= 4 * MAX_SET:
        match = both(match, of_any(_cross(ends, begins)))
    left, right = _loose(a), _loose(b)
    prefix = left.prefix
    if a.exact is not None:
        crossed = _cross(a.exact, right.prefix) if len(a.exact) * len(right.prefix) <= 4 * MAX_SET else a.exact
        prefix = crossed
    elif a.empty:
        prefix = left.prefix | right.prefix
    suffix = right.suffix
    if b.exact is not None:
        suffix = _cross(left.suffix, b.exact) if len(b.exact) * len(left.suffix) <= 4 * MAX_SET else b.exact
    elif b.empty:
        suffix = right.suffix | left.suffix
    match = both(match, both(left.match, right.match))
    return _bounded(Info(a.empty and b.empty, None, prefix, suffix, match))


def alternate(a: Info, b: Info) -> Info:
    """One or the other."""
    if a.exact is not None and b.exact is not None and len(a.exact | b.exact) <= MAX_EXACT:
        return Info(a.empty or b.empty, a.exact | b.exact, match=either(a.match, b.match))
    left, right = _loose(a), _loose(b)
    return _bounded(
        Info(
            a.empty or b.empty,
            None,
            left.prefix | right.prefix,
            left.suffix | right.suffix,
            either(left.match, right.match),
        )
    )


def repeat(info: Info, least: int, most: int | None) -> Info:
    """So many times."""
    if least == 0:
        return alternate(info, exactly("")) if most == 1 else something(empty=True)
    if least == most and least <= 4:
        whole = info
        for _ in range(least - 1):
            whole = concat(whole, info)
        return whole
    once = _loose(info)
    return Info(info.empty, None, once.prefix, once.suffix, once.match)


def final(info: Info) -> Query:
    """What a text must have for a match to be in it."""
    return _loose(info).match


def in_any_case(query: Query) -> Query:
    """What a text has that would fulfil the query if no regard were paid to the case of letters."""
    if query.op == "any":
        return query
    parts = [in_any_case(part) for part in query.parts]
    if query.op == "or":
        return functools.reduce(either, parts)
    some = sorted(query.trigrams, key=lambda one: [min(_alike().get(char, {char})) for char in one])
    return functools.reduce(both, [*map(_cases, some), *parts], ANYTHING)


def _cases(trigram: str) -> Query:
    """One of the trigrams that are this one without regard to case; anything where that is not known."""
    if any(ord(char) > 0xFFFF and char.lower() + char.upper() != 2 * char for char in trigram):
        return ANYTHING
    alternatives = itertools.product(*(sorted(_alike().get(char, {char})) for char in trigram))
    return functools.reduce(either, (Query("and", frozenset({"".join(one)})) for one in alternatives))


@functools.cache
def _alike() -> dict[str, set[str]]:
    """The characters that are the same without regard to case, by each of them; not those beyond the first plane."""
    found: dict[str, set[str]] = {}
    # One of the two libraries takes this to be an `i`; Python says that it is two characters.
    pairs = [("i", "\u0130")]
    for code in _CASED:
        char = chr(code)
        pairs += ((char, other) for other in (char.lower(), char.upper(), char.casefold()) if len(other) == 1)
    for one, other in pairs:
        joined = found.get(one, {one}) | found.get(other, {other})
        if len(joined) > 1:
            found.update(dict.fromkeys(joined, joined))
    return found


def terms(query: Query) -> frozenset[str]:
    """The trigrams that it names."""
    return query.trigrams.union(*map(terms, query.parts))


def commonness(trigram: str) -> float:
    """From 0 to 1, how common its characters are: which of two trigrams is rarer, where nothing else tells."""
    return math.exp2(max(_commonness(trigram), 3 * _UNUSUAL) / 6)


def fts5(query: Query, share: Share = commonness) -> str | None:
    """As an FTS5 expression of the trigrams that are worth looking for; None where anything may match."""
    query = thinned(_factored(query), share)
    if query.op == "any" or _size(query) > MAX_TERMS:
        return None
    return _expression(query)


def _size(query: Query) -> int:
    return len(query.trigrams) + sum(map(_size, query.parts))


def thinned(query: Query, share: Share, left: float = 1.0) -> Query:
    """The same with fewer trigrams: the rarest, and of the others what excludes so much that it saves more time, in
    texts not looked at, than the index takes to find it.

    Args:
        left: the part of all pieces that what is asked for beside this query admits.
    """
    if query.op != "and":
        parts = tuple(thinned(part, share, left) for part in query.parts)
        return Query(query.op, query.trigrams, tuple(dict.fromkeys(parts)))
    rest = [
        (part, _admits(part, share), _cost(part, share) / _WORTH, _run(part))
        for part in (*(Query("and", frozenset({trigram})) for trigram in sorted(query.trigrams)), *query.parts)
    ]
    kept: list[Query] = []
    beside: set[str] = set()
    while rest:
        gains = [left * (1 - _beside(admits, run, beside)) - cost for _, admits, cost, run in rest]
        best = max(range(len(rest)), key=gains.__getitem__)
        if gains[best] <= 0 and kept:
            break
        part, admits, _, run = rest.pop(best)
        kept.append(thinned(part, share, left) if part.parts else part)
        left *= _beside(admits, run, beside)
        beside |= run
    plain = [part.trigrams for part in kept if not part.parts]
    return Query("and", frozenset().union(*plain), tuple(part for part in kept if part.parts))


def _beside(admits: float, run: set[str], others: set[str]) -> float:
    return admits if run.isdisjoint(others) else admits**_OVERLAP


def _admits(query: Query, share: Share) -> float:
    """The part of all pieces that fulfils it, at most."""
    if query.op == "or":
        return min(1.0, sum(_admits(part, share) for part in query.parts))
    return min([*map(share, query.trigrams), *(_admits(part, share) for part in query.parts)], default=1.0)


def _cost(query: Query, share: Share) -> float:
    """What it takes to find what fulfils it, in entries of the index for each piece in it."""
    return sum(map(share, query.trigrams)) + sum(_cost(part, share) for part in query.parts)


def _run(query: Query) -> set[str]:
    """The pairs of characters by which one sees that two trigrams come from the same run of text."""
    some = {trigram.lower() for trigram in terms(query)}
    return {pair for trigram in some for pair in (trigram[:2], trigram[1:])} if len(some) == 1 else set()


def _factored(query: Query) -> Query:
    """The same, where trigrams that all alternatives have in common are looked for once."""
    parts = tuple(map(_factored, query.parts))
    if query.op != "or":
        return functools.reduce(both, parts, Query(query.op, query.trigrams))
    common = frozenset.intersection(*(part.trigrams for part in parts))
    if not common:
        return Query("or", frozenset(), parts)
    rests = [Query("and", part.trigrams - common, part.parts) for part in parts]
    if not all(rest.trigrams or rest.parts for rest in rests):
        # One of them asks for no more than that.
        return Query("and", common)
    return Query("and", common, (Query("or", frozenset(), tuple(rests)),))


def _expression(query: Query) -> str:
    quoted = [f'"{trigram.replace(chr(34), chr(34) * 2)}"' for trigram in sorted(query.trigrams)]
    inner = [_expression(part) for part in query.parts]
    joined = (" AND " if query.op == "and" else " OR ").join([*quoted, *inner])
    return f"({joined})"
