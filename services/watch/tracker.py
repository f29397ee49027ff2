"""Bringing the state in the database in step with the disk, and logging each step: the heart of the watcher.

What is known of the disk is never taken from an event, only from looking: an event, an overflow or the clock says which
folder or entry to look at again. A folder is watched before it is looked into, so that whatever happens meanwhile makes
it be looked at once more. Each difference is applied to the state and logged in one transaction, one after the other,
so that the log leads exactly from one state to the next. A folder that turns up is looked for by its identity first: is
it known elsewhere and is not there any more, then it was renamed, with all below it. What seems to be gone waits until
the rest of its batch is done, in case it turns up.

Everything here runs in one worker thread at a time, in turns of some milliseconds, each one transaction.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from services.watch import log
from services.watch.inotify import born_ns
from services.watch.log import CREATED, DELETED, MODIFIED, RENAMED
from services.watch.snapshot import FILE, FOLDER, ROOT, Folder, Identity, Row, Seen, Snapshot, Stored, join
from services.watch.store import Store, select
from services.watch.trees import Tree, load
from services.watch.watches import Watches

RACY_NS: Final = 12_000_000
"""Time stamps tick with the kernel's timer (1 to 10 ms): so shortly after a change, another may go unseen."""

CHUNK: Final = 1000
MAX_WAITING: Final = 5000
"""Files of a batch that wait to be matched, the new ones with those that are gone."""

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_LONG_PATH: Final = 3500
_AT_FDCWD: Final = -100

_log = logging.getLogger("linckia.watch")

Names = dict[bytes, bool]
"""Entries to look at, and whether something happened to them (or they are only looked at a second time)."""

Work = dict[int, Names | None]
"""Folders with the entries to look at; None stands for all."""


class Found(NamedTuple):
    """An entry that was not known, as it was in a certain turn."""

    folder: int
    name: bytes
    seen: Seen
    turn: int


class Missed(NamedTuple):
    """An entry that was not there in a certain turn."""

    folder: int
    name: bytes
    turn: int


@dataclass(slots=True)
class Batch:
    """Work that is done together, so that what is gone in one place can be found in another.

    `sweep` has all folders of these trees looked at; `poll` says that the work is what cannot be watched.
    """

    work: Work = field(default_factory=dict)
    roots: set[int] = field(default_factory=set)
    sweep: tuple[int, ...] = ()
    poll: bool = False
    seconds: float = 0.0
    doubtful: dict[tuple[int, bytes], bool] = field(default_factory=dict)
    """Followed folders that are not where they were; True where something else is there now."""
    gone: dict[int, list[Missed]] = field(default_factory=dict)
    """Files by inode."""
    fresh: list[Found] = field(default_factory=list)
    """Files, and other entries without more below."""
    again: Work = field(default_factory=dict)
    """Work for another batch: entries that were seen too soon after their change, folders that were not where they were
    thought to be."""
    steps: Iterator[None] | None = None

    def add(self, folder: int) -> None:
        """Have a whole folder looked at."""
        self.work[folder] = None

    def postpone(self, folder: int, names: Names | None) -> None:
        """Leave work to another batch."""
        merge(self.again, folder, names)


def merge(work: Work, folder: int, names: Names | None) -> None:
    """Add to some work."""
    if names is None:
        work[folder] = None
        return
    known = work.setdefault(folder, {})
    if known is not None:
        for name, touched in names.items():
            known[name] = known.get(name, False) or touched


