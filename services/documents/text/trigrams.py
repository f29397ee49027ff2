"""Which of a pattern's trigrams are worth asking the index for, and how FTS5 is asked for them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from services.runtime import literals
from services.runtime.literals import Query, both

MAX_TERMS = 1000
"""Trigrams of a query; one with more admits anything."""
_WORTH = 20_000
"""Reading so many entries of the index costs as much as looking through one text.  It takes as long as some 5,000 do;
but trigrams of one pattern come together more often than by chance.
"""
_OVERLAP = 1 / 3
"""What is left of what a trigram excludes, as a power of its share, beside one that has two characters of the same
text: most pieces that have the one have the other."""
Share = Callable[[str], float]
"""The part, from 0 to 1, of all pieces of text that have a trigram."""


def terms(query: Query) -> frozenset[str]:
    """The trigrams that it names."""
    return query.trigrams.union(*map(terms, query.parts))


def commonness(trigram: str) -> float:
    """From 0 to 1, how common its characters are: which of two trigrams is rarer, where nothing else tells."""
    return math.exp2(max(literals.commonness(trigram), 3 * literals.UNUSUAL) / 6)


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
