"""Resource sets: named sets of entries that form an acyclic directed graph, and sums over them."""

from __future__ import annotations

import bisect
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

import apsw
import msgspec

from services.files.operations.resources import Metric
from services.files.query import named
from services.files.query.column_names import SET
from services.files.query.columns import Columns, is_large
from services.files.store.sql import fetch_all, fetch_value


def find(db: apsw.Connection, name: str, field: str = "name") -> int:
    """Return the id of a set. Raises InvalidParams, which lists the existing ones."""
    id_: int = named.find(db, "resource-set", name, field)[0]
    return id_


def make(db: apsw.Connection, name: str, description: str = "") -> int:
    """Return the id of the set of that name, creating it if it is missing."""
    now = time.time_ns()
    db.execute("INSERT OR IGNORE INTO resource_set(name, description, created, updated) VALUES(?,?,?,?)",
               (name, description, now, now))  # fmt: skip
    return find(db, name)


def add(db: apsw.Connection, set_id: int, entries: Iterable[int]) -> int:
    """Add entries to a set by their ids. Returns how many were new."""
    before = db.total_changes()
    now = time.time_ns()
    db.executemany("INSERT OR IGNORE INTO member VALUES(?,?,?)", ((set_id, entry, now) for entry in entries))
    added = db.total_changes() - before
    db.execute("UPDATE resource_set SET updated = ? WHERE id = ?", (now, set_id))
    return added


def remove(db: apsw.Connection, set_id: int, entries: Iterable[int]) -> int:
    """Remove entries from a set. Returns how many were in it."""
    before = db.total_changes()
    db.executemany("DELETE FROM member WHERE set_id = ? AND entry_id = ?", ((set_id, entry) for entry in entries))
    removed = db.total_changes() - before
    db.execute("UPDATE resource_set SET updated = ? WHERE id = ?", (time.time_ns(), set_id))
    return removed


def around(db: apsw.Connection, start: int, *, down: bool, depth: int | None) -> list[tuple[int, int]]:
    """Return the sets below (or above) a set with their distance, nearest first and each once, without `start` itself.
    Follows `depth` levels; None means all."""
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
    """Return a set and those below it."""
    return [start, *(id_ for id_, _ in around(db, start, down=True, depth=depth))]


def name(db: apsw.Connection, id_: int) -> str:
    """Return a set's name by its id."""
    found: str = fetch_value(db, "SELECT name FROM resource_set WHERE id = ?", (id_,))
    return found


def counts(db: apsw.Connection, id_: int) -> tuple[int, int]:
    """Return the number of a set's own entries, and of its children."""
    entries: int = fetch_value(db, "SELECT count(*) FROM member WHERE set_id = ?", (id_,))
    children: int = fetch_value(db, "SELECT count(*) FROM edge WHERE parent = ?", (id_,))
    return entries, children


def present(db: apsw.Connection, entries: Sequence[int]) -> set[int]:
    """Return those ids that belong to an entry."""
    return {
        id_
        for entry in entries
        for (id_,) in fetch_all(db, "SELECT id FROM entry WHERE id = ? AND scanned > 0", (entry,))
    }


# Sums that count nothing twice: neither an entry, nor the content of a directory that counts itself


def sums_by_part(columns: Columns, db: apsw.Connection, parts: Sequence[Sequence[int]], metric: Metric) -> list[int]:
    """Return what each part, a list of set ids, adds to the parts before it; a set in several parts counts in the
    first."""
    found = _from_columns(columns, db, parts, metric)
    return _from_tables(db, parts, metric) if found is None else found


