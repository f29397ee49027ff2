"""Topics: clusters of notes by links, by meaning, or by both, with labels.

Links and meaning form one weighted graph: each note is joined to its nearest neighbours by cosine and to the notes it
is linked with. Communities are found by the Louvain method (Blondel et al., 2008) with a fixed seed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import apsw
import trio

from proto.errors import InvalidParams, Unavailable
from proto.ops.retrieve import Clustering, Grouping, Pair, Pairs, RetrieveClusters, RetrievePairs
from services.knowledge import nodes
from services.knowledge.ingest.index import COLLECTION
from services.knowledge.ingest.ingest import Ingest
from services.knowledge.notes.files import text_if_readable
from services.knowledge.notes.frontmatter import split
from services.knowledge.operations import notes as ops
from services.knowledge.search import labels
from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.runtime.roots import Roots

MAX_PAIRS = 100_000

NEAREST, LEAST_COSINE = 8, 0.3
"""Number of neighbours each note is joined to, and their minimum cosine."""

LINK_WEIGHT = 0.6
"""Weight of a link; two notes with the same text have 1."""

FREE_LINKS = 12
"""A note with more links is an index page, so its links weigh less."""

MAX_RESOLUTION = 2.5
"""Maximum resolution of modularity (Reichardt and Bornholdt, 2006); with hundreds of notes, communities have about ten.
"""

LABEL_NOTES, LABEL_NOTES_EACH = 300, 10
"""Maximum number of files read to label all clusters, and each.  Titles and tags of all notes are in the database."""

Links = Sequence[tuple[str, str]]
"""Pairs of notes linked in either direction, sorted, with sorted ids."""

Weights = Mapping[tuple[str, str], float]
"""Edge weights by pairs of sorted ids."""


class Topics:
    """The operation."""

    def __init__(self, database: Database, ingest: Ingest) -> None:
        self._database = database
        self._ingest = ingest
        self._working = trio.CapacityLimiter(2)

    @handles(ops.ClusterDocuments)
    async def cluster_documents(self, params: ops.ClusterDocuments, ctx: Context) -> ops.ClusterDocumentsResult:
        topics, kmeans = ops.ClusterMethod.TOPICS, ops.ClusterMethod.KMEANS
        method = params.method or (topics if params.count is None else kmeans)
        if params.count is not None and method is not kmeans:
            raise InvalidParams(
                f"parameter `count` only applies to `kmeans`; `{method}` finds the number itself", field="count"
            )
        degraded = self._ingest.degraded()
        found = await self._found(method, params, ctx)
        if found is not None and (waiting := found.vectors_waiting):
            if not found.groups:
                said = f"notes are clustered by vectors, and none of {waiting} have been made yet"
                raise Unavailable(said, retry_after_ms=1000)
            degraded.append(f"vector: {waiting} pieces are still waiting for vectors")
        notes, linked = await self._database.read(lambda db: (nodes.every(db), links(db)))

        def work() -> tuple[list[ops.Cluster], int]:
            check = trio.from_thread.check_cancelled
            if isinstance(found, Grouping):
                clusters = [[id_ for id_ in ids if id_ in notes] for ids in found.clusters]
            elif found is None:
                clusters = connected(notes, linked)
            else:
                clusters = communities(notes, joined(found.pairs, linked), check)
            least = params.min_size or (1 if method is kmeans else 2)
            clusters = [ids for ids in clusters if len(ids) >= least]
            made = _labelled(clusters, notes, self._ingest.roots, check)
            named = [
                ops.Cluster(
                    label=label or notes[ids[0]].title,
                    size=len(ids),
                    notes=[ops.ClusteredNote(id=id_, title=notes[id_].title) for id_ in ids[: params.notes_each]],
                )
                for ids, label in zip(clusters, made, strict=True)
            ]
            return named, sum(map(len, clusters))

        named, held = await trio.to_thread.run_sync(work, limiter=self._working)
        return ops.ClusterDocumentsResult(
            method=method, clusters=named, notes=held, left_out=len(notes) - held, degraded=degraded
        )

    async def _found(
        self, method: ops.ClusterMethod, params: ops.ClusterDocuments, ctx: Context
    ) -> Pairs | Grouping | None:
        """Get similar pairs or clusters from the search; None if the method uses only links."""
        if method is ops.ClusterMethod.LINKS:
            return None
        if method is ops.ClusterMethod.TOPICS:
            return await ctx.call(
                RetrievePairs(collection=COLLECTION, threshold=LEAST_COSINE, limit=MAX_PAIRS, nearest=NEAREST)
            )
        asked = Clustering(method.value)
        return await ctx.call(
            RetrieveClusters(collection=COLLECTION, method=asked, count=params.count, threshold=params.threshold)
        )


def _labelled(
    clusters: Sequence[Sequence[str]], notes: Mapping[str, nodes.IndexedNote], roots: Roots, check: Callable[[], None]
) -> list[str]:
    """Label clusters.  Blocks on the disk."""
    each = max(1, min(LABEL_NOTES_EACH, LABEL_NOTES // max(1, len(clusters))))

    def said(place: int, note: nodes.IndexedNote) -> labels.LabelSource:
        read = place < each and len(clusters) <= LABEL_NOTES
        # If the file is gone at the moment, the label is made from the others.
        text = text_if_readable(note.place, roots) if read else None
        return labels.LabelSource(note.title, note.tags, split((text or "")[: labels.READ_CHARS])[1])

    return labels.labels([(said(place, notes[id_]) for place, id_ in enumerate(ids)) for ids in clusters], check)


def links(db: apsw.Connection) -> Links:
    """Return the links between notes."""
    return list(
        db.execute(
            "SELECT DISTINCT min(src, dst), max(src, dst) FROM edge JOIN node AS one ON one.id = src"
            " JOIN node AS other ON other.id = dst WHERE src <> dst ORDER BY 1, 2"
        )
    )


def joined(near: Iterable[Pair], linked: Links) -> Weights:
    """Combine similar pairs and links into one weighted graph."""
    degree = Counter(id_ for pair in linked for id_ in pair)
    weights = defaultdict(float, {(each.first, each.second): each.similarity**2 for each in near})
    for one, other in linked:
        weights[one, other] += LINK_WEIGHT * min(1.0, FREE_LINKS / max(degree[one], degree[other]))
    return weights


def connected(ids: Collection[str], linked: Links) -> list[list[str]]:
    """Return connected components, largest first, each with its best-linked note first.

    A note without links is a component of its own.
    """
    import networkx  # imported late because it takes half a second

    graph = networkx.Graph(linked)
    graph.add_nodes_from(ids)
    return _ordered(networkx.connected_components(graph), dict(graph.degree()))


def communities(ids: Collection[str], weights: Weights, check: Callable[[], None]) -> list[list[str]]:
    """Return communities of the weighted graph, largest first, each with its most typical note first; deterministic.

    `check` is called now and then, and may raise to abort.
    """
    import networkx

    # Use numbers as nodes, because the iteration order of a set of strings differs between processes.
    names = sorted(ids)
    number = {id_: place for place, id_ in enumerate(names)}
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(names)))
    graph.add_weighted_edges_from(
        (number[one], number[other], weight)
        for (one, other), weight in sorted(weights.items())
        if one in number and other in number
    )
    found: list[set[int]] = []
    resolution = min(MAX_RESOLUTION, max(1.0, math.log10(len(names) or 1)))
    for level in networkx.community.louvain_partitions(graph, resolution=resolution, seed=0):
        check()
        found = level
    within: dict[str, float] = defaultdict(float)
    for cluster in found:
        for one, other, weight in graph.subgraph(cluster).edges(data="weight"):
            within[names[one]] += weight
            within[names[other]] += weight
    return _ordered(({names[node] for node in cluster} for cluster in found), within)


def _ordered(clusters: Iterable[set[str]], typical: Mapping[str, float]) -> list[list[str]]:
    lists = [sorted(cluster, key=lambda id_: (-round(typical.get(id_, 0.0), 9), id_)) for cluster in clusters]
    return sorted(lists, key=lambda ids: (-len(ids), ids[0]))
