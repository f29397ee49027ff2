"""The index after a change on the disk: what was moved keeps its row, its place in resource sets and all below it.

Each function belongs to a transaction that holds off every scan, and tells scans what they may have read before.
"""

from __future__ import annotations

import time

import apsw

from services.files import paths
from services.files.index.invalidations import Invalidations
from services.files.index.job_rows import last_scan
from services.files.index.listing import Found, Ignored, look
from services.files.index.tree import Edit, below, find
from services.files.store import schema
from services.files.store.rows import fetch_one


class Follow:
    """What the index needs to follow changes."""

    def __init__(self, invalidations: Invalidations, ignored: Ignored | None) -> None:
        self._invalidations = invalidations
        self._ignored = ignored

    def moved(self, db: apsw.Connection, source: str, target: str) -> bool:
        """What was at one clean path is at another now; answers whether the new one must be scanned."""
        found = look(target)
        if found is None:
            return self.seen(db, source) | self.seen(db, target)
        edit = Edit(db, time.time_ns())
        stale = find(db, target)
        if stale is not None:
            edit.remove(stale)
            edit.flush()
        incomplete = self._moved(db, edit, source, target, found)
        self._refresh(db, edit, source)
        self._refresh(db, edit, target)
        edit.finish()
        _move_scans(db, source, target)
        return incomplete

    def _moved(self, db: apsw.Connection, edit: Edit, source: str, target: str, found: Found) -> bool:
        folder, name = paths.split(target)
        above = folder.rstrip("/") or "/"
        parent = find(db, above)
        parent_scanned = parent is not None and parent.scanned > 0
        stored = find(db, source)
        if self._ignored is not None and self._ignored(folder, name, found.kind == schema.DIRECTORY):
            if stored is not None:
                edit.remove(stored)
            return False
        if stored is not None and stored.kind != found.kind:
            # The index had not heard yet that something else is there.
            edit.remove(stored)
            edit.flush()
            stored = None
        if stored is None:
            if not parent_scanned:
                return False
            edit.put(edit.reach(above, look), folder, found)
            return found.kind == schema.DIRECTORY
        to = edit.reach(above, look)
        edit.move(stored, to, name)
        edit.flush()
        if stored.scanned or parent_scanned:
            edit.put(to, folder, found)
            edit.flush()
        return found.kind == schema.DIRECTORY and (stored.scanned > 0 or parent_scanned) and _unread(db, target)

    def seen(self, db: apsw.Connection, path: str) -> bool:
        """What is at a clean path now, or that nothing is; answers whether it must be scanned."""
        edit = Edit(db, time.time_ns())
        found, stored = look(path), find(db, path)
        must_scan = False
        folder, name = paths.split(path)
        if found is None:
            if stored is not None:
                edit.remove(stored)
            db.execute("DELETE FROM scan WHERE root = ? OR (root >= ? AND root < ?)", (path, *_inside(path)))
        elif folder and (self._ignored is None or not self._ignored(folder, name, found.kind == schema.DIRECTORY)):
            parent = find(db, folder.rstrip("/") or "/")
            if (parent is not None and parent.scanned) or (stored is not None and stored.scanned):
                edit.put(edit.reach(folder.rstrip("/") or "/", look), folder, found)
                must_scan = found.kind == schema.DIRECTORY
        edit.flush()
        self._refresh(db, edit, path)
        edit.finish()
        return must_scan

    def _refresh(self, db: apsw.Connection, edit: Edit, path: str) -> None:
        """The directories above a clean path, which have changed with it."""
        folder, _ = paths.split(path)
        if not folder:
            return
        self._invalidations.add(folder)
        at = folder.rstrip("/") or "/"
        while at != "/":
            above, _ = paths.split(at)
            stored = find(db, at)
            if stored is not None and stored.scanned:
                found = look(at)
                if found is None or found.kind != schema.DIRECTORY:
                    return
                if (stored.mtime, stored.ctime) == (found.mtime, found.ctime):
                    return
                edit.put(stored.parent, above, found)
            at = above.rstrip("/") or "/"


def _inside(path: str) -> tuple[str, str]:
    return below(paths.as_folder(path))


def _unread(db: apsw.Connection, path: str) -> bool:
    """Whether some directory at or below a clean path is stored and was never listed, or is to be listed again."""
    query = "SELECT 1 FROM folder WHERE path >= ? AND path < ? AND fingerprint IS NULL AND problem IS NULL LIMIT 1"
    return fetch_one(db, query, _inside(path)) is not None


def _move_scans(db: apsw.Connection, source: str, target: str) -> None:
    """When a path was scanned moves with it."""
    db.execute("DELETE FROM scan WHERE root = ? OR (root >= ? AND root < ?)", (target, *_inside(target)))
    at = last_scan(db, source)
    db.execute(
        "UPDATE OR REPLACE scan SET root = ? || substr(root, ?) WHERE root = ? OR (root >= ? AND root < ?)",
        (target, len(source) + 1, source, *_inside(source)),
    )
    if at is not None and find(db, target) is not None:
        db.execute("INSERT OR IGNORE INTO scan VALUES(?, ?)", (target, at))
