"""When paths were scanned, and how large each directory was after each scan: a row only where that had changed, so that
years of scans of a tree that stays as it is take no room."""

from __future__ import annotations

from typing import NamedTuple

import apsw

from services.files import paths, times
from services.files.index.tree import below, find
from services.files.store.sql import fetch_all, fetch_value

KEPT_NS = 400 * times.DAY_NS


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


def scans(db: apsw.Connection, path: str) -> list[int]:
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


def record(db: apsw.Connection, root: str, now: int) -> None:
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


def at_time(db: apsw.Connection, root: str, at: int) -> dict[str, Sizes]:
    """How large the directories at and below a clean path were then, by path with slash."""
    rows = fetch_all(
        db,
        "SELECT path, size, files, max(at) FROM history WHERE path >= ? AND path < ? AND at <= ? GROUP BY path",
        (*below(paths.as_folder(root)), at),
    )
    return {path: Sizes(size, files) for path, size, files, _ in rows}


def now(db: apsw.Connection, root: str) -> dict[str, Sizes]:
    """How large they are in the index."""
    rows = fetch_all(
        db,
        "SELECT f.path, e.size, e.files FROM folder f JOIN entry e ON e.id = f.id"
        " WHERE e.scanned > 0 AND f.path >= ? AND f.path < ?",
        below(paths.as_folder(root)),
    )
    return {path: Sizes(size, files) for path, size, files in rows}
