"""Sums over sets of entries in which nothing counts twice: no entry, nor what lies in a directory that counts."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence

import apsw
import msgspec

from services.files.store.rows import fetch_all

_OF_PARTS = (
    "WITH part AS (SELECT m.entry_id AS id, min(p.part) AS part FROM member m JOIN"
    " (SELECT json_extract(value, '$[0]') AS set_id, json_extract(value, '$[1]') AS part FROM json_each(?)) p"
    " ON p.set_id = m.set_id GROUP BY m.entry_id) "
)


def by_part(db: apsw.Connection, parts: Sequence[Sequence[int]], metric: str) -> list[int]:
    """What each part adds to those before it.

    Args:
        parts: ids of sets; a set may be in several, and counts in the first.
        metric: `size`, `count`, `files` or `directories`.
    """
    of_set: dict[int, int] = {}
    for part, sets in enumerate(parts):
        for set_id in sets:
            of_set.setdefault(set_id, part)
    given = (msgspec.json.encode(list(of_set.items())).decode(),)
    values = [0] * len(parts)
    if metric != "size":
        wanted = {"count": "1", "files": "n.kind = 0", "directories": "n.kind = 1"}[metric]
        query = (
            f"{_OF_PARTS} SELECT part.part, sum({wanted}) FROM part JOIN node n ON n.id = part.id GROUP BY part.part"
        )
        for part, value in fetch_all(db, query, given):
            values[part] = value
        return values
    query = f"{_OF_PARTS} SELECT part.part, n.path, n.size FROM part JOIN node n ON n.id = part.id WHERE n.kind = 1"
    folders = fetch_all(db, query, given)
    query = (
        f"{_OF_PARTS} SELECT part.part, n.folder, sum(n.size) FROM part JOIN node n ON n.id = part.id"
        " WHERE n.kind <> 1 GROUP BY n.parent, part.part"
    )
    files = fetch_all(db, query, given)
    if not folders:
        for part, _, size in files:
            values[part] += size
        return values
    so_far = 0
    for part in range(len(parts)):
        total = _covered(
            [(path, size) for at, path, size in folders if at <= part],
            [(folder, size) for at, folder, size in files if at <= part],
        )
        values[part], so_far = total - so_far, total
    return values


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
