"""The resource sets of entries in the trash: a restored entry is in them again, with the time it was added."""

from __future__ import annotations

import apsw

from services.files import paths
from services.files.index.tree import below, find
from services.files.store.rows import fetch_all

SALVAGED = 0
"""Stands for an item: what was in sets in a damaged database."""


def remember(db: apsw.Connection, trash_id: int, path: str) -> None:
    """Note the sets of the entry at a clean path, and of all below it, which goes into the trash."""
    stored = find(db, path)
    if stored is None:
        return
    db.execute("INSERT INTO trash_member SELECT ?, '', set_id, added, NULL FROM member WHERE entry_id = ?",
               (trash_id, stored.id))  # fmt: skip
    db.execute(
        "INSERT INTO trash_member SELECT ?, substr(folder.path || entry.name, ?), member.set_id, member.added, NULL"
        " FROM folder JOIN entry ON entry.parent = folder.id JOIN member ON member.entry_id = entry.id"
        " WHERE folder.path >= ? AND folder.path < ?",
        (trash_id, len(path) + 1, *below(paths.as_folder(path))),
    )


def came_back(db: apsw.Connection, trash_id: int, target: str) -> None:
    """The item is at a clean path now; what the index has of it is in its sets again."""
    db.execute("UPDATE trash_member SET target = ? WHERE trash_id = ?", (target, trash_id))
    _rejoin(db, trash_id)


def waiting(db: apsw.Connection) -> list[tuple[int, str]]:
    """Items that came back, of which not all was in the index then: their number and where they are."""
    rows = fetch_all(db, "SELECT DISTINCT trash_id, target FROM trash_member WHERE target <> ''")
    return [(trash_id, target) for trash_id, target in rows]


def scanned(db: apsw.Connection, trash_id: int = SALVAGED) -> None:
    """All of a restored item is in the index now; members that are not there no longer exist."""
    _rejoin(db, trash_id)
    db.execute("DELETE FROM trash_member WHERE trash_id = ? AND target IS NOT NULL", (trash_id,))


def _rejoin(db: apsw.Connection, trash_id: int) -> None:
    # What stays when all but slashes is trimmed from the right is the path of the folder, with its slash.
    there = (
        "SELECT tm.set_id, e.id, tm.added, tm.inside FROM (SELECT *, target || inside AS path FROM trash_member"
        " WHERE trash_id = ? AND target IS NOT NULL) tm"
        " CROSS JOIN folder f ON f.path = rtrim(tm.path, replace(tm.path, '/', ''))"
        " CROSS JOIN entry e ON e.parent = f.id AND e.name = substr(tm.path, length(f.path) + 1) AND e.scanned"
    )
    db.execute(f"INSERT OR IGNORE INTO member SELECT set_id, id, added FROM ({there})", (trash_id,))
    db.execute(
        f"DELETE FROM trash_member WHERE trash_id = ? AND (set_id, inside) IN (SELECT set_id, inside FROM ({there}))",
        (trash_id, trash_id),
    )
