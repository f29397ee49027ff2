"""The stored tree: its entries, invalidations by changes outside scans, scan times, and past directory sizes. `edit`
changes it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

import apsw

from services.files import paths
from services.files.index.listing import Ignored
from services.files.operations.index import Wholes
from services.files.store import schema
from services.files.store.sql import fetch_all, fetch_one, fetch_value
from services.runtime.database import Database
from services.shared import times
from services.shared.ignore_files import GENERATED, VERSION_CONTROL


class Totals(NamedTuple):
    """Files and directories at and below a path, and the bytes of the files."""

    files: int
    directories: int
    size: int


class StoredEntry(NamedTuple):
    """An entry as stored."""

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


def find(db: apsw.Connection, path: str) -> StoredEntry | None:
    """Return the entry of a clean path, whether scanned or merely a parent of something scanned."""
    folder, name = paths.split(path)
    row = fetch_one(
        db,
        "SELECT entry.* FROM folder JOIN entry ON entry.parent = folder.id WHERE folder.path = ? AND entry.name = ?",
        (folder, name),
    )
    return None if row is None else StoredEntry(*row)


def find_scanned(db: apsw.Connection, path: str) -> StoredEntry | None:
    """Return the entry of a clean path, if it was scanned."""
    found = find(db, path)
    return found if found is not None and found.scanned else None


def find_shown(db: apsw.Connection, path: str) -> StoredEntry | None:
    """Return the entry of a clean path, if it was scanned and is a row of its own."""
    found = find(db, path)
    return found if found is not None and found.scanned > 0 else None


def folder_path(db: apsw.Connection, id_: int) -> str | None:
    """Return the path of a directory, with its slash."""
    path: str | None = fetch_value(db, "SELECT path FROM folder WHERE id = ?", (id_,))
    return path


def below(folder: str) -> tuple[str, str]:
    """Return the bounds of all folder paths at or below a folder: `path >= first AND path < second`."""
    # "0" follows "/" in ASCII.
    return folder, folder[:-1] + "0"


# Collapsed directories: their content is indexed, for the sums above and to detect changes, but never shown

STAND_FOR_ALL = VERSION_CONTROL | GENERATED
"""Names of collapsed directories, the same that `add` leaves out."""

PATHS_SHOWN = 5
"""Number of collapsed paths listed in an answer."""


def rows_below(above: int, name: str) -> int:
    """Return `folder.rows` for a directory whose parent has the value `above`."""
    if above in (schema.WHOLE, schema.INSIDE):
        return schema.INSIDE
    return schema.WHOLE if above == schema.RULED and name in STAND_FOR_ALL else above


def rows_of_root(path: str) -> int | None:
    """Return the new `folder.rows` for a clean path that a source follows or scans: the content of a collapsed
    directory is shown if it was asked for. None leaves it unchanged."""
    return None if STAND_FOR_ALL.isdisjoint(path.split("/")) else schema.RULED


def set_rows(db: apsw.Connection, path: str, rows: int) -> None:
    """Store `rows` of the directory at a clean path, and the resulting values for everything below it."""
    top, whole = paths.as_folder(path), ""
    changed: list[tuple[int, int]] = []
    inside = below(top)
    for id_, each, before in db.execute(
        "SELECT id, path, rows FROM folder WHERE path >= ? AND path < ? ORDER BY path", inside
    ):
        if whole and each.startswith(whole):
            wanted = schema.INSIDE
        else:
            wanted = rows if each == top else rows_below(rows, each.rpartition("/")[0].rpartition("/")[2])
            whole = each if wanted in (schema.WHOLE, schema.INSIDE) else ""
        if wanted != before:
            changed.append((wanted, id_))
    db.executemany("UPDATE folder SET rows = ? WHERE id = ?", changed)
    db.executemany("UPDATE entry SET scanned = iif(? = 2, -1, 1) * abs(scanned) WHERE id = ?", changed)
    db.executemany("UPDATE entry SET scanned = iif(? IN (1, 2), -1, 1) * abs(scanned) WHERE parent = ?", changed)


def wholes(db: apsw.Connection, path: str) -> tuple[Wholes, list[str]]:
    """Return the totals of the collapsed directories at or below a clean path, and their paths with slash."""
    rows = fetch_all(
        db,
        "SELECT f.path, e.files, e.directories, e.size FROM folder f JOIN entry e ON e.id = f.id"
        " WHERE f.rows = 1 AND f.path >= ? AND f.path < ? ORDER BY f.path",
        below(paths.as_folder(path)),
    )
    files, directories, size = (sum(row[at] for row in rows) for at in (1, 2, 3))
    first = [paths.of_folder(row[0]) for row in rows[:PATHS_SHOWN]]
    totals = Wholes(folders=len(rows), files=files, directories=directories, size=size, first=first)
    return totals, [row[0] for row in rows]


class Tree(NamedTuple):
    """The parts needed to update the stored tree from the disk."""

    database: Database
    invalidations: Invalidations
    ignored: Ignored | None


class Invalidations:
    """Directories that something other than a scan has changed, and when: whatever a scan read before that is stale.

    Times are marks that only increase. May be used from any thread. File operations and live events add a directory
    once their change is indexed.
    """

    _MAX_FOLDERS = 100_000
    """Number of directories kept; the oldest are dropped long after the scans they concern have written their
    results."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders: OrderedDict[str, int] = OrderedDict()
        self._mark = 0

    @property
    def mark(self) -> int:
        """The current mark."""
        return self._mark

    def add(self, *folders: str) -> None:
        """Record that these directories (paths with slash) have changed."""
        with self._lock:
            self._mark += 1
            for folder in folders:
                self._folders[folder] = self._mark
                self._folders.move_to_end(folder)
            while len(self._folders) > self._MAX_FOLDERS:
                self._folders.popitem(last=False)

    def has(self, folder: str, mark: int) -> bool:
        """True if a directory changed after `mark`."""
        return self._folders.get(folder, 0) > mark

    def since(self, mark: int, root: str) -> list[str]:
        """Return the clean paths of directories at or below a clean path that changed after `mark`."""
        with self._lock:
            found = [folder for folder, at in self._folders.items() if at > mark]
        return [clean for folder in found if paths.is_within(clean := paths.of_folder(folder), (root,))]


