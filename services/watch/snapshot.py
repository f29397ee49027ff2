"""The state of folders, both stored and on disk: single changes to the former, reads of the latter.

A stored folder keeps its number when it is renamed, so the rows below it need not change. On disk, links are never
followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from typing import Final, NamedTuple

import apsw

from services.shared.creation_time import AT_FDCWD, created_ns
from services.watch.database import Row, select

FILE, FOLDER, LINK, OTHER = range(4)

ROOT: Final = 0
"""The parent of a watched folder."""

_MAX_INT: Final = 2**63 - 1
_CACHED_PATHS: Final = 100_000
GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors returned if a folder does not exist, or something else is in its place."""

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LONG_PATH: Final = 3500

_AFTER_ALL: Final = b"\xff" * 256
"""Sorts after every name: the longest has 255 bytes."""


class Identity(NamedTuple):
    """Identifies a folder, wherever it is."""

    device: int
    inode: int
    born: int


class Folder(NamedTuple):
    """A followed folder; `name` is the full path if the folder itself is watched."""

    number: int
    tree: int
    parent: int
    name: bytes
    identity: Identity


class Seen(NamedTuple):
    """An entry as it is on disk."""

    kind: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> Seen:
        mode = status.st_mode
        mtime_ns, ctime_ns = status.st_mtime_ns, status.st_ctime_ns
        # Some file systems use inodes up to 2**64 and times past the year 2262; SQLite's integers end at 2**63.
        mtime_ns, ctime_ns = max(-_MAX_INT, min(_MAX_INT, mtime_ns)), max(0, min(_MAX_INT, ctime_ns))
        inode, device = status.st_ino & _MAX_INT, status.st_dev & _MAX_INT
        if stat.S_ISREG(mode):
            return cls(FILE, min(status.st_size, _MAX_INT), mtime_ns, ctime_ns, inode, device)
        if stat.S_ISDIR(mode):
            # Size and times of a folder depend on its entries.
            return cls(FOLDER, 0, 0, 0, inode, device)
        kind = LINK if stat.S_ISLNK(mode) else OTHER
        return cls(kind, status.st_size if kind == LINK else 0, mtime_ns, ctime_ns, inode, device)

    def identity(self, folder: int, name: bytes = b"") -> Identity:
        """Return the identity of an entry of an open folder, or of the folder itself if `name` is empty."""
        return Identity(self.device, self.inode, created_ns(name, folder))


