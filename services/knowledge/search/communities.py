"""Communities of notes: by their links, by the meaning of their texts, or by both together.

Together they are one weighted graph: each note is joined with its nearest others (by cosine), and with those that it
links with. Its communities are those of Louvain's method (Blondel and others, 2008), with the same dice every time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import apsw

from proto.ops.retrieve import Pair

NEAREST, LEAST_COSINE = 8, 0.3
"""Notes that each one is joined with, and how near they have to be."""

LINK_WEIGHT = 0.6
"""Of a link, where two notes of the same text have 1."""

FREE_LINKS = 12
"""A note of more links is an index of many things: its links weigh less."""

MOST_RESOLUTION = 2.5
"""Of modularity (Reichardt and Bornholdt, 2006), in a folder of hundreds: communities of some ten notes."""

Weights = dict[tuple[str, str], float]
"""Of edges, by their two notes in the order of ids."""


def links(db: apsw.Connection) -> tuple[list[str], list[tuple[str, str]]]:
    """Ids of all notes, and pairs of those that are linked in either direction, both in the order of ids."""
    ids = [id_ for (id_,) in db.execute("SELECT id FROM node ORDER BY id")]
    known = set(ids)
    rows = db.execute("SELECT DISTINCT min(src, dst), max(src, dst) FROM edge WHERE dst IS NOT NULL AND src <> dst")
    return ids, sorted((one, other) for one, other in rows if one in known and other in known)


def joined(near: Iterable[Pair], linked: Sequence[tuple[str, str]]) -> Weights:
    """The graph of both."""
    degree: dict[str, int] = defaultdict(int)
    for pair in linked:
        for id_ in pair:
            degree[id_] += 1
    weights: Weights = defaultdict(float)
    for each in near:
        weights[each.first, each.second] = each.similarity**2
    for one, other in linked:
        weights[one, other] += LINK_WEIGHT * min(1.0, FREE_LINKS / max(degree[one], degree[other]))
    return dict(weights)


def by_links(ids: Sequence[str], linked: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Connected components; the best linked note of each first, the largest first.

    A note without links is a component of its own.
    """
    import networkx  # not before it is needed: it takes half a second

    graph = networkx.Graph()
    graph.add_nodes_from(ids)
    graph.add_edges_from(linked)
    return _ordered(networkx.connected_components(graph), dict(graph.degree()))


def by_both(ids: Sequence[str], weights: Weights, checkpoint: Callable[[], None]) -> list[list[str]]:
    """Communities of the weighted graph, always the same; the most typical note of each first, the largest first.

    `checkpoint` is called now and then, and may raise to end this early.
    """
    import networkx

    # By numbers: the order in which a set of names is walked differs from process to process.
    number = {id_: place for place, id_ in enumerate(ids)}
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(ids)))
    graph.add_weighted_edges_from(
        (number[one], number[other], weight)
        for (one, other), weight in sorted(weights.items())
        if one in number and other in number
    )
    found: list[set[int]] = []
    resolution = min(MOST_RESOLUTION, max(1.0, math.log10(len(ids) or 1)))
    for level in networkx.community.louvain_partitions(graph, resolution=resolution, seed=0):
        checkpoint()
        found = level
    within: dict[str, float] = defaultdict(float)
    for cluster in found:
        for one, other, weight in graph.subgraph(cluster).edges(data="weight"):
            within[ids[one]] += weight
            within[ids[other]] += weight
    return _ordered(({ids[node] for node in cluster} for cluster in found), within)


def _ordered(clusters: Iterable[set[str]], typical: Mapping[str, float]) -> list[list[str]]:
    lists = [sorted(cluster, key=lambda id_: (-round(typical.get(id_, 0.0), 9), id_)) for cluster in clusters]
    return sorted(lists, key=lambda ids: (-len(ids), ids[0]))
