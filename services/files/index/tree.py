"""The stored tree: its entries, which directories changed beside the scans, when paths were scanned, and how large each
directory was then. `edit` changes it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

import apsw

from services.files import paths
from services.files.index.listing import Ignored
from services.files.store.sql import fetch_all, fetch_one, fetch_value
from services.runtime import times
from services.runtime.database import Database


class Stored(NamedTuple):
    """An entry as it is stored."""

    id: int
    parent: int
    name: str
    kind: int
    size: int
    disk: int
    files: int
    directories: int
    mtime: int
    ctime: int
    inode: int
    device: int
    links: int
    extension: str
    scanned: int


def find(db: apsw.Connection, path: str) -> Stored | None:
    """The entry of a clean path, whether it was scanned or is only on the way to one that was."""
    folder, name = paths.split(path)
    row = fetch_one(
        db,
        "SELECT entry.* FROM folder JOIN entry ON entry.parent = folder.id WHERE folder.path = ? AND entry.name = ?",
        (folder, name),
    )
    return None if row is None else Stored(*row)


def find_scanned(db: apsw.Connection, path: str) -> Stored | None:
    """The entry of a clean path, if it was scanned."""
    found = find(db, path)
    return found if found is not None and found.scanned else None


def folder_path(db: apsw.Connection, id_: int) -> str | None:
    """The path of a directory, with its slash."""
    path: str | None = fetch_value(db, "SELECT path FROM folder WHERE id = ?", (id_,))
    return path


def below(folder: str) -> tuple[str, str]:
    """The bounds of all folder paths at or below a folder's: `path >= first AND path < second`."""
    # "0" is what follows "/".
    return folder, folder[:-1] + "0"


class Tree(NamedTuple):
    """What is needed to bring the stored tree in step with the disk."""

    database: Database
    invalidations: Invalidations
    ignored: Ignored | None


class Invalidations:
    """Directories that were changed by something other than a scan, and when: what a scan read before that is out of
    date. Times are marks that only rise. For any thread.

    File operations and live events add a directory once their change is in the index.
    """

    _MAX_FOLDERS = 100_000
    """Kept; the oldest go first, long after the scans that they matter to have written what they read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders: OrderedDict[str, int] = OrderedDict()
        self._mark = 0

    @property
    def mark(self) -> int:
        """Now."""
        return self._mark

    def add(self, *folders: str) -> None:
        """These directories (paths with slash) have changed since they were last read."""
        with self._lock:
            self._mark += 1
            for folder in folders:
                self._folders[folder] = self._mark
                self._folders.move_to_end(folder)
            while len(self._folders) > self._MAX_FOLDERS:
                self._folders.popitem(last=False)

    def has(self, folder: str, mark: int) -> bool:
        """Whether a directory changed after `mark`."""
        return self._folders.get(folder, 0) > mark

    def since(self, mark: int, root: str) -> list[str]:
        """The directories at or below a clean path that changed after `mark`, as clean paths."""
        with self._lock:
            found = [folder for folder, at in self._folders.items() if at > mark]
        return [clean for folder in found if paths.is_within(clean := paths.of_folder(folder), (root,))]


# When paths were scanned, and how large each directory was after each scan

KEPT_NS = 400 * times.DAY_NS
"""Rows of `history`; there is one only where the size changed, so that a tree that stays as it is takes no room."""


def last_scan(db: apsw.Connection, path: str) -> int | None:
    """When the last scan of a clean path, or of a directory above it, ended, in nanoseconds; None where none did."""
    roots = [path, *paths.ancestors(path)]
    at: int | None = fetch_value(db, f"SELECT max(finished) FROM scan WHERE root IN ({_marks(roots)})", roots)
    return at


def skip_reason(db: apsw.Connection, root: str, max_age_s: float, now: int) -> str | None:
    """Why a path need not be scanned: its own last scan, or that of a directory above it, is young enough."""
    at, known = last_scan(db, root), find(db, root)
    if at is None or known is None or not known.scanned:
        return None
    age_s = max(0, now - at) / 1e9
    if age_s >= max_age_s:
        return None
    return f"Path was scanned {int(age_s)} seconds ago (max age: {max_age_s:.10g} seconds). Use force=true to re-index."


def scans_of(db: apsw.Connection, path: str) -> list[int]:
    """When scans of a clean path, or of a directory above it, ended, newest first."""
    roots = [path, *paths.ancestors(path)]
    rows = fetch_all(
        db,
        f"SELECT finished FROM job WHERE root IN ({_marks(roots)}) AND status = 'completed' AND skipped IS NULL"
        " ORDER BY finished DESC LIMIT 1000",
        roots,
    )
    return [finished for (finished,) in rows]


def _marks(values: list[str]) -> str:
    return ",".join("?" * len(values))


class Sizes(NamedTuple):
    """Of a directory at some time."""

    size: int
    files: int


def record_sizes(db: apsw.Connection, root: str, now: int) -> None:
    """Keep how large the directories at, below and above a clean path are after its scan."""
    inside = below(paths.as_folder(root))
    insert = (
        "INSERT OR REPLACE INTO history SELECT f.path, ?, e.size, e.files FROM folder f JOIN entry e ON e.id = f.id"
        " WHERE e.scanned > 0 AND (e.size, e.files) IS NOT"
        " (SELECT size, files FROM history h WHERE h.path = f.path ORDER BY h.at DESC LIMIT 1)"
    )
    db.execute(f"{insert} AND f.path >= ? AND f.path < ?", (now, *inside))
    for at in paths.ancestors(root):
        db.execute(f"{insert} AND f.path = ?", (now, paths.as_folder(at)))
    db.execute(
        "INSERT OR REPLACE INTO history SELECT path, ?, 0, 0 FROM"
        " (SELECT path, max(at), size, files FROM history WHERE path >= ? AND path < ? GROUP BY path)"
        " WHERE (size > 0 OR files > 0) AND path NOT IN (SELECT path FROM folder WHERE path >= ? AND path < ?)",
        (now, *inside, *inside),
    )
    # The newest of the expired rows has the size at the start of the kept period.
    db.execute(
        "DELETE FROM history WHERE at < ? AND path >= ? AND path < ? AND EXISTS"
        " (SELECT 1 FROM history h WHERE h.path = history.path AND h.at > history.at AND h.at < ?)",
        (now - KEPT_NS, *inside, now - KEPT_NS),
    )


def sizes_at(db: apsw.Connection, root: str, at: int) -> dict[str, Sizes]:
    """How large the directories at and below a clean path were then, by path with slash."""
    rows = fetch_all(
        db,
        "SELECT path, size, files, max(at) FROM history WHERE path >= ? AND path < ? AND at <= ? GROUP BY path",
        (*below(paths.as_folder(root)), at),
    )
    return {path: Sizes(size, files) for path, size, files, _ in rows}


def sizes_now(db: apsw.Connection, root: str) -> dict[str, Sizes]:
    """How large they are in the index."""
    rows = fetch_all(
        db,
        "SELECT f.path, e.size, e.files FROM folder f JOIN entry e ON e.id = f.id"
        " WHERE e.scanned > 0 AND f.path >= ? AND f.path < ?",
        below(paths.as_folder(root)),
    )
    return {path: Sizes(size, files) for path, size, files in rows}