class Tracker:
    """The trees and their state."""

    def __init__(self, store: Store, watches: Watches) -> None:
        self.store = store
        self.watches = watches
        self.trees: dict[int, Tree] = load(store.db)
        self.problems: dict[int, str] = {}
        """Why a folder could not be looked into, by its number."""
        self.incomplete: set[int] = set()
        """Trees to look at as a whole once more."""
        self._snapshot = Snapshot(store.db)
        self._seats: dict[tuple[int, bytes], Identity | None] = {}
        self._ahead: dict[int, int] = {}
        """The last folder that a sweep has looked at, by tree; 0 where it has still to begin."""
        self._turns = 0

    def turn(self, batch: Batch, seconds: float) -> bool:
        """Work at a batch for so long; answers whether it is done. What was done is on disk, and in the log."""
        began = time.perf_counter()
        self._turns += 1
        if batch.steps is None:
            batch.steps = self._run(batch)
        done = True
        with self.store.transaction():
            for _ in batch.steps:
                if time.perf_counter() - began >= seconds:
                    done = False
                    break
            if not done and len(batch.fresh) + len(batch.gone) > CHUNK // 2:
                self._match_files(batch)
        batch.seconds += time.perf_counter() - began
        return done

    def displaced(self) -> set[int]:
        """Trees of which a watched folder came, went or is another one. Cheap: one look at each."""
        found = set()
        for tree in list(self.trees.values()):
            for path in tree.roots:
                try:
                    if self._seats.get((tree.number, path)) != _identity_at(path):
                        found.add(tree.number)
                except OSError:
                    # Neither there nor gone.
                    continue
        return found

    def forget(self, tree: int) -> None:
        """Forget all of a tree; within a transaction."""
        self.trees.pop(tree, None)
        for (number,) in select(self.store.db, "SELECT folder FROM folder WHERE tree=? AND parent=0", (tree,)):
            self._drop_folders(number)
        self.store.db.execute("DELETE FROM change WHERE tree=?", (tree,))
        self.store.db.execute("DELETE FROM tree WHERE tree=?", (tree,))

    # A batch

    def _run(self, batch: Batch) -> Iterator[None]:
        for number in (*batch.sweep, *batch.roots):
            if (tree := self.trees.get(number)) is not None:
                self._look_at_roots(batch, tree)
        yield from self._work_off(batch)
        last = self._snapshot.last_folder()
        self._ahead.update(dict.fromkeys(batch.sweep, 0))
        for number in batch.sweep:
            while folders := self._snapshot.folders(number, self._ahead[number], last, 256):
                for folder in folders:
                    self._ahead[number] = folder
                    yield from self._scan(batch, folder)
                    yield from self._work_off(batch)
            del self._ahead[number]
        while True:
            yield from self._work_off(batch)
            if batch.doubtful:
                self._settle(batch)
            elif not batch.work:
                break
        self._match_files(batch)
        for number in batch.sweep:
            self._complete(number)

    def _work_off(self, batch: Batch) -> Iterator[None]:
        while batch.work:
            folder, names = batch.work.popitem()
            if names is None:
                yield from self._scan(batch, folder)
            else:
                self._look(batch, folder, names)
                yield

    def _complete(self, number: int) -> None:
        tree = self.trees.get(number)
        if tree is not None and not tree.complete:
            tree.complete = True
            self.store.sequence += 1
            self.store.db.execute("UPDATE tree SET complete=1, floor=? WHERE tree=?", (self.store.sequence, number))

    # Watched folders

    def _look_at_roots(self, batch: Batch, tree: Tree) -> None:
        for path in tree.roots:
            try:
                identity = _identity_at(path)
            except OSError as error:
                # Neither there nor gone: what is known of it stays.
                _log.warning("%s cannot be looked at: %s", os.fsdecode(path), error)
                continue
            known = self._snapshot.root(tree.number, path)
            self._seats[tree.number, path] = identity
            if known is not None and known.identity != identity:
                self._log(tree, DELETED, _folder_row(known.identity, None), path)
                self._drop_folders(known.number)
                known = None
            if identity is None:
                tree.missing.add(path)
                continue
            tree.missing.discard(path)
            if known is None:
                number = self._snapshot.add(tree.number, ROOT, path, identity)
                self._log(tree, CREATED, _folder_row(identity, number), path)
                batch.add(number)
            elif known.number not in self.watches:
                batch.add(known.number)

    # Looking

    def _enter(self, batch: Batch, number: int, names: Names | None) -> tuple[Folder, Tree, int] | None:
        """Open a folder that is where it was.

        Where it is not, that is looked into, and so are its `names` by another batch: it may only have been renamed.
        """
        folder = self._snapshot.folder(number)
        if folder is None or (tree := self.trees.get(folder.tree)) is None:
            return None
        try:
            descriptor = _open(self._snapshot.path(number))
        except OSError as error:
            if error.errno in _GONE:
                self._suspect(batch, folder, names)
            else:
                self.problems[number] = os.strerror(error.errno or 0)
            return None
        if _identity_of(descriptor) != folder.identity:
            os.close(descriptor)
            self._suspect(batch, folder, names)
            return None
        return folder, tree, descriptor

    def _suspect(self, batch: Batch, folder: Folder, names: Names | None) -> None:
        """A folder is not where it was: see what is there instead, once all else is done."""
        batch.postpone(folder.number, names)
        if folder.parent == ROOT:
            self._look_at_roots(batch, self.trees[folder.tree])
        else:
            batch.doubtful.setdefault((folder.parent, folder.name), False)

    def _scan(self, batch: Batch, number: int) -> Iterator[None]:
        """Look at all of a folder."""
        entered = self._enter(batch, number, None)
        if entered is None:
            return
        folder, tree, descriptor = entered
        try:
            self.watches.add(number, descriptor)
            try:
                names = self._names(descriptor, folder, tree)
            except OSError as error:
                self.problems[number] = os.strerror(error.errno or 0)
                return
            self.problems.pop(number, None)
            for at in range(0, max(len(names), 1), CHUNK):
                low = names[at] if at else b""
                high = names[at + CHUNK] if at + CHUNK < len(names) else None
                self._scan_some(batch, folder, tree, descriptor, names[at : at + CHUNK], low, high)
                if len(batch.fresh) >= MAX_WAITING or len(batch.gone) >= MAX_WAITING:
                    self._match_files(batch)
                yield
        finally:
            os.close(descriptor)

    def _scan_some(
        self, batch: Batch, folder: Folder, tree: Tree, descriptor: int, names: list[bytes], low: bytes,
        high: bytes | None,
    ) -> None:  # fmt: skip
        """Look at the entries of a folder from the name `low` to below `high`; `names` are those that were there."""
        rows = self._snapshot.rows(folder.number, low, high)
        new: list[tuple[int, bytes, Row]] = []
        for name in names:
            row = rows.pop(name, None)
            try:
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except FileNotFoundError:
                seen = None
            except OSError as error:
                self.problems[folder.number] = os.strerror(error.errno or 0)
                continue
            else:
                if row is not None and _is_as_stored(status, row):
                    # By far the most.
                    continue
                seen = Seen.of(status)
                if not tree.complete and row is None and seen.kind != FOLDER:
                    new.append((folder.number, name, self._row_of(batch, folder.number, name, seen)))
                    continue
            self._compare(batch, folder, tree, descriptor, name, row and Row(*row), seen, touched=True)
        self._snapshot.put_all(new)
        above = self._above(folder, tree) if rows else ""
        for name, row in rows.items():
            # It may have come after the names were read, and have been seen by another batch.
            seen = self._see_own(folder, tree, descriptor, above, name, Row(*row))
            self._compare(batch, folder, tree, descriptor, name, Row(*row), seen, touched=True)

    def _see_own(
        self, folder: Folder, tree: Tree, descriptor: int, above: str, name: bytes, row: Row | None
    ) -> Seen | None:
        """An entry of an open folder, unless the tree passes it over."""
        try:
            seen = Seen.of(os.stat(name, dir_fd=descriptor, follow_symlinks=False))
        except FileNotFoundError:
            return None
        except OSError as error:
            # Neither there nor gone: it stays as it was.
            self.problems[folder.number] = os.strerror(error.errno or 0)
            return None if row is None else Seen(*row[:3], abs(row.ctime_ns), row.inode, folder.identity.device)
        return None if tree.rules.passes_over(above, os.fsdecode(name), is_folder=seen.kind == FOLDER) else seen

    def _names(self, descriptor: int, folder: Folder, tree: Tree) -> list[bytes]:
        """The names of a folder's entries that are the tree's, sorted."""
        above = self._above(folder, tree)
        with os.scandir(descriptor) as entries:
            return sorted(
                os.fsencode(entry.name)
                for entry in entries
                if not tree.rules.passes_over(above, entry.name, is_folder=entry.is_dir(follow_symlinks=False))
            )

    def _above(self, folder: Folder, tree: Tree) -> str:
        """A folder's path as patterns are matched against it."""
        if not tree.rules.by_path or folder.parent == ROOT:
            return ""
        path = self._snapshot.path(folder.number)
        root = next(root for root in tree.roots if path.startswith(root.rstrip(b"/") + b"/"))
        return os.fsdecode(path[len(root.rstrip(b"/")) + 1 :]) + "/"

    def _look(self, batch: Batch, number: int, names: Names, *, evict: bool = False) -> None:
        """Look at some entries of a folder."""
        entered = self._enter(batch, number, names)
        if entered is None:
            return
        folder, tree, descriptor = entered
        try:
            if number not in self.watches and number not in self.watches.without:
                batch.add(number)
            above = self._above(folder, tree)
            for name, touched in names.items():
                row = self._snapshot.row(number, name)
                seen = self._see_own(folder, tree, descriptor, above, name, row)
                self._compare(batch, folder, tree, descriptor, name, row, seen, touched=touched, evict=evict)
            if len(batch.fresh) >= MAX_WAITING or len(batch.gone) >= MAX_WAITING:
                self._match_files(batch)
        finally:
            os.close(descriptor)

    # Comparing

    def _compare(
        self, batch: Batch, folder: Folder, tree: Tree, descriptor: int, name: bytes, row: Row | None,
        seen: Seen | None, *, touched: bool, evict: bool = False,
    ) -> None:  # fmt: skip
        """Apply and log what differs between an entry as it was and as it is."""
        if row is not None and row.child is not None:
            if seen is not None and self._is_same_folder(row.child, descriptor, name, seen):
                if row.child in self.problems or self._is_unattended(tree, row.child):
                    batch.add(row.child)
                return
            if not evict:
                batch.doubtful[folder.number, name] = seen is not None
                return
            self._log(tree, DELETED, row, join(self._snapshot.path(folder.number), name))
            self._snapshot.remove(folder.number, name)
            self._drop_folders(row.child)
            if self._snapshot.folder(folder.number) is None:
                return
            row = None
        if seen is None:
            if row is None:
                return
            batch.gone.setdefault(row.inode, []).append(Missed(folder.number, name, self._turns))
            return
        if row is not None and row.kind != seen.kind:
            self._remove(folder.number, name, tree, row)
            row = None
        if row is None:
            if seen.kind == FOLDER and tree.spec.recursive:
                self._arrive(batch, folder, tree, descriptor, name, seen, evict=evict)
            else:
                batch.fresh.append(Found(folder.number, name, seen, self._turns))
            return
        self._renew(batch, folder, tree, name, row, seen, touched=touched)

    def _renew(
        self, batch: Batch, folder: Folder, tree: Tree, name: bytes, row: Row, seen: Seen, *, touched: bool
    ) -> None:
        """An entry is still there: is it another version?"""
        now = self._row_of(batch, folder.number, name, seen)
        if row == now and row.ctime_ns >= 0:
            return
        same = (row.size, row.mtime_ns, abs(row.ctime_ns), row.inode) == (
            now.size, now.mtime_ns, abs(now.ctime_ns), now.inode,
        )  # fmt: skip
        self._snapshot.put(folder.number, name, now)
        if not same or (touched and row.ctime_ns < 0):
            self._log(tree, MODIFIED, now, join(self._snapshot.path(folder.number), name))

    def _is_unattended(self, tree: Tree, folder: int) -> bool:
        """Whether a folder has no watch, and no sweep will come to it either."""
        return folder not in self.watches and folder <= self._ahead.get(tree.number, folder)

    def _row_of(self, batch: Batch, folder: int, name: bytes, seen: Seen) -> Row:
        """The entry as it is stored: a file that was seen too soon is marked, and looked at once more."""
        ctime_ns = seen.ctime_ns
        if seen.kind == FILE and time.time_ns() - ctime_ns < RACY_NS:
            ctime_ns = -ctime_ns
            batch.postpone(folder, {name: False})
        return Row(seen.kind, seen.size, seen.mtime_ns, ctime_ns, seen.inode, None)

    def _is_same_folder(self, child: int, descriptor: int, name: bytes, seen: Seen) -> bool:
        known = self._snapshot.folder(child)
        return (
            known is not None
            and seen.kind == FOLDER
            and known.identity == Identity(seen.device, seen.inode, born_ns(descriptor, name))
        )

    def _arrive(
        self, batch: Batch, folder: Folder, tree: Tree, descriptor: int, name: bytes, seen: Seen, *, evict: bool
    ) -> None:
        """A folder is where there was none: a renamed one, or a new one."""
        identity = Identity(seen.device, seen.inode, born_ns(descriptor, name))
        path = join(self._snapshot.path(folder.number), name)
        for other in self._snapshot.found(tree.number, identity):
            if _is_at(self._snapshot.path(other.number), identity):
                # One folder in two places, by a bind mount.
                continue
            if self._snapshot.is_within(folder.number, other.number):
                # It went below what was below it; how that came out from there is still to be found.
                if evict:
                    self.incomplete.add(tree.number)
                    self._log(tree, DELETED, _folder_row(identity, None), self._snapshot.path(other.number))
                    self._snapshot.remove(other.parent, other.name)
                    self._drop_folders(other.number)
                else:
                    batch.doubtful[folder.number, name] = True
                return
            row = _folder_row(identity, other.number)
            old_path = self._snapshot.path(other.number)
            self._snapshot.remove(other.parent, other.name)
            self._snapshot.move(other.number, folder.number, name)
            self._snapshot.put(folder.number, name, row)
            self._log(tree, RENAMED, row, path, old_path)
            # Its number may have been another's once, where the file system does not say when a folder was made.
            batch.add(other.number)
            if tree.rules.by_path:
                batch.work.update(dict.fromkeys(self._snapshot.below(other.number)))
            return
        number = self._snapshot.add(tree.number, folder.number, name, identity)
        row = _folder_row(identity, number)
        self._snapshot.put(folder.number, name, row)
        self._log(tree, CREATED, row, path)
        batch.add(number)

    def _remove(self, folder: int, name: bytes, tree: Tree, row: Row) -> None:
        self._snapshot.remove(folder, name)
        self._log(tree, DELETED, row, join(self._snapshot.path(folder), name))

    # At the end of a batch

    def _settle(self, batch: Batch) -> None:
        """Decide on folders that are not where they were, those first whose place another one wants."""
        wanted = [place for place, occupied in batch.doubtful.items() if occupied]
        for place in wanted:
            del batch.doubtful[place]
            self._look(batch, place[0], {place[1]: True})
        if batch.work:
            return
        gone = [place for place, occupied in batch.doubtful.items() if not occupied]
        # Those that want each other's places: one has to give way.
        for place in gone or list(batch.doubtful)[:1]:
            batch.doubtful.pop(place, None)
            self._look(batch, place[0], {place[1]: True}, evict=True)

    def _match_files(self, batch: Batch) -> None:
        """Tell new files that are gone ones under another name from those that are truly new, and gone."""
        for folder, name, seen, turn in batch.fresh:
            place = self._snapshot.folder(folder)
            if place is None or (tree := self.trees.get(place.tree)) is None:
                continue
            if self._snapshot.row(folder, name) is not None or turn != self._turns:
                # Another batch may have seen more since.
                batch.postpone(folder, {name: False})
                continue
            row = self._row_of(batch, folder, name, seen)
            path = join(self._snapshot.path(folder), name)
            old = self._moved_from(batch, tree, seen)
            self._snapshot.put(folder, name, row)
            if old is None:
                self._log(tree, CREATED, row, path)
            else:
                old_path = join(self._snapshot.path(old[0]), old[1])
                self._snapshot.remove(*old)
                self._log(tree, RENAMED, row, path, old_path)
        batch.fresh.clear()
        for missed in batch.gone.values():
            for folder, name, turn in missed:
                there = self._snapshot.row(folder, name)
                place = self._snapshot.folder(folder)
                if there is None or there.child is not None or place is None:
                    continue
                if turn == self._turns:
                    self._remove(folder, name, self.trees[place.tree], there)
                else:
                    batch.postpone(folder, {name: False})
        batch.gone.clear()

    def _moved_from(self, batch: Batch, tree: Tree, seen: Seen) -> tuple[int, bytes] | None:
        """Where a file was before, if it is one that is gone from there."""
        missed = batch.gone.get(seen.inode)
        if not missed:
            return None
        for at, (folder, name, turn) in enumerate(missed):
            row = self._snapshot.row(folder, name)
            place = self._snapshot.folder(folder)
            if (
                turn == self._turns
                and row is not None
                and place is not None
                and (place.tree, place.identity.device) == (tree.number, seen.device)
                and (row.kind, row.size, row.mtime_ns, row.inode) == (seen.kind, seen.size, seen.mtime_ns, seen.inode)
            ):
                del missed[at]
                return folder, name
        return None

    def _drop_folders(self, number: int) -> None:
        for each in self._snapshot.drop(number):
            self.watches.drop(each)
            self.problems.pop(each, None)

    def _log(self, tree: Tree, change: int, row: Row, path: bytes, old_path: bytes | None = None) -> None:
        if tree.complete:
            log.append(self.store, tree.number, change, row, path, old_path)


