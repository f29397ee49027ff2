"""Builds answers: nodes and edges with their names, and statistics of the graph."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import apsw

from proto.errors import InvalidParams
from proto.ops.graph import CorpusCount, Direction, Edge, GraphStatsResult, Hub, KindCount, Node
from services.graph.walk import Step, Steps


class StoredNode(NamedTuple):
    """A node as stored."""

    corpus: str
    id: str
    known: bool
    label: str
    source: str


def find(db: apsw.Connection, corpus: str, id_: str) -> int | None:
    """Return the number of a node."""
    number: int | None = db.execute(
        "SELECT node_id FROM node JOIN corpus USING (corpus_id) WHERE corpus.name=? AND node.id=?", (corpus, id_)
    ).get
    return number


def steps(db: apsw.Connection, direction: Direction, kinds: Sequence[str]) -> Steps:
    """Return the edges that `direction` and `kinds` admit.

    Raises:
        InvalidParams: one of the kinds has no edges.
    """
    known = _kinds(db)
    wanted = {name.casefold() for name in kinds}
    if strange := wanted - {name.casefold() for name in known.values()}:
        there = ", ".join(sorted(known.values())) or "none yet"
        raise InvalidParams(
            f"parameter `kinds`: no edges of type {min(strange)[:80]!r}; available types: {there}", field="kinds"
        )
    numbers = [number for number, name in known.items() if name.casefold() in wanted] if kinds else None
    return Steps(db, out=direction is not Direction.IN, into=direction is not Direction.OUT, kinds=numbers)


def _kinds(db: apsw.Connection) -> dict[int, str]:
    return {int(number): str(name) for number, name in db.execute("SELECT kind_id, name FROM kind")}


def named(db: apsw.Connection, numbers: Iterable[int]) -> dict[int, StoredNode]:
    """Return nodes by their numbers."""
    rows = db.execute(
        "SELECT node_id, corpus.name, node.id, known, label, source FROM json_each(?)"
        " JOIN node ON node_id = json_each.value JOIN corpus USING (corpus_id)",
        (json.dumps(list(numbers)),),
    )
    return {number: StoredNode(corpus, id_, bool(known), *rest) for number, corpus, id_, known, *rest in rows}


def nodes_of(names: Mapping[int, StoredNode], depth: Mapping[int, int]) -> list[Node]:
    """Return nodes in the order of `depth`'s keys."""
    found = ((names[number], steps) for number, steps in depth.items())
    return [Node(id=one.id, corpus=one.corpus, label=one.label or one.id, depth=d, known=one.known) for one, d in found]


def edges_of(db: apsw.Connection, names: Mapping[int, StoredNode], edges: Iterable[Step], corpus: str) -> list[Edge]:
    """Return edges as callers see them; ends in `corpus` do not name it."""
    kinds = _kinds(db)

    def beside(number: int) -> str | None:
        return None if names[number].corpus == corpus else names[number].corpus

    return [
        Edge(
            source=names[src].id,
            type=kinds[kind],
            target=names[dst].id,
            stated_in=names[src].source,
            source_corpus=beside(src),
            target_corpus=beside(dst),
        )
        for src, kind, dst in edges
    ]


def behind(db: apsw.Connection, corpora: Iterable[str]) -> list[str]:
    """Describe how the graph lags behind these corpora."""
    said: list[str] = []
    for corpus in dict.fromkeys(corpora):
        row = db.execute("SELECT behind FROM corpus WHERE name=?", (corpus,)).fetchone()
        if row is None:
            said.append(f"{corpus}: not in the graph yet")
        elif row[0]:
            said.append(f"{corpus}: {row[0]} nodes are not in the graph yet")
    return said


def figures(db: apsw.Connection, size_bytes: int, rebuilt: bool) -> GraphStatsResult:
    """Return statistics of the whole graph, which is read completely."""
    kinds = [
        KindCount(type=name, edges=count)
        for name, count in db.execute(
            "SELECT name, count FROM (SELECT kind, count(*) AS count FROM edge GROUP BY kind)"
            " JOIN kind ON kind_id = kind ORDER BY count DESC, name"
        )
    ]
    corpora = [
        CorpusCount(corpus=name, nodes=known, unknown=unknown, behind=behind)
        for name, known, unknown, behind in db.execute(
            "SELECT corpus.name, coalesce(sum(known), 0), coalesce(sum(1 - known), 0), behind"
            " FROM corpus LEFT JOIN node USING (corpus_id) GROUP BY corpus_id ORDER BY corpus.name"
        )
    ]
    degrees: dict[int, int] = dict(
        db.execute(
            "SELECT node, sum(count) AS degree FROM (SELECT src AS node, count(*) AS count FROM edge GROUP BY src"
            " UNION ALL SELECT dst, count(*) FROM edge GROUP BY dst) GROUP BY node ORDER BY degree DESC, node LIMIT ?",
            (10,),
        )
    )
    names = named(db, degrees)
    return GraphStatsResult(
        nodes=sum(corpus.nodes + corpus.unknown for corpus in corpora),
        edges=sum(kind.edges for kind in kinds),
        corpora=corpora,
        kinds=kinds,
        hubs=[Hub(id=names[n].id, corpus=names[n].corpus, edges=d, followed=d) for n, d in degrees.items()],
        size_bytes=size_bytes,
        rebuilt=rebuilt,
    )
