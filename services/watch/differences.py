"""Applies differences between the stored state and the disk to the state, and logs each one.

A folder that appears is first looked up by its identity: if it was known elsewhere and is no longer there, it was
renamed, with everything below it. An entry that seems to be gone is kept until the rest of its batch is done, in case
it turns up elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from services.watch.database import CREATED, DELETED, MODIFIED, RENAMED, Row, WatchDatabase
from services.watch.inotify import Watches
from services.watch.snapshot import FILE, FOLDER, Folder, Identity, Seen, Snapshot, is_at, join
from services.watch.trees import Tree, load

RACY_NS: Final = 12_000_000
"""Time stamps follow the kernel's timer tick (1 to 10 ms), so a second change so soon after the first may not show."""
MAX_NAMES: Final = 4096
"""Most entries of a folder that are examined one by one; beyond that, the whole folder is scanned."""

Names = dict[bytes, bool]
"""Entries to examine, and whether an event named them (otherwise they are merely re-examined)."""

Work = dict[int, Names | None]
"""Folders with the entries to examine; None means all of them."""


class NewEntry(NamedTuple):
    """An entry that was not known, as it was found in a certain turn."""

    folder: int
    name: bytes
    seen: Seen
    turn: int


class MissingEntry(NamedTuple):
    """An entry that was missing in a certain turn."""

    folder: int
    name: bytes
    turn: int


@dataclass(slots=True)
class Batch:
    """Work that is done together, so that an entry missing in one place can be found in another."""

    work: Work = field(default_factory=dict)
    roots: set[int] = field(default_factory=set)
    sweep: tuple[int, ...] = ()
    """Trees whose folders are all examined."""
    seconds: float = 0.0
    doubtful: dict[tuple[int, bytes], bool] = field(default_factory=dict)
    """Followed folders that are not where they were; True if something else is in their place."""
    gone: dict[int, list[MissingEntry]] = field(default_factory=dict)
    """Missing files, by inode."""
    fresh: list[NewEntry] = field(default_factory=list)
    """New files, and other new entries that have nothing below them."""
    again: Work = field(default_factory=dict)
    """Work for the next batch: entries seen too soon after their change, and folders that were not where expected."""
    steps: Iterator[None] | None = None


def merge(work: Work, folder: int, names: Names | None) -> None:
    """Add entries of a folder to `work`; with too many names, the whole folder is scanned."""
    known = None if names is None else work.setdefault(folder, {})
    if names is None or known is None:
        work[folder] = None
        return
    for name, touched in names.items():
        known[name] = known.get(name, False) or touched
    if len(known) > MAX_NAMES:
        work[folder] = None


class OpenFolder(NamedTuple):
    """A folder being examined, and its open descriptor."""

    folder: Folder
    tree: Tree
    descriptor: int