def _is_as_stored(status: os.stat_result, row: Stored) -> bool:
    """Whether a file is the version that is known."""
    return row[:5] == (FILE, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino) and stat.S_ISREG(
        status.st_mode
    )


def _folder_row(identity: Identity, child: int | None) -> Row:
    return Row(FOLDER, 0, 0, 0, identity.inode, child)


def _open(path: bytes) -> int:
    """Open a folder, however long its path is. Raises OSError."""
    if len(path) <= _LONG_PATH:
        return os.open(path, _OPEN)
    above, name = path.rsplit(b"/", 1)
    descriptor = _open(above)
    try:
        return os.open(name, _OPEN, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _identity_of(descriptor: int) -> Identity:
    seen = Seen.of(os.fstat(descriptor))
    return Identity(seen.device, seen.inode, born_ns(descriptor))


def _identity_at(path: bytes) -> Identity | None:
    """Of the folder at a path, if there is one. Raises OSError where that cannot be told."""
    try:
        status = os.lstat(path)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise
    if not stat.S_ISDIR(status.st_mode):
        return None
    seen = Seen.of(status)
    return Identity(seen.device, seen.inode, born_ns(_AT_FDCWD, path))


def _is_at(path: bytes, identity: Identity) -> bool:
    """Whether a folder is to be found at a path."""
    try:
        return _identity_at(path) == identity
    except OSError:
        return False
