"""Edges between notes, kept right as names come and go.

A reference is stored with the keys of its target, and a note with the keys by which it is found; an edge is a reference
one of whose keys some note has. Each change of names resolves the references that they concern again, in the same
transaction, so that a link shows as soon as its target does and is gone with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import apsw

from services.knowledge.notes.files import Place
from services.knowledge.notes.links import Reference, name_key, path_key
from services.knowledge.notes.markdown import stem

MAX_EDGES = 10_000
"""One answer holds no more; past this a neighbourhood is the whole base."""


_REFERENCES = "SELECT src, position, key, other_key, dst FROM edge WHERE fixed=0"


class Edge(NamedTuple):
    """`depth` counts the steps from where the walk began, from 1."""

    source: str
    target: str
    kind: str
    depth: int


def names(id_: str, place: Place, title: str) -> set[tuple[str, int]]:
    """The keys by which a note is found, each with its rank: id, title, file name, path (and every end of the path)."""
    keys = {(id_, 0), (name_key(title), 1), (name_key(stem(place.path)), 2), (path_key(place.absolute), 3)}
    parts = name_key(place.path[:-3]).split("/")
    keys |= {("/".join(parts[start:]), 3) for start in range(len(parts) - 1)}
    return {(key, rank) for key, rank in keys if key}


def store(db: apsw.Connection, id_: str, place: Place, title: str, references: Sequence[Reference]) -> set[str]:
    """Set the names and references of a note; answers the keys that `resolve` must look at.

    Its own references find their targets in `resolve_of`, once the names of all notes that came with it are there.
    """
    before = _names_of(db, id_)
    now = names(id_, place, title)
    db.executemany("DELETE FROM name WHERE key=? AND rank=? AND id=?", ((*name, id_) for name in before - now))
    db.executemany("INSERT OR REPLACE INTO name VALUES(?, ?, ?)", ((*name, id_) for name in now - before))
    db.execute("DELETE FROM edge WHERE src=?", (id_,))
    db.executemany(
        "INSERT INTO edge VALUES(?, ?, ?, ?, ?, ?, ?)",
        (
            (id_, position, r.kind, r.key, r.other_key, int(r.target is not None), r.target)
            for position, r in enumerate(references)
        ),
    )
    return {key for key, _ in before ^ now}


def forget(db: apsw.Connection, id_: str) -> set[str]:
    """Drop the names and references of a note that is gone; answers the keys that `resolve` must look at."""
    before = _names_of(db, id_)
    db.execute("DELETE FROM name WHERE id=?", (id_,))
    db.execute("DELETE FROM edge WHERE src=?", (id_,))
    return {key for key, _ in before}


def resolve(db: apsw.Connection, keys: Iterable[str]) -> None:
    """Find the targets of all references by these keys again."""
    _point(db, f"{_REFERENCES} AND key=?1 UNION {_REFERENCES} AND other_key=?1 AND other_key<>''", keys)


def resolve_of(db: apsw.Connection, ids: Iterable[str]) -> None:
    """Find the targets of all references of these notes."""
    _point(db, f"{_REFERENCES} AND src=?1", ids)


def _point(db: apsw.Connection, query: str, values: Iterable[str]) -> None:
    rows = (row for value in values for row in list(db.execute(query, (value,))))
    for src, position, key, other_key, dst in rows:
        found = target(db, key, other_key)
        found = None if found == src else found
        if found != dst:
            db.execute("UPDATE edge SET dst=? WHERE src=? AND position=?", (found, src, position))


def target(db: apsw.Connection, key: str, other_key: str) -> str | None:
    """The note that a reference by these keys leads to."""
    return _holder(db, key) or (_holder(db, other_key) if other_key else None)


def _holder(db: apsw.Connection, key: str) -> str | None:
    id_: str | None = db.execute("SELECT id FROM name WHERE key=? ORDER BY rank, id LIMIT 1", (key,)).get
    return id_


def _names_of(db: apsw.Connection, id_: str) -> set[tuple[str, int]]:
    return {(key, rank) for key, rank in db.execute("SELECT key, rank FROM name WHERE id=?", (id_,))}


def count(db: apsw.Connection) -> int:
    """Distinct edges."""
    query = "SELECT count(*) FROM (SELECT DISTINCT src, kind, dst FROM edge WHERE dst IS NOT NULL)"
    return int(db.execute(query).get)


def explore(
    db: apsw.Connection, id_: str, relation: str | None, *, out: bool, into: bool, depth: int
) -> tuple[list[Edge], bool]:
    """Edges within `depth` steps of a note, nearest first, and whether there were more than `MAX_EDGES`.

    `relation` restricts the steps themselves, in either case of letters.
    """
    found: dict[tuple[str, str, str], Edge] = {}
    reached = {id_: 0}
    # Those that are reached come to its end, and are walked from in turn.
    for node in (border := [id_]):
        if reached[node] == depth:
            break
        for source, kind, target in _around(db, node, out=out, into=into):
            if relation is not None and kind.casefold() != relation.casefold():
                continue
            if (source, kind, target) not in found:
                if len(found) == MAX_EDGES:
                    return list(found.values()), True
                found[source, kind, target] = Edge(source, target, kind, reached[node] + 1)
            other = target if source == node else source
            if other not in reached:
                reached[other] = reached[node] + 1
                border.append(other)
    return list(found.values()), False


def _around(db: apsw.Connection, node: str, *, out: bool, into: bool) -> Iterator[tuple[str, str, str]]:
    if out:
        query = "SELECT src, kind, dst FROM edge WHERE src=? AND dst IS NOT NULL ORDER BY position"
        yield from db.execute(query, (node,))
    if into:
        query = "SELECT src, kind, dst FROM edge WHERE dst=? ORDER BY src, position"
        yield from db.execute(query, (node,))
