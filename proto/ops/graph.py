"""Operations of `graph`: nodes and typed edges of every corpus, followed in both directions.

A corpus (such as `notes`) states all edges that start at each of its nodes; a node that is only pointed to exists too,
but is not `known`. All corpora share one graph: an edge may lead from one to another.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Role, SaidIfAny

internal = Family("graph", role=Role.INTERNAL, callers=("documents", "knowledge", OPERATOR))
tool = Family("graph", surfaces=("knowledge",))

NOTES = "notes"

MAX_WAIT_S = 600

_CORPUS = "The corpus of a node: a small letter, then small letters, digits, _ and -, 64 in all at most"
Corpus = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}$", description=_CORPUS)]
NodeName = Annotated[str, Meta(min_length=1, max_length=1024, description="Id of a node, unique in its corpus")]
Kind = Annotated[str, Meta(min_length=1, max_length=256, description="Type of an edge")]

# Feeding


class Outgoing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An edge from the node that states it."""

    kind: Kind
    target: NodeName
    corpus: Annotated[Corpus | None, Meta(description="Of the target, if not the node's own")] = None


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """A node and all edges that start there."""

    id: NodeName
    label: Annotated[str, Meta(max_length=1024, description="Its display name")] = ""
    source: Annotated[str, Meta(max_length=8192, description="Where it is stated: a file or address")] = ""
    edges: Annotated[list[Outgoing], Meta(description="All of them; missing ones are removed")] = []


class FeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """The change, already on disk."""

    epoch: Annotated[str, Meta(description="Name of this database; a new one must be fed from the start")]
    nodes: Annotated[int, Meta(description="Nodes set or removed")]
    edges_added: int
    edges_removed: int


@internal.write("graph_put", idempotent=True, deadline_s=60)
class GraphPut(Params[FeedResult], frozen=True, kw_only=True):
    """Set nodes with all edges that start there, in one transaction."""

    corpus: Corpus
    nodes: Annotated[list[NodeState], Meta(min_length=1, max_length=4096, description="The nodes to set")]
    behind: Annotated[int, Meta(ge=0, description="Nodes of the corpus not yet put or removed")] = 0


@internal.destroy("graph_delete", idempotent=True, deadline_s=60)
class GraphDelete(Params[FeedResult], frozen=True, kw_only=True):
    """Remove nodes and the edges that start there; a node that others point to stays, but is no longer known."""

    corpus: Corpus
    nodes: Annotated[list[NodeName], Meta(min_length=1, max_length=4096, description="Ids; unknown ones are ignored")]
    behind: Annotated[int, Meta(ge=0, description="Nodes of the corpus not yet put or removed")] = 0


class GraphDatabase(msgspec.Struct, frozen=True, kw_only=True):
    """The database that the graph is kept in."""

    epoch: Annotated[str, Meta(description="Its name; a new one must be fed from the start")]


@internal.write("graph_epoch", idempotent=False, deadline_s=MAX_WAIT_S + 15)
class GraphEpoch(Params[GraphDatabase], frozen=True, kw_only=True):
    """Wait until the epoch differs from `known`: a damaged graph restarts empty and must be fed again."""

    known: Annotated[str, Meta(description="The epoch that has been fed; empty: none yet")] = ""
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S, description="How long to wait for another one")] = 0.0


