"""The graph's database, and how corpora feed it.

Names are mapped to small numbers, so an edge consists of three numbers, and a step in either direction is one lookup.
What a corpus states about a node replaces its previous statement; repeating a statement changes nothing, so a feed that
does not know its position simply starts over. A damaged file is recreated with another epoch, which makes the corpora
feed it from the beginning.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import apsw

from proto.ops.graph import FeedResult, NodeState
from services.graph.manifest import SCHEMA_VERSION
from services.runtime.database import Database, Kind, Schema

_TABLES = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE corpus(corpus_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, behind INTEGER NOT NULL DEFAULT 0);
CREATE TABLE kind(kind_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);

-- A node that is not known is only a target of edges.
CREATE TABLE node(
    node_id INTEGER PRIMARY KEY,
    corpus_id INTEGER NOT NULL,
    id TEXT NOT NULL,
    known INTEGER NOT NULL DEFAULT 0,
    label TEXT NOT NULL DEFAULT '',
    source TEXT NOT NULL DEFAULT '',
    UNIQUE(corpus_id, id)
);

CREATE TABLE edge(
    src INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    dst INTEGER NOT NULL,
    PRIMARY KEY(src, kind, dst)
) WITHOUT ROWID;
CREATE INDEX edge_reverse ON edge(dst, kind, src);
"""


def _name(db: apsw.Connection) -> None:
    db.execute("INSERT INTO meta VALUES('epoch', ?)", (uuid.uuid4().hex,))


def open_database(path: Path, on_rebuilt: Callable[[], object] | None = None) -> Database:
    """Open the database at `path`; blocks."""
    schema = Schema(version=SCHEMA_VERSION, tables=_TABLES, begin=_name)
    pragmas = {"cache_size": -65536, "mmap_size": 1 << 30}
    return Database(path, schema, kind=Kind.DERIVED, readers=4, pragmas=pragmas, on_rebuilt=on_rebuilt)


def epoch(db: apsw.Connection) -> str:
    """Return the id of this database: a different one must be fed from the beginning."""
    return str(db.execute("SELECT value FROM meta WHERE key='epoch'").get)


def put(db: apsw.Connection, corpus: str, nodes: Sequence[NodeState], behind: int) -> FeedResult:
    """Set `nodes` of `corpus`, with all edges that start there."""
    added = removed = 0
    corpus_id = _corpus(db, corpus, behind)
    kinds: dict[str, int] = {}
    loose: set[int] = set()
    for state in nodes:
        src = _node(db, corpus_id, state.id)
        db.execute(
            "UPDATE node SET known=1, label=?2, source=?3 WHERE node_id=?1"
            " AND (known, label, source) IS NOT (1, ?2, ?3)",
            (src, state.label, state.source),
        )
        wanted: set[tuple[int, int]] = set()
        for edge in state.edges:
            target_corpus = corpus_id if edge.corpus in (None, corpus) else _corpus(db, edge.corpus or corpus, None)
            wanted.add((_kind(db, kinds, edge.kind), _node(db, target_corpus, edge.target)))
        held = set(db.execute("SELECT kind, dst FROM edge WHERE src=?", (src,)))
        db.executemany("INSERT INTO edge VALUES(?, ?, ?)", ((src, *edge) for edge in sorted(wanted - held)))
        db.executemany("DELETE FROM edge WHERE src=? AND kind=? AND dst=?", ((src, *edge) for edge in held - wanted))
        loose.update(dst for _, dst in held - wanted)
        added += len(wanted - held)
        removed += len(held - wanted)
    _sweep(db, loose)
    return FeedResult(epoch=epoch(db), nodes=len(nodes), edges_added=added, edges_removed=removed)


def delete(db: apsw.Connection, corpus: str, ids: Sequence[str], behind: int) -> FeedResult:
    """Remove nodes of `corpus`, and the edges that start there."""
    deleted = removed = 0
    corpus_id = _corpus(db, corpus, behind)
    loose: set[int] = set()
    for id_ in ids:
        src = db.execute("SELECT node_id FROM node WHERE corpus_id=? AND id=? AND known", (corpus_id, id_)).get
        if src is None:
            continue
        loose.update(dst for (dst,) in db.execute("SELECT dst FROM edge WHERE src=?", (src,)))
        db.execute("DELETE FROM edge WHERE src=?", (src,))
        removed += db.changes()
        db.execute("UPDATE node SET known=0, label='', source='' WHERE node_id=?", (src,))
        loose.add(src)
        deleted += 1
    _sweep(db, loose)
    return FeedResult(epoch=epoch(db), nodes=deleted, edges_added=0, edges_removed=removed)


def _sweep(db: apsw.Connection, candidates: Iterable[int]) -> None:
    """Delete those candidates that no corpus knows and nothing points to any more."""
    db.executemany(
        "DELETE FROM node WHERE node_id=?1 AND known=0 AND NOT EXISTS(SELECT 1 FROM edge WHERE dst=?1)",
        ((candidate,) for candidate in candidates),
    )


def _corpus(db: apsw.Connection, name: str, behind: int | None) -> int:
    row = db.execute("SELECT corpus_id, behind FROM corpus WHERE name=?", (name,)).fetchone()
    if row is None:
        db.execute("INSERT INTO corpus(name, behind) VALUES(?, ?)", (name, behind or 0))
        return db.last_insert_rowid()
    if behind is not None and behind != row[1]:
        db.execute("UPDATE corpus SET behind=? WHERE corpus_id=?", (behind, row[0]))
    return int(row[0])


def _kind(db: apsw.Connection, known: dict[str, int], name: str) -> int:
    kind = known.get(name)
    if kind is None:
        db.execute("INSERT OR IGNORE INTO kind(name) VALUES(?)", (name,))
        kind = known[name] = int(db.execute("SELECT kind_id FROM kind WHERE name=?", (name,)).get)
    return kind


def _node(db: apsw.Connection, corpus_id: int, id_: str) -> int:
    node = db.execute("SELECT node_id FROM node WHERE corpus_id=? AND id=?", (corpus_id, id_)).get
    if node is None:
        db.execute("INSERT INTO node(corpus_id, id) VALUES(?, ?)", (corpus_id, id_))
        return db.last_insert_rowid()
    return int(node)
