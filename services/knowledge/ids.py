"""The ids of notes, which depend only on the set of files, not on the order in which they appeared.

An id is the file's base name. If several files have the same base name, the one nearest to its root gets it, and the
others get ids made from their paths. Adding or removing a file can therefore change the id of another. Former ids are
remembered, and lead to their note until another note takes the id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import apsw

from services.knowledge.notes.files import Place
from services.knowledge.notes.links import slug
from services.knowledge.notes.markdown import stem
from services.knowledge.notes.spelling import nfc

MAX_ID_CHARS = 500
MAX_FORMER = 100_000


def ids_of(places: Iterable[Place], roots: Sequence[str]) -> dict[Place, str]:
    """Return the id of every note."""
    order = {root: number for number, root in enumerate(roots)}
    nearest = sorted(places, key=lambda place: (order.get(place.root, len(order)), place.path.count("/"), place.path))
    holders: dict[str, Place] = {}
    for place in nearest:
        holders.setdefault(slug(stem(place.path)), place)
    given = {place: id_ for id_, place in holders.items()}
    taken = set(holders)
    for place in nearest:
        if place not in given:
            given[place] = id_ = next(each for each in _from_path(place) if each not in taken)
            taken.add(id_)
    return given


def of_new(db: apsw.Connection, places: Sequence[Place]) -> dict[Place, str] | None:
    """Return the ids of new files if they are the only ones with their base names, so that no other id changes.

    All ids in the database must be as `ids_of` would give them: then each base name that a note has is an id.
    """
    found = {slug(stem(place.path)): place for place in places}
    query = "SELECT 1 FROM node WHERE id=?"
    if len(found) < len(places) or any(db.execute(query, (id_,)).get for id_ in found):
        return None
    return {place: id_ for id_, place in found.items()}


def _from_path(place: Place) -> Iterable[str]:
    long = slug(place.path[:-3])
    if len(long) <= MAX_ID_CHARS:
        yield long
    mark = hashlib.sha256(place.absolute.encode("utf-8", "surrogateescape")).hexdigest()
    for length in (8, 16, 64):
        yield f"{long[: MAX_ID_CHARS - 65]}-{mark[:length]}"


def rename(db: apsw.Connection, changed: dict[str, str]) -> None:
    """Change the ids of notes, whose texts then have to be read and indexed again."""
    # An id may pass from one note to another, so release all old ids first.
    for before, after in changed.items():
        _move(db, before, f"\0{after}")
    for before, after in changed.items():
        _move(db, f"\0{after}", after)
        db.execute("UPDATE former SET node=? WHERE node=?", (f"\0{after}", before))
        db.execute("INSERT OR REPLACE INTO graph_outbox(id) VALUES(?), (?)", (before, after))
    for before, after in changed.items():
        db.execute("UPDATE former SET node=? WHERE node=?", (after, f"\0{after}"))
        remember(db, before, after)
        db.execute("INSERT OR REPLACE INTO leaving SELECT ? WHERE ? NOT IN (SELECT id FROM node)", (before, before))


def remember(db: apsw.Connection, before: str, after: str) -> None:
    """Record that the note `after` once had the id `before`."""
    db.execute("INSERT OR REPLACE INTO former(id, node) VALUES(?, ?)", (before, after))
    db.execute("DELETE FROM former WHERE rowid <= (SELECT max(rowid) FROM former) - ?", (MAX_FORMER,))


def present(db: apsw.Connection, id_: str) -> str:
    """Return the current id of the note that has or had `id_` in any Unicode form; without such a note, `id_`."""
    id_ = nfc(id_)
    query = "SELECT node FROM former WHERE id=?1 AND NOT EXISTS(SELECT 1 FROM node WHERE id=?1)"
    found: str | None = db.execute(query, (id_,)).get
    return id_ if found is None else found


def _move(db: apsw.Connection, before: str, after: str) -> None:
    db.execute("UPDATE node SET id=?, hash=NULL WHERE id=?", (after, before))
    db.execute("UPDATE name SET id=? WHERE id=?", (after, before))
    db.execute("UPDATE edge SET src=? WHERE src=?", (after, before))
    db.execute("UPDATE edge SET dst=? WHERE dst=? AND fixed=0", (after, before))
