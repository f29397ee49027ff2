"""The operation of `documents` that follows the graph of files and symbols."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import Family, Params, Role
from proto.ops.documents.reading import SERVICE, SURFACES, GraphEdge, GraphNode, Hash, Name

step = Family(SERVICE, role=Role.STEP, surfaces=SURFACES)


class GraphAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What is around a node, nearest first."""

    origin: Annotated[GraphNode, Meta(description="Where the walk began")] | None
    connected_nodes: list[GraphNode]
    nodes: Annotated[list[GraphNode], Meta(description="The same as connected_nodes")]
    edges: list[GraphEdge]
    node_type_counts: Annotated[dict[str, int], Meta(description="How many nodes there are of each type")]
    total: Annotated[int, Meta(description="Nodes in `connected_nodes`; with `list_type`, in the store")]
    truncated: Annotated[bool, Meta(description="Whether there is more than `limit` or the cap on one node admits")]
    degraded: Annotated[list[str], Meta(description="What is not in the graph yet")]


@step.read("documents_graph", deadline_s=30, step="graph")
class DocumentsGraph(Params[GraphAnswer], frozen=True, kw_only=True):
    """Follow the graph of files and what is in them: DEFINES, CALLS, IMPORTS and links, from a document or a symbol.

    Give `hash`, `name` or `node_key`; or list what there is with `list_types` or `list_type`.
    """

    hash: Hash | None = None
    name: Name | None = None
    node_key: (
        Annotated[str, Meta(min_length=1, max_length=8192, description="Key of a node, as answers have it")] | None
    ) = None
    list_types: Annotated[bool, Meta(description="Answer how many nodes there are of each type")] = False
    list_type: Annotated[str, Meta(min_length=1, max_length=64, description="Answer the nodes of this type")] | None = (
        None
    )
    relation: (
        Annotated[
            str, Meta(min_length=1, max_length=64, description="Only edges of this type: DEFINES, CALLS, IMPORTS, …")
        ]
        | None
    ) = None
    depth: Annotated[int, Meta(ge=1, le=5, description="Steps to follow")] = 1
    limit: Annotated[int, Meta(ge=1, le=10_000, description="Nodes to answer at most")] = 100
    reverse: Annotated[bool, Meta(description="Follow the edges that come in, instead of those that go out")] = False
