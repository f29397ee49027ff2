"""Resource sets: named sets of entries that form a directed graph without cycles."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import apsw

from proto.errors import InvalidParams
from services.files.store.rows import fetch_all, fetch_value

NAMED_IN_ERRORS = 20


class NoSuchSet(InvalidParams):
    """There is no set of that name; the message lists those there are."""


def find(db: apsw.Connection, name: str, field: str = "name") -> int:
    """The id of a set. Raises NoSuchSet."""
    id_: int | None = fetch_value(db, "SELECT id FROM resource_set WHERE name = ?", (name,))
    if id_ is None:
        names = [row[0] for row in fetch_all(db, "SELECT name FROM resource_set ORDER BY name LIMIT 21")]
        more = ", …" if len(names) > NAMED_IN_ERRORS else ""
        there = ", ".join(names[:NAMED_IN_ERRORS]) + more if names else "none; resource-set-create makes one"
        raise NoSuchSet(f"`{field}`: resource-set not found: {name[:200]!r}; there are: {there}", field=field)
    return id_


def make(db: apsw.Connection, name: str, description: str = "") -> int:
    """The id of the set of that name, which is made where it is missing."""
    now = time.time_ns()
    db.execute("INSERT OR IGNORE INTO resource_set(name, description, created, updated) VALUES(?,?,?,?)",
               (name, description, now, now))  # fmt: skip
    return find(db, name)


def add(db: apsw.Connection, set_id: int, entries: Iterable[int]) -> int:
    """Put entries, by their ids, into a set; answers how many were not in it."""
    before = db.total_changes()
    now = time.time_ns()
    db.executemany("INSERT OR IGNORE INTO member VALUES(?,?,?)", ((set_id, entry, now) for entry in entries))
    added = db.total_changes() - before
    db.execute("UPDATE resource_set SET updated = ? WHERE id = ?", (now, set_id))
    return added


def remove(db: apsw.Connection, set_id: int, entries: Iterable[int]) -> int:
    """Take entries out of a set; answers how many were in it."""
    before = db.total_changes()
    db.executemany("DELETE FROM member WHERE set_id = ? AND entry_id = ?", ((set_id, entry) for entry in entries))
    removed = db.total_changes() - before
    db.execute("UPDATE resource_set SET updated = ? WHERE id = ?", (time.time_ns(), set_id))
    return removed


def around(db: apsw.Connection, start: int, *, down: bool, depth: int | None) -> list[tuple[int, int]]:
    """The sets below (or above) one, with the steps to each, nearest first and each once; `start` is not among them.

    Args:
        depth: levels to follow; None is all.
    """
    there, here = ("child", "parent") if down else ("parent", "child")
    query = f"SELECT {there} FROM edge JOIN resource_set s ON s.id = {there} WHERE {here} = ? ORDER BY s.name"
    found = {start: 0}
    border, level = [start], 0
    while border and (depth is None or level < depth):
        level += 1
        reached = [id_ for one in border for (id_,) in fetch_all(db, query, (one,))]
        border = [id_ for id_ in dict.fromkeys(reached) if id_ not in found]
        found.update(dict.fromkeys(border, level))
    del found[start]
    return list(found.items())


def with_children(db: apsw.Connection, start: int, depth: int | None = None) -> list[int]:
    """A set and those below it."""
    return [start, *(id_ for id_, _ in around(db, start, down=True, depth=depth))]


def names(db: apsw.Connection, ids: Sequence[int]) -> dict[int, str]:
    """Names by id."""
    return {id_: fetch_value(db, "SELECT name FROM resource_set WHERE id = ?", (id_,)) for id_ in ids}


def counts(db: apsw.Connection, id_: int) -> tuple[int, int]:
    """How many entries a set itself has, and how many children."""
    entries: int = fetch_value(db, "SELECT count(*) FROM member WHERE set_id = ?", (id_,))
    children: int = fetch_value(db, "SELECT count(*) FROM edge WHERE parent = ?", (id_,))
    return entries, children


def present(db: apsw.Connection, entries: Sequence[int]) -> set[int]:
    """Those ids of which there is an entry."""
    return {
        id_ for entry in entries for (id_,) in fetch_all(db, "SELECT id FROM entry WHERE id = ? AND scanned", (entry,))
    }
