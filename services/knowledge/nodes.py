"""Notes in the database: their state, and how they are added and removed.  `ids` assigns their ids."""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import apsw

from services.knowledge import edges, ids
from services.knowledge.notes.files import Place, Stamp
from services.knowledge.notes.markdown import Note, stem
from services.knowledge.notes.spelling import nfc

MAX_DEPARTED = 10_000

_NO_STAMP = Stamp(0, 0, 0, -1)
"""Stored if a further write might leave the stamp unchanged; the next scan then reads the file again."""


@dataclass(frozen=True, slots=True)
class Known:
    """The stored state of a file.  Without `stamp` its text must be read; without `hash` it must be indexed too."""

    id: str
    stamp: Stamp | None = None
    hash: str | None = None
    lead: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """The new state of an indexed note; `note` is None if only the stamp changed."""

    place: Place
    known: Known
    date: float = 0.0
    note: Note | None = None


@dataclass(frozen=True, slots=True)
class IndexedNote:
    """A note in the index."""

    id: str
    place: Place
    title: str
    tags: tuple[str, ...]
    date: float | None


def load(db: apsw.Connection) -> dict[Place, Known]:
    """Return all known notes by place."""
    rows = db.execute("SELECT root, path, id, hash, lead, size, mtime_ns, ctime_ns, inode, problem FROM node")
    return {
        Place(root, path): Known(id_, Stamp(*stamp) if hash_ and stamp[3] >= 0 else None, hash_, lead, problem)
        for root, path, id_, hash_, lead, *stamp, problem in rows
    }


def arrive(
    db: apsw.Connection,
    arrivals: Sequence[Place],
    moves: Mapping[Place, str],
    roots: Sequence[str],
    *,
    nothing_else: bool = False,
) -> dict[Place, Known]:
    """Add new files.  `moves` has the ids of those that were moved here.

    With `nothing_else`, no file is gone and the roots are those of the last call; then other notes need not be looked
    at if none has a new file's base name.

    Returns the notes to read: the new ones, and those whose id changed.
    """
    there: dict[Place, str] = {}
    wanted = ids.of_new(db, arrivals) if nothing_else and not moves else None
    if wanted is None:
        there = {Place(root, path): id_ for id_, root, path in db.execute("SELECT id, root, path FROM node")}
        wanted = ids.ids_of([*there, *arrivals], roots)
    changed = {id_: wanted[place] for place, id_ in (*there.items(), *moves.items()) if wanted[place] != id_}
    ids.rename(db, changed)
    for place in arrivals:
        id_ = wanted[place]
        db.execute("INSERT INTO node(id, root, path) VALUES(?, ?, ?)", (id_, place.root, place.path))
        db.execute("DELETE FROM departed WHERE id=?", (id_,))
    edges.moved(db, (wanted[place] for place in moves))
    # Indexing a note replaces what the search has under its id, so it need not be removed.
    db.execute("DELETE FROM leaving WHERE EXISTS(SELECT 1 FROM node WHERE node.id=leaving.id)")
    renamed = [place for place, id_ in there.items() if id_ in changed]
    return {place: Known(wanted[place]) for place in (*arrivals, *renamed)}


def depart(db: apsw.Connection, ids: Iterable[str], keep: frozenset[str]) -> None:
    """Remove notes whose file is gone; those in `keep` have moved and keep their data."""
    affected: set[str] = set()
    now = time.time()
    for id_ in ids:
        path = db.execute("SELECT path FROM node WHERE id=?", (id_,)).get
        db.execute("DELETE FROM node WHERE id=?", (id_,))
        if id_ in keep:
            continue
        affected |= edges.forget(db, id_)
        db.execute("INSERT OR REPLACE INTO leaving VALUES(?)", (id_,))
        db.execute("INSERT OR REPLACE INTO departed VALUES(?, ?, ?)", (id_, path, now))
    edges.resolve(db, affected)
    db.execute(
        "DELETE FROM departed WHERE id IN (SELECT id FROM departed ORDER BY at DESC LIMIT -1 OFFSET ?)", (MAX_DEPARTED,)
    )


def settle(db: apsw.Connection, updates: Sequence[Update]) -> None:
    """Record notes that were read and indexed, and update their edges."""
    affected: set[str] = set()
    for update in updates:
        now, note = update.known, update.note
        db.execute(
            "UPDATE node SET hash=?, lead=?, problem=?, size=?, mtime_ns=?, ctime_ns=?, inode=? WHERE id=?",
            (now.hash, now.lead, now.problem, *(now.stamp or _NO_STAMP), now.id),
        )
        if note is not None:
            row = note.title, update.date, json.dumps(note.tags), now.id
            db.execute("UPDATE node SET title=?, date=?, tags=? WHERE id=?", row)
            affected |= edges.store(db, now.id, update.place, note.title, note.references)
    edges.resolve(db, affected)
    edges.resolve_of(db, (update.known.id for update in updates if update.note is not None))


