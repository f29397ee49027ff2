"""Sums over sets of entries in which nothing counts twice: no entry, nor what lies in a directory that counts."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence

import apsw
import msgspec

from services.files.store.rows import fetch_all


def by_part(db: apsw.Connection, parts: Sequence[Sequence[int]], metric: str) -> list[int]:
    """What each part adds to those before it.

    Args:
        parts: ids of sets; a set may be in several, and counts in the first.
        metric: `size`, `count`, `files` or `directories`.
    """
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
    """An SQL prefix that gives entries in `part` the first part they are in, and what its placeholder stands for."""
    of_set: dict[int, int] = {}
    for part, sets in enumerate(parts):
        for set_id in sets:
            of_set.setdefault(set_id, part)
    if len(of_set) == 1:
        # No entry is in it twice: there is nothing to be grouped, which takes a sort.
        return "WITH part AS (SELECT entry_id AS id, 0 AS part FROM member WHERE set_id = ?)", (next(iter(of_set)),)
    return (
        "WITH part AS (SELECT m.entry_id AS id, min(p.part) AS part FROM member m JOIN"
        " (SELECT json_extract(value, '$[0]') AS set_id, json_extract(value, '$[1]') AS part FROM json_each(?)) p"
        " ON p.set_id = m.set_id GROUP BY m.entry_id)"
    ), (msgspec.json.encode(list(of_set.items())).decode(),)


def _covered(folders: list[tuple[str, int]], files: list[tuple[str, int]]) -> int:
    """The size of directories, given by path and size, and of files, given by folder and size, with each byte once."""
    outermost: list[str] = []
    total = 0
    # A path with its slash sorts before all that lies in it.
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
