"""Updates the index after single changes: whatever a hint names is examined on disk, entry by entry, and stored as
found.

A reported rename moves the entry in the index, so that its set memberships and everything below it stay. Anything else
is looked up by name in its directory, which is opened without following links. A directory that is new, or that differs
from the one stored under its name, is listed with everything below it. Examining and storing share one transaction, and
each transaction leaves every sum correct.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

import apsw

from services.files import paths
from services.files.index.edit import Edit
from services.files.index.listing import MAX_INT, DiskEntry, is_at, look, open_folder, read_folder
from services.files.index.tree import StoredEntry, Tree, below, find, find_scanned, rows_of_root, set_rows
from services.files.store import schema
from services.files.store.sql import fetch_all, fetch_value

TURN_S = 0.2
"""How long one transaction may keep others from writing."""

NAMES_AT_ONCE = 500

_log = logging.getLogger("linckia.files")


class Hint(NamedTuple):
    """A change to the entry at a clean path, or a rename from `old_path` to it."""

    path: str
    old_path: str | None = None
    inode: int = 0
    left: bool = False
    """True if a directory left this path. A directory at the path now may have other content, even if it is the same
    one."""


class Live:
    """Processes changes below a real path below the roots. `apply` blocks and must not be called concurrently."""

    def __init__(
        self, tree: Tree, root: str, *, recursive: bool = True, skipped_devices: frozenset[int] = frozenset()
    ) -> None:
        """Create an updater.

        Args:
            recursive: whether the content of directories below `root` is examined.
            skipped_devices: file systems that hold no files (`/proc`); their directories are shown empty.
        """
        self._database, self._invalidations, self._ignored = tree
        self._root = root
        self._recursive = recursive
        self._skipped_devices = skipped_devices
        self._names: dict[str, dict[str, None]] = {}
        self._whole: dict[str, None] = {}
        self._doubtful: set[str] = set()
        self._marks: set[str] = set()
        self._gone: Collection[str] | None = None
        """The only entries that may be removed from the index; None means any."""
        self._kept: set[str] = set()
        """Entries that were not found but stay, because they are not in `_gone`."""

    def apply(self, hints: Iterable[Hint], note: Callable[[apsw.Connection], None] = lambda db: None) -> None:
        """Examine everything that the hints name. `note` is called in the last transaction, which completes the update.
        Raises OSError if the disk cannot be read; everything stored by then is correct."""
        self._names.clear()
        self._whole.clear()
        self._doubtful.clear()
        with self._database.transaction() as db:
            edit = Edit(db, time.time_ns())
            for hint in hints:
                self._take(db, edit, hint)
            self._end(edit)
        while True:
            with self._database.transaction() as db:
                edit = Edit(db, time.time_ns())
                until = time.monotonic() + TURN_S
                while (self._names or self._whole) and time.monotonic() < until:
                    self._next(db, edit)
                self._end(edit)
                if not self._names and not self._whole:
                    note(db)
                    return

    def list_root(self) -> None:
        """Store the entries directly in the root, and the content of new directories."""

        def show(db: apsw.Connection) -> None:
            if (rows := rows_of_root(self._root)) is not None:
                set_rows(db, self._root, rows)

        # Its content is unknown, even if it was listed before.
        self.apply([Hint(self._root, left=True)], show)

    def look_again(self, folders: Iterable[str], gone: Collection[str]) -> set[str]:
        """Examine all stored entries of these directories (paths with slash), ignoring new entries.

        An entry that is not found stays unless it is in `gone`: it may have been renamed, which the watcher reports.

        Returns:
            The paths of those that stayed.
        """
        self._gone, self._kept = gone, set()
        try:
            for folder in folders:
                with self._database.reader() as db:
                    query = "SELECT e.name FROM folder f JOIN entry e ON e.parent = f.id WHERE f.path = ? AND e.scanned"
                    names = fetch_all(db, query, (folder,))
                self.apply(Hint(f"{folder}{name}") for (name,) in names)
        finally:
            self._gone = None
        return self._kept

    # Hints

    def _take(self, db: apsw.Connection, edit: Edit, hint: Hint) -> None:
        if hint.old_path is not None:
            self._follow(db, edit, hint.path, hint.old_path, hint.inode)
            self._name(hint.old_path)
        if hint.left:
            self._doubtful.add(paths.as_folder(hint.path))
        self._name(hint.path)

    def _name(self, path: str) -> None:
        if paths.is_within(path, (self._root,)):
            folder, name = paths.split(path)
            self._names.setdefault(folder, {})[name] = None

    def _follow(self, db: apsw.Connection, edit: Edit, path: str, old: str, inode: int) -> None:
        """Apply a rename to the index only; whether it still holds on disk is examined later."""
        self._rename(paths.as_folder(old), paths.as_folder(path))
        edit.flush()
        moved = find_scanned(db, old)
        above, name = paths.split(path)
        parent = find_scanned(db, paths.of_folder(above))
        if (
            moved is None or moved.inode != inode & MAX_INT
            or parent is None or parent.kind != schema.DIRECTORY or paths.overlap(path, old)
        ):  # fmt: skip
            return
        there = find(db, path)
        if there is not None:
            edit.remove(there)
            edit.flush()
        edit.move(moved, parent.id, name)
        self._marks.update((above, paths.split(old)[0]))

    def _rename(self, before: str, after: str) -> None:
        """Move pending names and doubts from a directory's old path to its new one. This is also needed if the index
        already contains the rename, from a run that did not complete."""
        for folder in [folder for folder in self._names if folder.startswith(before)]:
            names = self._names.pop(folder)
            self._names.setdefault(after + folder[len(before) :], {}).update(names)
        for folder in [folder for folder in self._doubtful if folder.startswith(before)]:
            self._doubtful.discard(folder)
            self._doubtful.add(after + folder[len(before) :])

    # Examining

    def _next(self, db: apsw.Connection, edit: Edit) -> None:
        edit.flush()
        above, name = paths.split(self._root)
        if name in self._names.get(above, ()):
            self._look_at_root(db, edit)
        elif self._names:
            folder = next(iter(self._names))
            names = self._names.pop(folder)
            first = list(names)[:NAMES_AT_ONCE]
            if len(first) < len(names):
                self._names[folder] = dict.fromkeys(list(names)[NAMES_AT_ONCE:])
            self._look_into(db, edit, folder, first)
        else:
            folder = next(iter(self._whole))
            del self._whole[folder]
            self._list(db, edit, folder)

    def _look_at_root(self, db: apsw.Connection, edit: Edit) -> None:
        above, _ = paths.split(self._root)
        del self._names[above]
        hidden = self._ignored is not None and self._ignored.hides(self._root)
        found, stored = None if hidden else look(self._root), find(db, self._root)
        self._marks.add(above or "/")
        if found is None:
            if stored is not None and stored.scanned:
                self._remove(db, edit, self._root, stored)
            return
        edit.put(edit.reach(paths.of_folder(above)) if above else 0, above, found)
        self._descend(db, paths.as_folder(self._root), found, stored, from_root=True)

    def _descend(
        self, db: apsw.Connection, folder: str, found: DiskEntry, stored: StoredEntry | None, *, from_root: bool = False
    ) -> None:
        """Queue a directory for listing if it differs from the stored one, or the stored one was never listed because a
        process died."""
        if found.kind != schema.DIRECTORY or not (self._recursive or from_root):
            return
        known = stored is not None and stored.scanned and (stored.kind, stored.inode) == (found.kind, found.inode)
        if stored is None or not known or folder in self._doubtful or not _was_listed(db, stored.id):
            self._whole[folder] = None

    @contextlib.contextmanager
    def _opened(self, db: apsw.Connection, edit: Edit, folder: str) -> Iterator[tuple[StoredEntry, int] | None]:
        """Yield a directory as stored, and a descriptor of the directory at exactly this path.

        Yields None if either is missing, or the path leads through a link; the directory is then examined as an entry
        of its parent. Also None if it cannot be read, which is stored as its problem.
        """
        clean = paths.of_folder(folder)
        stored = find_scanned(db, clean)
        descriptor = None
        if stored is not None and stored.kind == schema.DIRECTORY:
            try:
                descriptor = open_folder(clean, None)
            except PermissionError as error:
                edit.set_problem(stored.id, f"cannot be read: {os.strerror(error.errno or 0)}")
                yield None
                return
            except OSError:
                pass
        try:
            if stored is None or descriptor is None or not is_at(descriptor, clean):
                self._name(clean)
                yield None
            else:
                yield stored, descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _look_into(self, db: apsw.Connection, edit: Edit, folder: str, names: list[str]) -> None:
        with self._opened(db, edit, folder) as opened:
            if opened is None:
                return
            stored, descriptor = opened
            self._put_itself(edit, folder, stored, descriptor)
            for name in names:
                self._look_at(db, edit, folder, stored, name, descriptor)
        self._marks.add(folder)

    def _look_at(
        self, db: apsw.Connection, edit: Edit, folder: str, above: StoredEntry, name: str, descriptor: int
    ) -> None:
        edit.flush()
        stored = find(db, folder + name)
        try:
            found = DiskEntry.of(name, os.stat(paths.to_os(name), dir_fd=descriptor, follow_symlinks=False))
        except FileNotFoundError:
            if stored is not None:
                self._remove(db, edit, folder + name, stored)
            return
        except OSError as error:
            _log.warning("cannot examine %s%s, keeping its stored state: %s", folder, name, error.strerror)
            return
        if self._ignored is not None and self._ignored(folder, name, found.kind == schema.DIRECTORY):
            return
        edit.put(above.id, folder, found)
        if stored is None or (found.size, found.ctime, found.inode) != (stored.size, stored.ctime, stored.inode):
            self._name_links(db, found)
            if stored is not None and stored.inode != found.inode:
                self._name_links(db, stored)
        self._descend(db, f"{folder}{name}/", found, stored)

    def _remove(self, db: apsw.Connection, edit: Edit, path: str, gone: StoredEntry) -> None:
        if self._gone is not None and path not in self._gone:
            self._kept.add(path)
            return
        self._name_links(db, gone)
        edit.remove(gone)

    def _name_links(self, db: apsw.Connection, changed: DiskEntry | StoredEntry) -> None:
        """Name all links of a changed file: a change is reported for one of them but affects them all."""
        if changed.links < 2 or changed.kind == schema.DIRECTORY:
            return
        others = (
            "SELECT f.path, e.name FROM entry e JOIN folder f ON f.id = e.parent"
            " WHERE e.inode = ? AND e.device = ? AND e.kind <> 1"
        )
        for folder, name in fetch_all(db, others, (changed.inode, changed.device)):
            self._names.setdefault(folder, {})[name] = None

    def _put_itself(self, edit: Edit, folder: str, stored: StoredEntry, descriptor: int) -> None:
        """Update the directory's own times and size, which change with its content."""
        above, name = paths.split(paths.of_folder(folder))
        edit.put(stored.parent, above, DiskEntry.of(name, os.fstat(descriptor)))
        self._marks.add(above or "/")

    def _list(self, db: apsw.Connection, edit: Edit, folder: str) -> None:
        with self._opened(db, edit, folder) as opened:
            if opened is None:
                return
            stored, descriptor = opened
            if os.fstat(descriptor).st_dev in self._skipped_devices:
                return
            listing = read_folder(descriptor, folder, self._ignored)
            self._put_itself(edit, folder, stored, descriptor)
        edit.flush()
        fresh = fetch_value(db, "SELECT 1 FROM entry WHERE parent = ? LIMIT 1", (stored.id,)) is None
        rows = [] if fresh else fetch_all(db, "SELECT * FROM entry WHERE parent = ? AND kind = 1", (stored.id,))
        before = {each.name: each for each in (StoredEntry(*row) for row in rows)}
        new = edit.put_folder(stored.id, folder, listing, fresh=fresh)
        doubt(db, stored.id, whole=False)
        self._marks.add(folder)
        for found in listing.found():
            if found.kind == schema.DIRECTORY:
                inside = f"{folder}{found.name}/"
                if folder in self._doubtful:
                    self._doubtful.add(inside)
                self._descend(db, inside, found, None if found.name in new else before.get(found.name))
        self._doubtful.discard(folder)

    def _end(self, edit: Edit) -> None:
        edit.finish()
        # Before the transaction ends: a scan that read any of these earlier must not write after it.
        self._invalidations.add(*self._marks)
        self._marks.clear()