class Differences:
    """The state of the trees, and the steps that change it. All methods require a transaction."""

    def __init__(self, store: WatchDatabase, watches: Watches) -> None:
        self.store = store
        self.watches = watches
        self.snapshot = Snapshot(store.db)
        self.trees: dict[int, Tree] = load(store.db)
        self.problems: dict[int, str] = {}
        """Why folders could not be examined, by folder number."""
        self.incomplete: set[int] = set()
        """Trees to sweep once more."""
        self.ahead: dict[int, int] = {}
        """The last folder that a sweep has examined, by tree; 0 before the first."""
        self.turns = 0

    def compare(
        self, batch: Batch, opened: OpenFolder, name: bytes, row: Row | None, seen: Seen | None,
        *, touched: bool, evict: bool = False,
    ) -> None:  # fmt: skip
        """Apply and log the difference between an entry's stored and current state."""
        folder, tree, descriptor = opened
        if row is not None and row.child is not None:
            known = self.snapshot.folder(row.child)
            identity = seen.identity(descriptor, name) if seen is not None and seen.kind == FOLDER else None
            if known is not None and known.identity == identity:
                # Without a watch, it is only seen if a running sweep has yet to reach it.
                is_unattended = row.child not in self.watches and row.child <= self.ahead.get(tree.number, row.child)
                if row.child in self.problems or is_unattended:
                    batch.work[row.child] = None
                return
            if not evict:
                batch.doubtful[folder.number, name] = seen is not None
                return
            self._remove(folder.number, name, tree, row)
            self.drop_folders(row.child)
            if self.snapshot.folder(folder.number) is None:
                return
            row = None
        if seen is None:
            if row is not None:
                batch.gone.setdefault(row.inode, []).append(MissingEntry(folder.number, name, self.turns))
            return
        if row is not None and row.kind != seen.kind:
            self._remove(folder.number, name, tree, row)
            row = None
        if row is None:
            if seen.kind == FOLDER and tree.spec.recursive:
                self._arrive(batch, opened, name, seen, evict=evict)
            else:
                batch.fresh.append(NewEntry(folder.number, name, seen, self.turns))
            return
        now = self.row_of(batch, folder.number, name, seen)
        if row == now and row.ctime_ns >= 0:
            return
        self.snapshot.put(folder.number, name, now)
        is_same = row._replace(ctime_ns=abs(row.ctime_ns)) == now._replace(ctime_ns=abs(now.ctime_ns))
        if not is_same or (touched and row.ctime_ns < 0):
            self.log(tree, MODIFIED, now, join(self.snapshot.path(folder.number), name))

    def row_of(self, batch: Batch, folder: int, name: bytes, seen: Seen) -> Row:
        """Return the row to store for an entry. A file seen too soon after its change is marked and examined once
        more."""
        ctime_ns = seen.ctime_ns
        if seen.kind == FILE and time.time_ns() - ctime_ns < RACY_NS:
            ctime_ns = -ctime_ns
            merge(batch.again, folder, {name: False})
        return Row(seen.kind, seen.size, seen.mtime_ns, ctime_ns, seen.inode, None)

    def _arrive(self, batch: Batch, opened: OpenFolder, name: bytes, seen: Seen, *, evict: bool) -> None:
        """Handle a folder where there was none before: it was renamed, or is new."""
        folder, tree, descriptor = opened
        identity = seen.identity(descriptor, name)
        path = join(self.snapshot.path(folder.number), name)
        for other in self.snapshot.found(tree.number, identity):
            if is_at(self.snapshot.path(other.number), identity):
                # The same folder in two places, by a bind mount.
                continue
            if self.snapshot.is_within(folder.number, other.number):
                # It moved below one of its own descendants; how that one got out is yet to be discovered.
                if evict:
                    self.incomplete.add(tree.number)
                    self._remove(other.parent, other.name, tree, folder_row(identity, None))
                    self.drop_folders(other.number)
                else:
                    batch.doubtful[folder.number, name] = True
                return
            row = folder_row(identity, other.number)
            old_path = self.snapshot.path(other.number)
            self.snapshot.remove(other.parent, other.name)
            self.snapshot.move(other.number, folder.number, name)
            self.snapshot.put(folder.number, name, row)
            self.log(tree, RENAMED, row, path, old_path)
            # Its number may have belonged to another folder before, on file systems without creation times.
            batch.work[other.number] = None
            if tree.rules.by_path:
                batch.work.update(dict.fromkeys(self.snapshot.below(other.number)))
            return
        number = self.snapshot.add(tree.number, folder.number, name, identity)
        row = folder_row(identity, number)
        self.snapshot.put(folder.number, name, row)
        self.log(tree, CREATED, row, path)
        batch.work[number] = None

    def _remove(self, folder: int, name: bytes, tree: Tree, row: Row) -> None:
        self.snapshot.remove(folder, name)
        self.log(tree, DELETED, row, join(self.snapshot.path(folder), name))

    def match_files(self, batch: Batch) -> None:
        """Match new files with missing ones that were renamed, and log the remaining ones as created or deleted."""
        for folder, name, seen, turn in batch.fresh:
            place = self.snapshot.folder(folder)
            if place is None or (tree := self.trees.get(place.tree)) is None:
                continue
            if self.snapshot.row(folder, name) is not None or turn != self.turns:
                # Another batch may have examined the entry since.
                merge(batch.again, folder, {name: False})
                continue
            row = self.row_of(batch, folder, name, seen)
            path = join(self.snapshot.path(folder), name)
            old = self._moved_from(batch, tree, seen)
            self.snapshot.put(folder, name, row)
            if old is None:
                self.log(tree, CREATED, row, path)
            else:
                old_path = join(self.snapshot.path(old[0]), old[1])
                self.snapshot.remove(*old)
                self.log(tree, RENAMED, row, path, old_path)
        batch.fresh.clear()
        for missed in batch.gone.values():
            for folder, name, turn in missed:
                there = self.snapshot.row(folder, name)
                place = self.snapshot.folder(folder)
                if there is None or there.child is not None or place is None:
                    continue
                if turn == self.turns:
                    self._remove(folder, name, self.trees[place.tree], there)
                else:
                    merge(batch.again, folder, {name: False})
        batch.gone.clear()

    def _moved_from(self, batch: Batch, tree: Tree, seen: Seen) -> tuple[int, bytes] | None:
        """Return the former place of a file that is missing there."""
        missed = batch.gone.get(seen.inode, [])
        for at, (folder, name, turn) in enumerate(missed):
            row, place = self.snapshot.row(folder, name), self.snapshot.folder(folder)
            if turn != self.turns or row is None or place is None:
                continue
            if (place.tree, place.identity.device) == (tree.number, seen.device) and (
                (row.kind, row.size, row.mtime_ns, row.inode) == (seen.kind, seen.size, seen.mtime_ns, seen.inode)
            ):
                del missed[at]
                return folder, name
        return None

    def drop_folders(self, number: int) -> None:
        for each in self.snapshot.drop(number):
            self.watches.drop(each)
            self.problems.pop(each, None)

    def log(self, tree: Tree, change: int, row: Row, path: bytes, old_path: bytes | None = None) -> None:
        if not tree.complete:
            return
        store = self.store
        store.sequence += 1
        size, mtime_ns = (0, 0) if change == DELETED else (row.size, row.mtime_ns)
        entry = (tree.number, store.sequence, change, row.kind, path, old_path, size, mtime_ns, row.inode)
        store.db.execute("INSERT INTO change VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)", entry)


def folder_row(identity: Identity, child: int | None) -> Row:
    return Row(FOLDER, 0, 0, 0, identity.inode, child)
