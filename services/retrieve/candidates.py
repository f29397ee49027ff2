"""What the stages of a search found, brought to one piece of each group."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import apsw

from services.retrieve.store import Found


class Candidates(NamedTuple):
    """The best piece of each group, best first; of as many of them as are wanted, what is told of a hit."""

    best: list[tuple[int, float]]
    found: dict[int, Found]
    cosines: dict[int, float]
    held: dict[int, list[str]]
    """Words of the query that a piece holds, of the first of them."""


def telling(
    best: list[tuple[int, float]], groups: Mapping[int, int], lexical: Sequence[tuple[int, float]], bare: Set[int]
) -> list[tuple[int, float]]:
    """`best`, where a piece that is never embedded (`bare`: front matter) steps back for another piece of its group.

    It is short, and the title counts for each piece: by that alone it would often be the best of its group. Where the
    words are half as well met elsewhere in the group, that is what a reader wants to see.
    """
    words = dict(lexical)
    fullest: dict[int, int] = {}
    for item, _ in lexical:
        if item in groups and item not in bare:
            fullest.setdefault(groups[item], item)
    told: list[tuple[int, float]] = []
    for item, score in best:
        other = fullest.get(groups[item]) if item in bare else None
        told.append((item if other is None or words[other] < words.get(item, 0.0) / 2 else other, score))
    return told


def best_of_groups(fused: Mapping[int, float], group_of: Mapping[int, int]) -> list[tuple[int, float]]:
    """The best item of each group, best first; items that are gone by now are left out."""
    best: list[tuple[int, float]] = []
    seen: set[int] = set()
    for item_id, score in sorted(fused.items(), key=lambda pair: (-pair[1], pair[0])):
        group = group_of.get(item_id)
        if group is not None and group not in seen:
            seen.add(group)
            best.append((item_id, score))
    return best


def beginnings(db: apsw.Connection, ids: Sequence[int], chars: int) -> list[str]:
    """The first so many characters of the text of each of these items."""
    query = "SELECT substr(text, 1, ?) FROM items WHERE item_id IN (SELECT value FROM json_each(?))"
    return [text for (text,) in db.execute(query, (chars, json.dumps(list(ids))))]
