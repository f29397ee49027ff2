"""Writing to the graph: what a corpus states of its nodes replaces what it stated before.

Functions on one connection, inside the caller's transaction. Stating the same again changes nothing, so that a feed
which does not know how far it came may simply repeat itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from proto.ops.graph import NodeState


@dataclass(slots=True)
class Done:
    """What a write changed."""

    nodes: int = 0
    edges_added: int = 0
    edges_removed: int = 0


Change = Callable[[sqlite3.Connection], Done]


def put(db: sqlite3.Connection, corpus: str, nodes: Sequence[NodeState], behind: int) -> Done:
    """Set `nodes` of `corpus` with all edges that start there."""
    done = Done()
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
        done.nodes += 1
        done.edges_added += len(wanted - held)
        done.edges_removed += len(held - wanted)
    _sweep(db, loose)
    return done


def delete(db: sqlite3.Connection, corpus: str, ids: Sequence[str], behind: int) -> Done:
    """Remove nodes of `corpus` and the edges that start there."""
    done = Done()
    corpus_id = _corpus(db, corpus, behind)
    loose: set[int] = set()
    for id_ in ids:
        row = db.execute("SELECT node_id, known FROM node WHERE corpus_id=? AND id=?", (corpus_id, id_)).fetchone()
        if row is None or not row[1]:
            continue
        (src, _) = row
        loose.update(dst for (dst,) in db.execute("SELECT dst FROM edge WHERE src=?", (src,)))
        done.edges_removed += db.execute("DELETE FROM edge WHERE src=?", (src,)).rowcount
        db.execute("UPDATE node SET known=0, label='', source='' WHERE node_id=?", (src,))
        loose.add(src)
        done.nodes += 1
    _sweep(db, loose)
    return done


def _sweep(db: sqlite3.Connection, candidates: Iterable[int]) -> None:
    """Drop those of the nodes that no corpus knows and nothing points to any more."""
    db.executemany(
        "DELETE FROM node WHERE node_id=?1 AND known=0 AND NOT EXISTS(SELECT 1 FROM edge WHERE dst=?1)",
        ((candidate,) for candidate in candidates),
    )


def _corpus(db: sqlite3.Connection, name: str, behind: int | None) -> int:
    row = db.execute("SELECT corpus_id, behind FROM corpus WHERE name=?", (name,)).fetchone()
    if row is None:
        cursor = db.execute("INSERT INTO corpus(name, behind) VALUES(?, ?)", (name, behind or 0))
        return int(cursor.lastrowid or 0)
    if behind is not None and behind != row[1]:
        db.execute("UPDATE corpus SET behind=? WHERE corpus_id=?", (behind, row[0]))
    return int(row[0])


def _kind(db: sqlite3.Connection, known: dict[str, int], name: str) -> int:
    kind = known.get(name)
    if kind is None:
        row = db.execute("SELECT kind_id FROM kind WHERE name=?", (name,)).fetchone()
        kind = int(row[0]) if row else int(db.execute("INSERT INTO kind(name) VALUES(?)", (name,)).lastrowid or 0)
        known[name] = kind
    return kind


def _node(db: sqlite3.Connection, corpus_id: int, id_: str) -> int:
    row = db.execute("SELECT node_id FROM node WHERE corpus_id=? AND id=?", (corpus_id, id_)).fetchone()
    if row is not None:
        return int(row[0])
    return int(db.execute("INSERT INTO node(corpus_id, id) VALUES(?, ?)", (corpus_id, id_)).lastrowid or 0)
