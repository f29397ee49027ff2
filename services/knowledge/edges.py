"""Edges between notes, updated as notes appear and disappear.

A reference is stored with the keys of its target, and a note with the keys that name it. A reference is an edge if some
note has one of its keys. A change of names resolves the affected references again in the same transaction, so a link
appears and disappears together with its target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import apsw

from services.knowledge.notes.files import Place
from services.knowledge.notes.links import Reference, name_key, path_key
from services.knowledge.notes.markdown import stem

MAX_EDGES = 10_000
"""Maximum number of edges in a result; a larger neighbourhood is practically the whole set of notes."""


PATH, FILE_NAME, ID, TITLE = range(4)
"""Ranks: how a key names a note. If several notes have a key, the lowest rank wins, then the nearest note. The end of a
path counts as a file name."""

_REFERENCES = (
    "SELECT src, position, key, other_key, dst, root, path FROM edge LEFT JOIN node ON node.id=edge.src WHERE fixed=0"
)
_OTHER_ROOT = 1_000_000
"""Distance from one root to another, larger than any distance within one."""


class Edge(NamedTuple):
    """An edge; `depth` is the number of steps from the start of the walk, from 1."""

    source: str
    target: str
    kind: str
    depth: int


def names(id_: str, place: Place, title: str) -> set[tuple[str, int]]:
    """Return the keys of a note with their ranks: id, title, file name, path, and every end of the path."""
    keys = {(id_, ID), (name_key(title), TITLE), (name_key(stem(place.path)), FILE_NAME)}
    parts = name_key(place.path[:-3]).split("/")
    keys |= {(path_key(place.absolute), PATH)}
    keys |= {("/".join(parts[start:]), FILE_NAME if start else PATH) for start in range(len(parts) - 1)}
    return {(key, rank) for key, rank in keys if key}


Candidate = tuple[int, str, Place | None]
"""A note that has a key: the rank of the key, the note's id, and its place if known."""


class Finder:
    """Resolves references to notes.  The notes that have a key are read only once."""

    def __init__(self, having: Callable[[str], Iterable[Candidate]]) -> None:
        self._having = having
        self._known: dict[str, dict[int, _Nearest]] = {}

    def target(self, key: str, other_key: str, source: Place) -> str | None:
        """Return the note that a reference with these keys means in the note at `source`."""
        by_key = self._of(key)
        by_other = self._of(other_key) if other_key else {}
        for rank, found in (
            (PATH, by_key), (FILE_NAME, by_key), (ID, by_key),
            (PATH, by_other), (FILE_NAME, by_other), (ID, by_other), (TITLE, by_key), (TITLE, by_other),
        ):  # fmt: skip
            if rank in found:
                return found[rank].to(source)
        return None

    def _of(self, key: str) -> dict[int, _Nearest]:
        if key not in self._known:
            by_rank: dict[int, list[tuple[str, Place | None]]] = {}
            for rank, id_, place in self._having(key):
                by_rank.setdefault(rank, []).append((id_, place))
            self._known[key] = {rank: _Nearest(found) for rank, found in by_rank.items()}
        return self._known[key]


class _Nearest:
    """Finds the note that is the fewest steps away.  If several are equally near, the one nearer to its root wins,
    then the first by path."""

    def __init__(self, notes: Sequence[tuple[str, Place | None]]) -> None:
        self._only = notes[0][0] if len(notes) == 1 else None
        self._below: dict[tuple[str, ...], tuple[int, int, str, str]] = {}
        """For each ancestor folder of a note, the nearest note below it, with the number of steps down."""
        for id_, place in notes if self._only is None else ():
            folders = _folders(place or Place("", ""))
            path = place.absolute if place else ""
            for depth in range(len(folders) + 1):
                steps = len(folders) - depth + (0 if depth else _OTHER_ROOT)
                found = steps, len(folders), path, id_
                known = self._below.get(folders[:depth])
                self._below[folders[:depth]] = found if known is None else min(known, found)

    def to(self, source: Place) -> str:
        """Return the note nearest to `source`."""
        if self._only is not None:
            return self._only
        folders = _folders(source)
        above = ((len(folders) - depth, folders[:depth]) for depth in range(len(folders) + 1))
        ways = [(up + way[0], *way[1:]) for up, folder in above if (way := self._below.get(folder)) is not None]
        return min(ways)[3]


def _folders(place: Place) -> tuple[str, ...]:
    """Return the root and folders of a place."""
    return place.root, *place.path.split("/")[:-1]


def having(db: apsw.Connection) -> Callable[[str], Iterable[Candidate]]:
    """Return a function that looks up the notes with a key in the database."""
    query = "SELECT rank, id, root, path FROM name LEFT JOIN node USING(id) WHERE key=?"
    return lambda key: (
        (rank, id_, None if path is None else Place(root, path)) for rank, id_, root, path in db.execute(query, (key,))
    )


def store(db: apsw.Connection, id_: str, place: Place, title: str, references: Sequence[Reference]) -> set[str]:
    """Set the names and references of a note.  Returns the keys to pass to `resolve`.

    The note's own references are resolved by `resolve_of`, once the names of the whole batch are stored.
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
    """Drop the names and references of a removed note.  Returns the keys to pass to `resolve`."""
    before = _names_of(db, id_)
    db.execute("DELETE FROM name WHERE id=?", (id_,))
    db.execute("DELETE FROM edge WHERE src=?", (id_,))
    return {key for key, _ in before}


def resolve(db: apsw.Connection, keys: Iterable[str]) -> None:
    """Resolve all references with these keys again."""
    _point(db, f"{_REFERENCES} AND key=?1 UNION {_REFERENCES} AND other_key=?1 AND other_key<>''", keys)


def moved(db: apsw.Connection, ids: Iterable[str]) -> None:
    """Resolve all references that may mean these notes again, because the notes have moved."""
    resolve(db, {key for id_ in ids for key, _ in _names_of(db, id_)})


def resolve_of(db: apsw.Connection, ids: Iterable[str]) -> None:
    """Resolve all references in these notes."""
    _point(db, f"{_REFERENCES} AND src=?1", ids)


def _point(db: apsw.Connection, query: str, values: Iterable[str]) -> None:
    finder = Finder(having(db))
    rows = (row for value in values for row in list(db.execute(query, (value,))))
    for src, position, key, other_key, dst, root, path in rows:
        found = finder.target(key, other_key, Place(root or "", path or ""))
        found = None if found == src else found
        if found != dst:
            db.execute("UPDATE edge SET dst=? WHERE src=? AND position=?", (found, src, position))


def _names_of(db: apsw.Connection, id_: str) -> set[tuple[str, int]]:
    return {(key, rank) for key, rank in db.execute("SELECT key, rank FROM name WHERE id=?", (id_,))}


def count(db: apsw.Connection) -> int:
    """Return the number of distinct edges."""
    query = "SELECT count(*) FROM (SELECT DISTINCT src, kind, dst FROM edge WHERE dst IS NOT NULL)"
    return int(db.execute(query).get)


def explore(
    db: apsw.Connection, id_: str, relation: str | None, *, out: bool, into: bool, depth: int
) -> tuple[list[Edge], bool]:
    """Return the edges within `depth` steps of a note, nearest first, and whether there are more than `MAX_EDGES`.

    If `relation` is given, only edges of this relation are followed, regardless of case.
    """
    found: dict[tuple[str, str, str], Edge] = {}
    reached = {id_: 0}
    # Reached nodes are appended and visited in turn.
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
