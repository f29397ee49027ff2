"""Updates the index after a change on disk.

Moved entries keep their rows, their resource sets and everything below them; entries restored from the trash rejoin
their sets. Each function runs within a transaction. Those that change the tree keep all scans from writing, and
invalidate what scans may have read before.
"""

from __future__ import annotations

import time

import apsw

from services.files import paths
from services.files.index.edit import Edit
from services.files.index.listing import DiskEntry, look
from services.files.index.tree import StoredEntry, Tree, below, find, find_scanned, last_scan
from services.files.store import schema
from services.files.store.sql import fetch_all, fetch_value
from services.runtime import keyed

SALVAGED = 0
"""Trash id that stands for the former set members of a damaged database."""


class Follow:
    """Updates the index after changes."""

    def __init__(self, tree: Tree) -> None:
        _, self._invalidations, self._ignored = tree

    def _is_ignored(self, path: str, found: DiskEntry) -> bool:
        return self._ignored is not None and self._ignored(*paths.split(path), found.kind == schema.DIRECTORY)

    def moved(self, db: apsw.Connection, source: str, target: str) -> bool:
        """Store that an entry has moved from one clean path to another. Returns True if the new path must be
        scanned."""
        found = look(target)
        if found is None:
            return self.seen(db, source) | self.seen(db, target)
        edit = Edit(db, time.time_ns())
        stale = find(db, target)
        if stale is not None:
            edit.remove(stale)
        stored = find(db, source)
        if stored is not None and (stored.kind != found.kind or self._is_ignored(target, found)):
            # It is now ignored, or the index did not know yet that something else is at this path.
            edit.remove(stored)
            stored = None
        edit.flush()
        incomplete = not self._is_ignored(target, found) and self._moved(db, edit, stored, target, found)
        self._refresh(db, edit, source)
        self._refresh(db, edit, target)
        edit.finish()
        _move_scans(db, source, target)
        return incomplete

    def _moved(
        self, db: apsw.Connection, edit: Edit, stored: StoredEntry | None, target: str, found: DiskEntry
    ) -> bool:
        folder, name = paths.split(target)
        above = paths.of_folder(folder)
        is_shown = find_scanned(db, above) is not None or (stored is not None and stored.scanned != 0)
        if stored is None and not is_shown:
            return False
        parent = edit.reach(above)
        if stored is not None:
            edit.move(stored, parent, name)
            edit.flush()
        if is_shown:
            edit.put(parent, folder, found)
            edit.flush()
        if found.kind != schema.DIRECTORY or not is_shown:
            return False
        # Check for directories at or below it that were never listed, or need to be listed again.
        unread = "SELECT 1 FROM folder WHERE path >= ? AND path < ? AND fingerprint IS NULL AND problem IS NULL LIMIT 1"
        return stored is None or fetch_value(db, unread, _inside(target)) is not None

    def seen(self, db: apsw.Connection, path: str) -> bool:
        """Update the entry at a clean path, or remove it if nothing is there. Returns True if it must be scanned."""
        edit = Edit(db, time.time_ns())
        found, stored = look(path), find(db, path)
        must_scan = False
        folder, _ = paths.split(path)
        if found is None:
            if stored is not None:
                edit.remove(stored)
            db.execute("DELETE FROM scan WHERE root = ? OR (root >= ? AND root < ?)", (path, *_inside(path)))
        elif folder and not self._is_ignored(path, found):
            above = paths.of_folder(folder)
            if find_scanned(db, above) is not None or (stored is not None and stored.scanned):
                edit.put(edit.reach(above), folder, found)
                must_scan = found.kind == schema.DIRECTORY
        edit.flush()
        self._refresh(db, edit, path)
        edit.finish()
        return must_scan

    def _refresh(self, db: apsw.Connection, edit: Edit, path: str) -> None:
        """Update the directories above a changed path, which have changed too."""
        self._invalidations.add(paths.split(path)[0] or "/")
        for at in paths.ancestors(path):
            stored = find_scanned(db, at)
            if at == "/" or stored is None:
                continue
            found = look(at)
            if found is None or found.kind != schema.DIRECTORY:
                return
            if (stored.mtime, stored.ctime) == (found.mtime, found.ctime):
                return
            edit.put(stored.parent, paths.split(at)[0], found)


def remove_intent(db: apsw.Connection, id_: int, *, done: bool) -> None:
    """Delete the record of a change, and store whether it was done for the call with a key that asked for it."""
    db.execute("DELETE FROM intent WHERE id = ?", (id_,))
    keyed.settle_step(db, id_, done=done)


def highest_new(db: apsw.Connection, path: str) -> str:
    """Return the highest directory at or above a new entry that the index lacks, although it has the one above; the
    path itself if there is none."""
    highest = path
    for at in paths.ancestors(path):
        if find_scanned(db, at) is not None:
            return highest
        highest = at
    return path


def _inside(path: str) -> tuple[str, str]:
    return below(paths.as_folder(path))


def _move_scans(db: apsw.Connection, source: str, target: str) -> None:
    """Move the scan times of a path along with it."""
    db.execute("DELETE FROM scan WHERE root = ? OR (root >= ? AND root < ?)", (target, *_inside(target)))
    at = last_scan(db, source)
    db.execute(
        "UPDATE OR REPLACE scan SET root = ? || substr(root, ?) WHERE root = ? OR (root >= ? AND root < ?)",
        (target, len(source) + 1, source, *_inside(source)),
    )
    if at is not None and find(db, target) is not None:
        db.execute("INSERT OR IGNORE INTO scan VALUES(?, ?)", (target, at))


# Set members in the trash


def remember(db: apsw.Connection, trash_id: int, path: str) -> None:
    """Record the sets of the entry at a clean path, and of everything below it, before it goes into the trash."""
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
    """Store where an item was restored; whatever is indexed of it rejoins its sets."""
    db.execute("UPDATE trash_member SET target = ? WHERE trash_id = ?", (target, trash_id))
    _rejoin(db, trash_id)


def waiting(db: apsw.Connection) -> list[tuple[int, str]]:
    """Return the ids and paths of restored items that were not fully indexed."""
    rows = fetch_all(db, "SELECT DISTINCT trash_id, target FROM trash_member WHERE target <> ''")
    return [(trash_id, target) for trash_id, target in rows]


def scanned(db: apsw.Connection, trash_id: int = SALVAGED) -> None:
    """Store that a restored item is fully indexed; set members that are still missing no longer exist."""
    _rejoin(db, trash_id)
    db.execute("DELETE FROM trash_member WHERE trash_id = ? AND target IS NOT NULL", (trash_id,))


def _rejoin(db: apsw.Connection, trash_id: int) -> None:
    # Trimming everything but slashes from the right leaves the folder's path with its slash.
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