class NodeNames(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of known nodes, sorted."""

    epoch: str
    ids: list[str]
    more: Annotated[bool, Meta(description="Whether more follow")]


@internal.read("graph_nodes", deadline_s=30)
class GraphNodes(Params[NodeNames], frozen=True, kw_only=True):
    """List the ids of a corpus's known nodes, page by page, so that the corpus can compare them with its own."""

    corpus: Corpus
    after: Annotated[str, Meta(description="Ids greater than this one")] = ""
    limit: Annotated[int, Meta(ge=0, le=10000, description="Ids at most")] = 10000


# Queries


class Direction(enum.StrEnum):
    """Which edges to follow from a node."""

    OUT = "out"
    IN = "in"
    BOTH = "both"


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was reached."""

    id: str
    corpus: str
    label: Annotated[str, Meta(description="Its title, or its id if it has none")]
    depth: Annotated[int, Meta(description="Steps from the start")]
    known: Annotated[bool, Meta(description="False if edges point to it but no corpus has it")]


class Edge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An edge that was followed; the corpora of its ends are given if they differ from the requested one."""

    source: str
    type: str
    target: str
    stated_in: Annotated[str, Meta(description="A file (of a note relative to its root), or an address")] = ""
    source_corpus: str | None = None
    target_corpus: str | None = None


class Hub(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose edges were not all followed."""

    id: str
    corpus: str
    edges: Annotated[int, Meta(description="Its number of edges of the requested kinds and directions")]
    followed: int


class Neighbourhood(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes within some steps of a node, nearest first."""

    nodes: Annotated[list[Node], Meta(description="Nodes reached, without the start")]
    edges: list[Edge]
    hubs: Annotated[
        list[Hub], Meta(description="Nodes with more edges than `fan_out`; the rest were not followed"), SaidIfAny
    ]
    complete: Annotated[bool, Meta(description="Whether this is all: no hub was cut and `limit` was not reached")]
    degraded: Annotated[list[str], Meta(description="What is not in the graph yet"), SaidIfAny]


Kinds = Annotated[list[Kind], Meta(max_length=64, description="Only edges of these types, in either case")]


@tool.read("graph_neighbors", deadline_s=30)
class GraphNeighbors(Params[Neighbourhood], frozen=True, kw_only=True):
    """Graph: all nodes within some steps of one, over links of any kind, in both directions. Direct links of a note:
    notes_links."""

    id: NodeName
    depth: Annotated[int, Meta(ge=1, le=10, description="Steps to follow")] = 1
    direction: Annotated[Direction, Meta(description="Edges from here (out), to here (in), or both")] = Direction.BOTH
    kinds: Kinds = []
    corpus: Annotated[Corpus, Meta(description="The corpus of `id`")] = NOTES
    fan_out: Annotated[int, Meta(ge=1, le=10000, description="Edges to follow from one node")] = 100
    limit: Annotated[int, Meta(ge=1, le=10000, description="Nodes at most")] = 1000


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """A shortest path, from the first node to the last."""

    found: bool
    length: Annotated[int | None, Meta(description="Its number of edges")]
    nodes: list[Node]
    edges: list[Edge]
    complete: Annotated[bool, Meta(description="If nothing was found: certainly no path within `max_length`")]
    degraded: Annotated[list[str], Meta(description="What is not in the graph yet"), SaidIfAny]


@tool.read("graph_path", deadline_s=30)
class GraphPath(Params[Path], frozen=True, kw_only=True):
    """Graph: a shortest path between two nodes: how two notes, or a file and a symbol, are connected."""

    source: NodeName
    target: NodeName
    direction: Annotated[Direction, Meta(description="Edges forwards (out), backwards (in), or both")] = Direction.BOTH
    kinds: Kinds = []
    corpus: Annotated[Corpus, Meta(description="The corpus of `source`")] = NOTES
    target_corpus: Annotated[Corpus | None, Meta(description="The corpus of `target`, if different")] = None
    max_length: Annotated[int, Meta(ge=1, le=50, description="Edges at most")] = 10


class KindCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of edges of a type."""

    type: str
    edges: int


class CorpusCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of nodes of a corpus."""

    corpus: str
    nodes: Annotated[int, Meta(description="Nodes stated by the corpus")]
    unknown: Annotated[int, Meta(description="Names only pointed to")]
    behind: Annotated[int, Meta(description="Nodes not in the graph yet")]


class GraphStatsResult(msgspec.Struct, frozen=True, kw_only=True):
    """The graph in numbers."""

    nodes: int
    edges: int
    corpora: list[CorpusCount]
    kinds: Annotated[list[KindCount], Meta(description="The most frequent first")]
    hubs: Annotated[list[Hub], Meta(description="The ten nodes with the most edges, both directions")]
    size_bytes: int
    rebuilt: Annotated[bool, Meta(description="Whether the database was damaged and is being rebuilt")]


@tool.read("graph_stats", deadline_s=60)
class GraphStats(Params[GraphStatsResult], frozen=True, kw_only=True):
    """Graph in numbers: nodes and edges by corpus and type, and the nodes with the most links."""
