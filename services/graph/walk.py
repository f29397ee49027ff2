"""Follows edges between node numbers: neighbourhoods and shortest paths. Everything is bounded, and truncation
reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import apsw

MAX_SEEN = 1_000_000
"""Number of nodes after which the search for a path gives up."""

_CHECK_EVERY = 1000

Step = tuple[int, int, int]
"""Source, kind and target of an edge."""


@dataclass(slots=True)
class Walk:
    """The neighbourhood of a node: the depth of each node reached, and the edges followed, in order.

    `cut` contains the hubs of which only some edges were followed; `full` is True if the limit of nodes was reached.
    """

    depth: dict[int, int]
    edges: dict[Step, None] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)
    full: bool = False


class Steps:
    """The edges at a node, limited to certain kinds and directions."""

    def __init__(self, db: apsw.Connection, *, out: bool, into: bool, kinds: Sequence[int] | None) -> None:
        self._db, self._out, self._into, self._kinds = db, out, into, kinds
        only = "" if kinds is None else f" AND kind IN ({', '.join(map(str, kinds))})"
        self._queries = [
            *([f"SELECT src, kind, dst FROM edge WHERE src=?{only}"] if out else []),
            *([f"SELECT src, kind, dst FROM edge INDEXED BY edge_reverse WHERE dst=?{only}"] if into else []),
        ]
        self._counts = [query.replace("src, kind, dst", "count(*)", 1) for query in self._queries]

    def at(self, node: int) -> Iterator[Step]:
        for query in self._queries:
            yield from self._db.execute(query, (node,))

    def first(self, node: int, count: int) -> list[Step]:
        """Return at most `count` edges, with a share for each direction."""
        found: list[list[Step]] = [list(self._db.execute(f"{query} LIMIT ?", (node, count))) for query in self._queries]
        first, second = (*found, [])[:2]
        first = first[: max(count - count // 2, count - len(second))]
        return first + second[: count - len(first)]

    def count(self, node: int) -> int:
        return sum(self._db.execute(query, (node,)).get for query in self._counts)

    def back(self) -> Steps:
        """Return the same edges in the opposite direction."""
        return Steps(self._db, out=self._into, into=self._out, kinds=self._kinds)


def around(start: int, steps: Steps, depth: int, fan_out: int, limit: int, check: Callable[[], None]) -> Walk:
    """Return everything within `depth` steps of `start`, nearest first.

    Args:
        check: called periodically; may raise to end the walk.
    """
    walk = Walk({start: 0})
    # Nodes reached are appended, and visited in turn.
    for index, node in enumerate(border := [start]):
        if walk.depth[node] == depth:
            break
        found = steps.first(node, fan_out + 1)
        if index % _CHECK_EVERY == 0:
            check()
        if len(found) > fan_out:
            walk.cut.append(node)
            del found[fan_out:]
        for edge in found:
            other = edge[2] if edge[0] == node else edge[0]
            if other not in walk.depth:
                if len(walk.depth) > limit:
                    walk.full = True
                    continue
                walk.depth[other] = walk.depth[node] + 1
                border.append(other)
            walk.edges[edge] = None
    return walk


class Route(NamedTuple):
    """The edges of a shortest path, in order; None if none was found, which is certain if `complete`."""

    edges: list[Step] | None
    complete: bool


class _Side:
    """One half of the search: its start, and the edge by which each node was reached."""

    def __init__(self, start: int, steps: Steps) -> None:
        self.steps = steps
        self.by: dict[int, Step | None] = {start: None}
        self.distance = {start: 0}
        self.border = [start]
        self.depth = 0

    def widen(self, other: _Side, check: Callable[[], None]) -> int | None:
        """Advance by one level. Returns the node at which both sides meet with the fewest edges, or None."""
        self.depth += 1
        following: list[int] = []
        best: int | None = None
        for index, node in enumerate(self.border):
            if index % _CHECK_EVERY == 0:
                check()
            for edge in self.steps.at(node):
                reached = edge[2] if edge[0] == node else edge[0]
                if reached in self.by:
                    continue
                self.by[reached] = edge
                self.distance[reached] = self.depth
                following.append(reached)
                if reached in other.by and (best is None or other.distance[reached] < other.distance[best]):
                    best = reached
        self.border = following
        return best

    def back(self, node: int) -> list[Step]:
        """Return the edges from `node` back to the start of this side."""
        found: list[Step] = []
        while (edge := self.by[node]) is not None:
            found.append(edge)
            node = edge[0] if edge[2] == node else edge[2]
        return found


def shortest(source: int, target: int, steps: Steps, max_length: int, check: Callable[[], None]) -> Route:
    """Find a path with the fewest edges, searching from both ends (Pohl, 1971), the smaller border first.

    Args:
        check: called periodically; may raise to end the search.
    """
    if source == target:
        return Route([], complete=True)
    one, other = _Side(source, steps), _Side(target, steps.back())
    while one.depth + other.depth < max_length:
        side, far = (one, other) if len(one.border) <= len(other.border) else (other, one)
        if not side.border:
            return Route(None, complete=True)
        if len(one.by) + len(other.by) > MAX_SEEN:
            return Route(None, complete=False)
        met = side.widen(far, check)
        if met is not None:
            return Route([*reversed(one.back(met)), *other.back(met)], complete=True)
    return Route(None, complete=True)
