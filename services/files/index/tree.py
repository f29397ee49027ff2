"""The stored tree: how entries are read, and which directories changed beside the scans.

`edit` changes it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

import apsw

from services.files import paths
from services.files.store.sql import fetch_one, fetch_value


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
