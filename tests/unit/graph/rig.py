"""A graph in memory, and answers found by looking at every edge."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import apsw

from proto.ops.graph import NodeState, Outgoing
from services.graph import tables

Edges = set[tuple[str, str, str]]


def database(path: Path) -> apsw.Connection:
    """A connection to a new graph, in autocommit."""
    tables.open_database(path).close()
    return apsw.Connection(str(path))


def state(id_: str, *edges: str, kind: str = "CITES", label: str = "") -> NodeState:
    """A node with edges of one kind."""
    return NodeState(id=id_, label=label, edges=[Outgoing(kind=kind, target=target) for target in edges])


def states(edges: Iterable[tuple[str, str, str]], ids: Iterable[str]) -> list[NodeState]:
    """Nodes that state these edges."""
    by_source: dict[str, list[Outgoing]] = {id_: [] for id_ in ids}
    for source, kind, target in edges:
        by_source[source].append(Outgoing(kind=kind, target=target))
    return [NodeState(id=id_, edges=out) for id_, out in by_source.items()]


def chance_graph(chance: random.Random, count: int, edges: int) -> Edges:
    ids = [f"n{n}" for n in range(count)]
    return {(chance.choice(ids), chance.choice("AB"), chance.choice(ids)) for _ in range(edges)}


def stored(db: apsw.Connection) -> Edges:
    """All edges by name."""
    return set(
        db.execute(
            "SELECT a.id, kind.name, b.id FROM edge JOIN node a ON a.node_id = src JOIN node b ON b.node_id = dst"
            " JOIN kind ON kind_id = kind"
        )
    )


def distances(edges: Edges, start: str, *, out: bool, into: bool, kinds: str = "AB") -> dict[str, int]:
    """Steps to every node that can be reached."""
    around: dict[str, set[str]] = {}
    for source, kind, target in edges:
        if kind in kinds:
            if out:
                around.setdefault(source, set()).add(target)
            if into:
                around.setdefault(target, set()).add(source)
    found, border = {start: 0}, {start}
    while border:
        border = {other for node in border for other in around.get(node, ())} - found.keys()
        depth = max(found.values()) + 1
        found.update(dict.fromkeys(border, depth))
    return found