# Scan times, and the size of each directory after each scan

KEPT_NS = 400 * times.DAY_NS
"""How long rows of `history` are kept. A row is only added if the size changed, so an unchanged tree takes no space."""


def last_scan(db: apsw.Connection, path: str) -> int | None:
    """Return when the last scan of a clean path, or of a directory above it, ended, in nanoseconds; None if there was
    none."""
    roots = [path, *paths.ancestors(path)]
    at: int | None = fetch_value(db, f"SELECT max(finished) FROM scan WHERE root IN ({_marks(roots)})", roots)
    return at


def skip_reason(db: apsw.Connection, root: str, max_age_s: float, now: int, rows: int | None) -> str | None:
    """Return why a path need not be scanned: its last scan, or that of a directory above it, is recent enough and
    showed what should be shown. None if it must be scanned."""
    at, known = last_scan(db, root), find(db, root)
    if at is None or known is None or not known.scanned:
        return None
    shown = fetch_value(db, "SELECT rows FROM folder WHERE id = ?", (known.id,))
    if shown is not None and rows not in (None, shown):
        return None
    age_s = max(0, now - at) / 1e9
    if age_s >= max_age_s:
        return None
    return f"Path was scanned {int(age_s)} seconds ago (max age: {max_age_s:.10g} seconds). Use force=true to re-index."


def totals(db: apsw.Connection, root: str) -> Totals:
    """Return what the index has at and below a clean path, as the scan of that path would count it."""
    known = find(db, root)
    if known is None:
        return Totals(0, 0, 0)
    if known.kind != schema.DIRECTORY:
        return Totals(int(known.kind == schema.FILE), 0, known.size)
    return Totals(known.files, known.directories + 1, known.size)


def scans_of(db: apsw.Connection, path: str) -> list[int]:
    """Return when scans of a clean path, or of a directory above it, ended, newest first."""
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
    """The size of a directory at some time."""

    size: int
    files: int


def record_sizes(db: apsw.Connection, root: str, now: int) -> None:
    """Record the sizes of the directories at, below and above a clean path after its scan."""
    inside = below(paths.as_folder(root))
    insert = (
        "INSERT OR REPLACE INTO history SELECT f.path, ?, e.size, e.files FROM folder f JOIN entry e ON e.id = f.id"
        " WHERE e.scanned <> 0 AND (e.size, e.files) IS NOT"
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
    # The newest expired row has the size at the start of the kept period.
    db.execute(
        "DELETE FROM history WHERE at < ? AND path >= ? AND path < ? AND EXISTS"
        " (SELECT 1 FROM history h WHERE h.path = history.path AND h.at > history.at AND h.at < ?)",
        (now - KEPT_NS, *inside, now - KEPT_NS),
    )


def sizes_at(db: apsw.Connection, root: str, at: int) -> dict[str, Sizes]:
    """Return the sizes of the directories at and below a clean path at a time, by path with slash."""
    rows = fetch_all(
        db,
        "SELECT path, size, files, max(at) FROM history WHERE path >= ? AND path < ? AND at <= ? GROUP BY path",
        (*below(paths.as_folder(root)), at),
    )
    return {path: Sizes(size, files) for path, size, files, _ in rows}


def sizes_now(db: apsw.Connection, root: str) -> dict[str, Sizes]:
    """Return the current sizes of the directories at and below a clean path, by path with slash."""
    rows = fetch_all(
        db,
        "SELECT f.path, e.size, e.files FROM folder f JOIN entry e ON e.id = f.id"
        " WHERE e.scanned <> 0 AND f.path >= ? AND f.path < ?",
        below(paths.as_folder(root)),
    )
    return {path: Sizes(size, files) for path, size, files in rows}
