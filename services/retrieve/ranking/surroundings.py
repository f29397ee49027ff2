"""Ranking of groups that follow each other: the turns of a conversation.

A turn often answers the turn before it without repeating its words, and a conversation on the subject of a query has
several turns on it. So the score of a group is raised by a share of its predecessor's, and by a share of the best of
the whole that both belong to. Scores below average lower nothing. The shares were chosen on LoCoMo (`docs/search.md`).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from proto.ops.retrieve import Filter, Surroundings
from services.retrieve.store import Snapshot

BEFORE = 0.25
"""Share of the score of the group before."""

WHOLE, COUNTED = 0.25, 3
"""Share of the sum of the best `COUNTED` scores in the same whole."""

MEANING = 0.8
"""Share that is left of the weight of the vectors, as turns are short: the model makes less of them than of a page."""


NEAR = 30
"""How many of the first hits by words, and by meaning, bring in the groups before and after them."""


class Around(NamedTuple):
    """The groups around the first hits of a search, by their numbers."""

    before: dict[int, int]
    """Each group's predecessor, if it is among those around."""
    pieces: dict[int, int]
    """The items with text to embed of the predecessors and successors, with their groups."""


def look_around(store: Snapshot, groups: Sequence[int], by: Surroundings, filters: Sequence[Filter]) -> Around:
    """Return what is around these groups. Only groups that the filters admit are added."""
    linked = store.linked(groups, by.follows)
    beside = {number for pair in linked for number in pair}.difference(groups)
    return Around(dict(linked), store.pieces_of([*beside], filters) if beside else {})


def raised(
    fused: Mapping[int, float], groups: Mapping[int, int], around: Around, wholes: Mapping[int, str]
) -> dict[int, float]:
    """Return the scores of all items, raised by those around them.

    Args:
        fused: scores centred on 0.
        groups: the items' groups.
        wholes: what each group is part of.
    """
    best: dict[int, float] = {}
    for item, score in fused.items():
        if (group := groups.get(item)) is not None:
            best[group] = max(score, best.get(group, 0.0))
    more = {group: BEFORE * best[before] for group, before in around.before.items() if before in best}
    members: dict[str, list[int]] = {}
    for group, whole in wholes.items():
        if group in best:
            members.setdefault(whole, []).append(group)
    for together in members.values():
        share = WHOLE * sum(heapq.nlargest(COUNTED, (best[group] for group in together)))
        for group in together:
            more[group] = more.get(group, 0.0) + share
    return {item: score + more.get(groups[item], 0.0) for item, score in fused.items() if item in groups}