def give_up(db: apsw.Connection, places: Iterable[Place]) -> None:
    """Give unreadable files a title, so that nobody waits for them: a note without a title counts as not read yet."""
    rows = ((stem(place.path), place.root, place.path) for place in places)
    db.executemany("UPDATE node SET title=? WHERE root=? AND path=? AND title=''", rows)


def put_again(db: apsw.Connection, ids: Iterable[str]) -> None:
    """Mark notes to be read and indexed again."""
    db.executemany("UPDATE node SET hash=NULL WHERE id=?", ((id_,) for id_ in ids))


def find(db: apsw.Connection, id_: str) -> IndexedNote | None:
    """Return the note that has this id."""
    return next(_nodes(db, "WHERE id=?", (id_,)), None)


def sought(db: apsw.Connection, id_: str) -> IndexedNote | None:
    """Return the note that has or had this id."""
    return find(db, ids.present(db, id_))


def every(db: apsw.Connection) -> dict[str, IndexedNote]:
    """Return all notes by id."""
    return {node.id: node for node in _nodes(db, "ORDER BY id")}


def _nodes(db: apsw.Connection, condition: str, bindings: tuple[apsw.SQLiteValue, ...] = ()) -> Iterator[IndexedNote]:
    for id_, root, path, title, tags, date in db.execute(
        f"SELECT id, root, path, title, tags, date FROM node {condition}", bindings
    ):
        yield IndexedNote(id_, Place(root, path), title, tuple(json.loads(tags)), date)


def spelled(db: apsw.Connection, prefix: str) -> str:
    """Return `prefix` in the Unicode form that the paths of notes have."""
    forms = (prefix, nfc(prefix), unicodedata.normalize("NFD", prefix))
    query = "SELECT 1 FROM node WHERE substr(path, 1, length(?1))=?1 LIMIT 1"
    return next((form for form in forms if db.execute(query, (form,)).get), prefix)


def departed_path(db: apsw.Connection, id_: str) -> str | None:
    """Return the former path of a removed note with this id."""
    path: str | None = db.execute("SELECT path FROM departed WHERE id=?", (id_,)).get
    return path


def existing(db: apsw.Connection, ids: Iterable[str]) -> frozenset[str]:
    """Return those of `ids` that exist."""
    return frozenset(id_ for id_ in ids if db.execute("SELECT 1 FROM node WHERE id=?", (id_,)).fetchone())


def ids_like(db: apsw.Connection, id_: str) -> list[str]:
    """Return ids of similar length, as candidates for a suggestion."""
    rows = db.execute("SELECT id FROM node ORDER BY abs(length(id) - ?), id LIMIT 5000", (len(id_),))
    return [found for (found,) in rows]


def count(db: apsw.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM node").get)


def folders(db: apsw.Connection) -> list[str]:
    """Return the folders that contain notes, relative to their root, each ending in `/`; the root itself is `./`."""
    paths = db.execute("SELECT path FROM node")
    return sorted({path[: path.rfind("/") + 1] or "./" for (path,) in paths})


def tagged(db: apsw.Connection, tags: Sequence[str], least: int, limit: int) -> list[IndexedNote]:
    """Return notes with at least `least` of `tags` (normalised by `clean_tags`) or tags below them, latest first."""
    condition = (
        "WHERE (SELECT count(*) FROM json_each(?) AS wanted WHERE EXISTS (SELECT 1 FROM json_each(node.tags) AS own"
        " WHERE own.value = wanted.value OR substr(own.value, 1, length(wanted.value) + 1) = wanted.value || '/'))"
        " >= ? ORDER BY date DESC, id LIMIT ?"
    )
    return list(_nodes(db, condition, (json.dumps(tags), least, limit)))


def leaving(db: apsw.Connection, limit: int) -> list[str]:
    """Return ids that still have to be removed from the search."""
    return [id_ for (id_,) in db.execute("SELECT id FROM leaving ORDER BY id LIMIT ?", (limit,))]


def leave(db: apsw.Connection, ids: Iterable[str]) -> None:
    """Queue ids for removal from the search."""
    db.executemany("INSERT OR IGNORE INTO leaving VALUES(?)", ((id_,) for id_ in ids))


def left(db: apsw.Connection, ids: Iterable[str]) -> None:
    """Record that ids were removed from the search."""
    db.executemany("DELETE FROM leaving WHERE id=?", ((id_,) for id_ in ids))


def setting(db: apsw.Connection, name: str) -> str | None:
    value: str | None = db.execute("SELECT value FROM setting WHERE name=?", (name,)).get
    return value


def set_setting(db: apsw.Connection, name: str, value: str | None) -> None:
    """Store a setting; None removes it."""
    db.execute("DELETE FROM setting WHERE name=?", (name,))
    db.execute("INSERT INTO setting SELECT ?1, ?2 WHERE ?2 IS NOT NULL", (name, value))