def _was_listed(db: apsw.Connection, directory: int) -> bool:
    query = "SELECT 1 FROM folder WHERE id = ? AND (fingerprint IS NOT NULL OR problem IS NOT NULL)"
    return fetch_value(db, query, (directory,)) is not None


def doubt(db: apsw.Connection, folder: int, *, whole: bool) -> None:
    """Store that a directory, or everything below it as well, must be examined again once the watcher has seen it."""
    db.execute(
        "INSERT INTO unsure VALUES(?,?) ON CONFLICT DO UPDATE SET below = below OR excluded.below", (folder, whole)
    )


def doubted(db: apsw.Connection, root: str) -> tuple[list[tuple[int, int]], list[str]]:
    """Return the rows that `doubt` stored at or below a clean path, and the paths (with slash) they stand for."""
    stored = fetch_all(
        db,
        "SELECT unsure.folder, below, path FROM unsure JOIN folder ON folder.id = unsure.folder"
        " WHERE path >= ? AND path < ?",
        below(paths.as_folder(root)),
    )
    folders: dict[str, None] = {}
    for _, whole, path in stored:
        folders[path] = None
        if whole:
            inside = fetch_all(db, "SELECT path FROM folder WHERE path >= ? AND path < ?", below(path))
            folders.update((each, None) for (each,) in inside)
    return [(folder, whole) for folder, whole, _ in stored], list(folders)


def trust(db: apsw.Connection, rows: Iterable[tuple[int, int]]) -> None:
    """Delete rows of directories that have been examined."""
    db.executemany("DELETE FROM unsure WHERE folder = ? AND below = ?", rows)
    db.execute("DELETE FROM unsure WHERE folder NOT IN (SELECT id FROM folder)")