class Snapshot:
    """The stored state of all trees, through one connection. Paths are cached in memory until a folder is renamed."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._paths: dict[int, bytes] = {}

    # Folders

    def _folders(self, condition: str, *bindings: apsw.SQLiteValue) -> list[Folder]:
        statement = f"SELECT folder, tree, parent, name, device, inode, born FROM folder WHERE {condition}"
        rows = select(self._db, statement, bindings)
        return [Folder(number, tree, parent, name, Identity(*rest)) for number, tree, parent, name, *rest in rows]

    def folder(self, number: int) -> Folder | None:
        return next(iter(self._folders("folder=?", number)), None)

    def root(self, tree: int, path: bytes) -> Folder | None:
        """Return a watched folder by its path."""
        return next(iter(self._folders("parent=0 AND tree=? AND name=?", tree, path)), None)

    def found(self, tree: int, identity: Identity) -> list[Folder]:
        """Return the known places of a folder."""
        return self._folders("device=? AND inode=? AND born=? AND tree=? AND parent<>0", *identity, tree)

    def path(self, number: int) -> bytes:
        """Return the absolute path of a known folder."""
        if (known := self._paths.get(number)) is not None:
            return known
        ((parent, name),) = select(self._db, "SELECT parent, name FROM folder WHERE folder=?", (number,))
        path: bytes = name if parent == ROOT else join(self.path(parent), name)
        if len(self._paths) >= _CACHED_PATHS:
            self._paths.clear()
        self._paths[number] = path
        return path

    def is_within(self, number: int, other: int) -> bool:
        """True if a folder is another one or below it."""
        while number != ROOT:
            if number == other:
                return True
            rows = select(self._db, "SELECT parent FROM folder WHERE folder=?", (number,))
            number = rows[0][0] if rows else ROOT
        return False

    def add(self, tree: int, parent: int, name: bytes, identity: Identity) -> int:
        """Add a folder. Returns its number."""
        statement = "INSERT INTO folder(tree, parent, name, device, inode, born) VALUES(?, ?, ?, ?, ?, ?)"
        self._db.execute(statement, (tree, parent, name, *identity))
        return self._db.last_insert_rowid()

    def move(self, number: int, parent: int, name: bytes) -> None:
        self._db.execute("UPDATE folder SET parent=?, name=? WHERE folder=?", (parent, name, number))
        self._paths.clear()

    def below(self, number: int) -> list[int]:
        """Return a folder and all folders below it."""
        found = [number]
        for each in found:
            found += (child for (child,) in select(self._db, "SELECT folder FROM folder WHERE parent=?", (each,)))
        return found

    def drop(self, number: int) -> list[int]:
        """Delete a folder and everything below it. Returns the numbers of the folders."""
        dropped = self.below(number)
        for each in dropped:
            self._db.execute("DELETE FROM entry WHERE folder=?", (each,))
            self._db.execute("DELETE FROM folder WHERE folder=?", (each,))
            self._paths.pop(each, None)
        return dropped

    def folders(self, tree: int, after: int, upto: int, limit: int) -> list[int]:
        """Return numbers of a tree's folders, in ascending order."""
        query = "SELECT folder FROM folder WHERE tree=? AND folder>? AND folder<=? ORDER BY folder LIMIT ?"
        return [number for (number,) in select(self._db, query, (tree, after, upto, limit))]

    def last_folder(self) -> int:
        """Return the highest folder number."""
        return int(select(self._db, "SELECT coalesce(max(folder), 0) FROM folder")[0][0])

    # Entries

    def row(self, folder: int, name: bytes) -> Row | None:
        query = "SELECT kind, size, mtime_ns, ctime_ns, inode, child FROM entry WHERE folder=? AND name=?"
        rows = select(self._db, query, (folder, name))
        return Row(*rows[0]) if rows else None

    def rows(self, folder: int, low: bytes, high: bytes | None) -> dict[bytes, Row]:
        """Return the entries whose names are from `low` up to, but not including, `high`."""
        rows = select(
            self._db,
            "SELECT name, kind, size, mtime_ns, ctime_ns, inode, child FROM entry"
            " WHERE folder=? AND name>=? AND name<?",
            (folder, low, _AFTER_ALL if high is None else high),
        )
        return {name: Row(*row) for name, *row in rows}

    def put(self, folder: int, name: bytes, row: Row) -> None:
        self.put_all([(folder, name, row)])

    def put_all(self, rows: Iterable[tuple[int, bytes, Row]]) -> None:
        statement = "INSERT OR REPLACE INTO entry VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
        self._db.executemany(statement, ((folder, name, *row) for folder, name, row in rows))

    def remove(self, folder: int, name: bytes) -> None:
        self._db.execute("DELETE FROM entry WHERE folder=? AND name=?", (folder, name))


def join(folder: bytes, name: bytes) -> bytes:
    return folder + name if folder.endswith(b"/") else folder + b"/" + name


def is_as_stored(status: os.stat_result, row: Row) -> bool:
    """True if a file is unchanged since it was stored."""
    return row[:5] == (FILE, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino) and stat.S_ISREG(
        status.st_mode
    )


def open_folder(path: bytes) -> int:
    """Open a folder, whatever the length of its path. Raises OSError."""
    if len(path) <= _LONG_PATH:
        return os.open(path, _OPEN)
    above, name = path.rsplit(b"/", 1)
    descriptor = open_folder(above)
    try:
        return os.open(name, _OPEN, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def identity_of(descriptor: int) -> Identity:
    return Seen.of(os.fstat(descriptor)).identity(descriptor)


def identity_at(path: bytes) -> Identity | None:
    """Return the identity of the folder at a path, or None if there is no folder. Raises OSError if it cannot be
    determined."""
    try:
        status = os.lstat(path)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
    if not stat.S_ISDIR(status.st_mode):
        return None
    return Seen.of(status).identity(AT_FDCWD, path)


def is_at(path: bytes, identity: Identity) -> bool:
    """True if the folder with this identity is at a path."""
    try:
        return identity_at(path) == identity
    except OSError:
        return False
