"""Traversal the document graph breadth-first, within limits that the result reports."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import apsw

from proto.errors import InvalidParams, OperationError
from proto.ops.decode import CALLS
from proto.ops.documents.reading import GraphEdge, GraphNode
from services.documents.code.nodes import CodeNode, Edge, file_node, symbol_node
from services.documents.code.relations import RELATIONS, RESOLVED, Relations
from services.documents.operations.find import DocumentsGraph, GraphAnswer
from services.documents.store import rows

FAN_OUT = 1000
TIME_LIMIT_S = 5.0
MAX_EDGES = 20_000


@dataclass(slots=True)
class Traversal:
    """The nodes and edges reached, by key, in order of distance."""

    nodes: dict[str, tuple[CodeNode, int]] = field(default_factory=dict)
    edges: dict[tuple[str, str, str], Edge] = field(default_factory=dict)
    cut: bool = False


def traverse(relations: Relations, origin: CodeNode, *, depth: int, limit: int, relation: str | None = None,
             out: bool = True, into: bool = False) -> Traversal:  # fmt: skip
    """Collect everything within `depth` steps.  Calls from and to the symbols of a file count as the file's own."""
    found = Traversal()
    give_up = time.monotonic() + TIME_LIMIT_S
    start = [origin]
    if relation == CALLS and origin.symbol is None and origin.doc is not None:
        start += [symbol_node(origin.doc, symbol) for symbol in relations.symbols(origin.doc.object)]
    began = {node.key for node in start}
    reached = [(node, 0) for node in start]
    for node, distance in reached:
        if distance == depth:
            break
        if time.monotonic() > give_up or len(found.edges) > MAX_EDGES:
            found.cut = True
            break
        edges = (one for one in _edges(relations, node, out=out, into=into) if relation in (None, one[0].relation))
        for count, (edge, other) in enumerate(edges):
            if count == FAN_OUT:
                found.cut = True
                break
            if other.key not in found.nodes and other.key != origin.key:
                if len(found.nodes) >= limit:
                    found.cut = True
                    continue
                found.nodes[other.key] = (other, distance + 1)
                if other.key not in began:
                    reached.append((other, distance + 1))
            found.edges.setdefault((edge.source.key, edge.relation, edge.target.key), edge)
    return found


def _edges(relations: Relations, node: CodeNode, *, out: bool, into: bool) -> Iterator[tuple[Edge, CodeNode]]:
    if out:
        yield from ((edge, edge.target) for edge in relations.out(node))
    if into:
        yield from ((edge, edge.source) for edge in relations.into(node))


def shown(db: apsw.Connection, node: CodeNode, distance: int) -> GraphNode:
    hash_ = path = None
    if node.doc is not None:
        path = node.doc.path
        hash_ = db.execute("SELECT lower(hex(hash)) FROM object WHERE id=?", (node.doc.object,)).get
    return GraphNode(
        node_key=node.key, type=node.type, label=node.label, distance=distance, hash=hash_, path=path,
        line=None if node.symbol is None else node.symbol.first,
    )  # fmt: skip


def presented(db: apsw.Connection, found: Traversal) -> tuple[list[GraphNode], list[GraphEdge]]:
    """Return the nodes, nearest first and stored ones before others, and the edges."""
    ordered = sorted(found.nodes.values(), key=lambda one: (one[1], one[0].doc is None))
    edges = [
        GraphEdge(
            source=edge.source.key, target=edge.target.key, relation=edge.relation,
            resolved=edge.certainty == RESOLVED if edge.certainty else None, certainty=edge.certainty or None,
        )
        for edge in found.edges.values()
    ]  # fmt: skip
    return [shown(db, node, distance) for node, distance in ordered], edges


def around(
    db: apsw.Connection, path: str, depth: int, limit: int = 200
) -> tuple[list[GraphNode], list[GraphEdge], bool]:
    """Return the nodes and edges related to a document in either direction, and whether they are truncated."""
    relations = Relations(db)
    doc = relations.paths.exact(path)
    assert doc is not None
    found = traverse(relations, file_node(doc), depth=depth, limit=limit, into=True)
    return *presented(db, found), found.cut


def answer(db: apsw.Connection, params: DocumentsGraph, degraded: list[str]) -> GraphAnswer:
    """Handle a graph query.  Raises InvalidParams, or OperationError if the node does not exist."""
    if params.list_types or params.list_type is not None:
        return _types(db, params, degraded)
    relation = None if params.relation is None else params.relation.upper()
    if relation is not None and relation not in RELATIONS:
        raise InvalidParams(
            f"parameter `relation`: unknown relation {params.relation!r}; there are: {', '.join(RELATIONS)}",
            field="relation",
        )
    relations = Relations(db)
    origin = _origin(db, relations, params)
    found = traverse(
        relations, origin, depth=params.depth, limit=params.limit, relation=relation, out=not params.reverse,
        into=params.reverse,
    )  # fmt: skip
    nodes, edges = presented(db, found)
    return GraphAnswer(
        origin=shown(db, origin, 0), connected_nodes=nodes, nodes=nodes, edges=edges,
        node_type_counts=dict(Counter(node.type for node in nodes)), total=len(nodes), truncated=found.cut,
        degraded=degraded,
    )  # fmt: skip


def _origin(db: apsw.Connection, relations: Relations, params: DocumentsGraph) -> CodeNode:
    if params.node_key is not None:
        node = relations.node(params.node_key)
        if node is None:
            raise OperationError(f"Node not found: {params.node_key[:300]}", field="node_key")
        return node
    if params.hash is None and params.name is None:
        raise InvalidParams("missing parameter: give `hash`, `name` or `node_key`", field="hash")
    document = rows.pick(db, hash_=params.hash, name=params.name)[0]
    doc = relations.paths.exact(document.path)
    assert doc is not None
    return file_node(doc)


def _types(db: apsw.Connection, params: DocumentsGraph, degraded: list[str]) -> GraphAnswer:
    counts: dict[str, int] = {"file": db.execute("SELECT count(*) FROM document").get}
    joined = "FROM idx.symbol JOIN document ON document.object = symbol.object"
    counts |= dict(db.execute(f"SELECT kind, count(*) {joined} GROUP BY kind ORDER BY 2 DESC, 1"))
    nodes: list[GraphNode] = []
    total = 0
    if params.list_type is not None:
        wanted = params.list_type.lower()
        if wanted not in counts:
            raise OperationError(
                f"no node has the type {params.list_type!r}; there are: {', '.join(counts)}", field="list_type"
            )
        total = counts[wanted]
        nodes = [shown(db, node, 0) for node in islice(_of_type(db, wanted), params.limit)]
    return GraphAnswer(
        origin=None, connected_nodes=nodes, nodes=nodes, edges=[], node_type_counts=counts, total=total,
        truncated=total > len(nodes), degraded=degraded,
    )  # fmt: skip


def _of_type(db: apsw.Connection, kind: str) -> Iterator[CodeNode]:
    relations = Relations(db)
    if kind == "file":
        yield from map(file_node, relations.paths.where("true ORDER BY path"))
    for (object_,) in db.execute("SELECT DISTINCT object FROM idx.symbol WHERE kind=? ORDER BY 1", (kind,)):
        for doc in relations.holders(object_):
            yield from (symbol_node(doc, one) for one in relations.symbols(object_) if one.kind == kind)
