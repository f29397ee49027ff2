"""Following edges: neighbourhoods and shortest paths, on the numbers of nodes. All of it is bounded, and says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import apsw

MAX_SEEN = 1_000_000
"""Nodes that the search for a path looks at before it gives up."""

_CHECK_EVERY = 1000

Step = tuple[int, int, int]
"""Source, kind and target of an edge."""


@dataclass(slots=True)
class Walk:
    """The surroundings of a node: the depth of each node that was reached, and the edges on the way, in order.

    `cut` holds the hubs of which only some edges were followed; `full` is whether the limit on nodes was reached.
    """

    depth: dict[int, int]
    edges: dict[Step, None] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)
    full: bool = False


class Steps:
    """The edges at a node, of the kinds and in the directions asked for."""

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
        """At most `count` edges, with a share for each direction."""
        found: list[list[Step]] = [list(self._db.execute(f"{query} LIMIT ?", (node, count))) for query in self._queries]
        first, second = (*found, [])[:2]
        first = first[: max(count - count // 2, count - len(second))]
        return first + second[: count - len(first)]

    def count(self, node: int) -> int:
        return sum(self._db.execute(query, (node,)).get for query in self._counts)

    def back(self) -> Steps:
        """The same edges the other way round."""
        return Steps(self._db, out=self._into, into=self._out, kinds=self._kinds)


def around(start: int, steps: Steps, depth: int, fan_out: int, limit: int, check: Callable[[], None]) -> Walk:
    """All within `depth` steps of `start`, nearest first.

    Args:
        check: called now and then; may raise to end the walk.
    """
    walk = Walk({start: 0})
    # Those that are reached come to its end, and are walked from in turn.
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
    """A shortest path as its edges, in order; None where none was found, which `complete` makes sure."""

    edges: list[Step] | None
    complete: bool


class _Side:
    """One half of the search: from its end, with the edge by which each node was reached."""

    def __init__(self, start: int, steps: Steps) -> None:
        self.steps = steps
        self.by: dict[int, Step | None] = {start: None}
        self.distance = {start: 0}
        self.border = [start]
        self.depth = 0

    def widen(self, other: _Side, check: Callable[[], None]) -> int | None:
        """One level further; answers where the two sides met with the fewest edges."""
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
        """The edges from `node` to where this side began."""
        found: list[Step] = []
        while (edge := self.by[node]) is not None:
            found.append(edge)
            node = edge[0] if edge[2] == node else edge[2]
        return found


def shortest(source: int, target: int, steps: Steps, max_length: int, check: Callable[[], None]) -> Route:
    """A path with the fewest edges, by searching from both ends (Pohl, 1971), the smaller border first.

    Args:
        check: called now and then; may raise to end the search.
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