def _from_columns(
    columns: Columns, db: apsw.Connection, parts: Sequence[Sequence[int]], metric: Metric
) -> list[int] | None:
    every = msgspec.json.encode([id_ for part in parts for id_ in part]).decode()
    if not is_large(db, "member WHERE set_id IN (SELECT value FROM json_each(?))", (every,)):
        return None
    view = columns.view(db, {"above", "kind", "size", "shown", *(f"{SET}{id_}" for part in parts for id_ in part)})
    if view is None:
        return None
    first = (
        "SELECT min(json_extract(p.value, '$[1]')) FROM json_each(?) p CROSS JOIN member m"
        " ON m.set_id = json_extract(p.value, '$[0]') AND m.entry_id = e.id"
    )
    query = (
        f"SELECT e.id, e.parent, e.kind, e.size, iif(e.scanned > 0, coalesce(({first}), -1), -1)"
        " FROM json_each(?) c CROSS JOIN entry e ON e.id = c.value"
    )
    pairs = [(id_, part) for part, sets in enumerate(parts) for id_ in sets]
    given = [msgspec.json.encode(value).decode() for value in (pairs, view.changed)]
    return view.sums(parts, metric, fetch_all(db, query, given) if view.changed else ())


def _from_tables(db: apsw.Connection, parts: Sequence[Sequence[int]], metric: Metric) -> list[int]:
    with_, given = _of_parts(parts)
    values = [0] * len(parts)
    if metric != "size":
        wanted = {"count": "1", "files": "n.kind = 0", "directories": "n.kind = 1"}[metric]
        query = f"{with_} SELECT part.part, sum({wanted}) FROM part JOIN node n ON n.id = part.id GROUP BY part.part"
        for part, value in fetch_all(db, query, given):
            values[part] = value
        return values
    query = f"{with_} SELECT part.part, n.path, n.size FROM part JOIN node n ON n.id = part.id WHERE n.kind = 1"
    folders = fetch_all(db, query, given)
    from_ = "FROM part JOIN node n ON n.id = part.id WHERE n.kind <> 1"
    if not folders:
        for part, size in fetch_all(db, f"{with_} SELECT part.part, sum(n.size) {from_} GROUP BY part.part", given):
            values[part] += size
        return values
    query = f"{with_} SELECT part.part, n.folder, sum(n.size) {from_} GROUP BY n.parent, part.part"
    files = fetch_all(db, query, given)
    so_far = 0
    for part in range(len(parts)):
        total = _covered(
            [(path, size) for at, path, size in folders if at <= part],
            [(folder, size) for at, folder, size in files if at <= part],
        )
        values[part], so_far = total - so_far, total
    return values


def _of_parts(parts: Sequence[Sequence[int]]) -> tuple[str, tuple[str | int]]:
    """Return an SQL prefix that defines `part`, each entry with the first part it is in, and its binding."""
    of_set: dict[int, int] = {}
    for part, sets in enumerate(parts):
        for set_id in sets:
            of_set.setdefault(set_id, part)
    if len(of_set) == 1:
        # No entry is in a single set twice, so the sort for grouping is unnecessary.
        return "WITH part AS (SELECT entry_id AS id, 0 AS part FROM member WHERE set_id = ?)", (next(iter(of_set)),)
    return (
        "WITH part AS (SELECT m.entry_id AS id, min(p.part) AS part FROM member m JOIN"
        " (SELECT json_extract(value, '$[0]') AS set_id, json_extract(value, '$[1]') AS part FROM json_each(?)) p"
        " ON p.set_id = m.set_id GROUP BY m.entry_id)"
    ), (msgspec.json.encode(list(of_set.items())).decode(),)


def _covered(folders: list[tuple[str, int]], files: list[tuple[str, int]]) -> int:
    """Return the size of directories (path, size) and files (folder, size), counting each byte once."""
    outermost: list[str] = []
    total = 0
    # A path with its slash sorts before everything below it.
    for path, size in sorted((path if path.endswith("/") else f"{path}/", size) for path, size in folders):
        if not outermost or not path.startswith(outermost[-1]):
            outermost.append(path)
            total += size
    sizes: dict[str, int] = defaultdict(int)
    for folder, size in files:
        sizes[folder] += size
    for folder, size in sizes.items():
        at = bisect.bisect_right(outermost, folder) - 1
        if at < 0 or not folder.startswith(outermost[at]):
            total += size
    return total
