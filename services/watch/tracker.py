"""Synchronizes the state in the database with the disk, and logs each change: the core of the watcher.

The state of the disk is never derived from events, only from examining it: an event, an overflow or the clock says
which folder or entry to examine. A folder is watched before it is examined, so that any change in between causes
another look. State and log change in one transaction, so the log leads exactly from one state to the next.

Everything here runs in one worker thread at a time, in turns of some milliseconds, each a single transaction.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

import apsw

from services.runtime.roots import Roots
from services.watch import snapshot
from services.watch.database import CREATED, DELETED, Row, WatchDatabase, select
from services.watch.differences import Batch, Differences, Names, OpenFolder, folder_row, merge
from services.watch.inotify import Watches
from services.watch.snapshot import FOLDER, ROOT, Folder, Identity, Seen
from services.watch.trees import Tree

CHUNK: Final = 1000
MAX_WAITING: Final = 5000
"""Most files of a batch that wait for new ones to be matched with missing ones."""

LeftOut = Callable[[str, bool], bool]
"""Tells whether an entry of a folder is left out, given its name and whether it is a folder."""

_log = logging.getLogger("linckia.watch")


class Tracker(Differences):
    """The trees, and the work of examining them."""

    def __init__(self, store: WatchDatabase, watches: Watches, service_roots: Roots) -> None:
        """Load the trees; blocks. Anything that the service's roots hide counts as missing. Raises DiskFull or
        Unavailable."""
        self._service_roots = service_roots
        self._generation = store.database.generation
        self._seats: dict[tuple[int, bytes], Identity | None] = {}
        with store.transaction(self._generation):
            # Examining all folders takes long, so first make sure that the database can be written.
            store.sequence += 1
            super().__init__(store, watches)
            for number, tree in list(self.trees.items()):
                if not any(map(service_roots.holds, tree.spec.paths)):
                    # The settings no longer include it, so it may not be read.
                    store.db.execute("DELETE FROM subscription WHERE tree=?", (number,))
                    self.forget(number)

    def transaction(self) -> AbstractContextManager[apsw.Connection]:
        """Start a transaction on the database this tracker was created for.

        After a failed transaction, this tracker's state is invalid; create another one. Raises DiskFull (nothing was
        done) or Unavailable (the database was recreated).
        """
        return self.store.transaction(self._generation)

    def turn(self, batch: Batch, seconds: float) -> tuple[bool, set[int]]:
        """Work on a batch for up to `seconds`, writing changes to disk and to the log.

        Returns whether the batch is done, and the trees to sweep once more. Raises the same errors as `transaction`.
        """
        began = time.perf_counter()
        self.turns += 1
        if batch.steps is None:
            batch.steps = self._run(batch)
        done = True
        with self.transaction():
            for _ in batch.steps:
                if time.perf_counter() - began >= seconds:
                    done = False
                    break
            if not done:
                self._match_if_many(batch, CHUNK // 2)
        batch.seconds += time.perf_counter() - began
        incomplete, self.incomplete = self.incomplete, set()
        return done, incomplete

    def displaced(self) -> set[int]:
        """Return the trees of which a watched folder appeared, disappeared or was replaced. Cheap: one lookup per
        folder."""
        found = set()
        for tree in list(self.trees.values()):
            for path in tree.roots:
                # Its state is unknown after an error.
                with contextlib.suppress(OSError):
                    if self._seats.get((tree.number, path)) != self._identity_at(path):
                        found.add(tree.number)
        return found

    def forget(self, tree: int) -> None:
        """Delete everything about a tree; requires a transaction."""
        self.trees.pop(tree, None)
        for (number,) in select(self.store.db, "SELECT folder FROM folder WHERE tree=? AND parent=0", (tree,)):
            self.drop_folders(number)
        self.store.db.execute("DELETE FROM change WHERE tree=?", (tree,))
        self.store.db.execute("DELETE FROM tree WHERE tree=?", (tree,))

    # Batches

    def _run(self, batch: Batch) -> Iterator[None]:
        for number in (*batch.sweep, *batch.roots):
            if (tree := self.trees.get(number)) is not None:
                self._look_at_roots(batch, tree)
        yield from self._work_off(batch)
        last = self.snapshot.last_folder()
        self.ahead.update(dict.fromkeys(batch.sweep, 0))
        for number in batch.sweep:
            while folders := self.snapshot.folders(number, self.ahead[number], last, 256):
                for folder in folders:
                    self.ahead[number] = folder
                    yield from self._scan(batch, folder)
                    yield from self._work_off(batch)
            del self.ahead[number]
        while True:
            yield from self._work_off(batch)
            if batch.doubtful:
                self._settle(batch)
            elif not batch.work:
                break
        self.match_files(batch)
        for number in batch.sweep:
            tree = self.trees.get(number)
            if tree is not None and not tree.complete:
                tree.complete = True
                self.store.sequence += 1
                self.store.db.execute("UPDATE tree SET complete=1, floor=? WHERE tree=?", (self.store.sequence, number))

    def _work_off(self, batch: Batch) -> Iterator[None]:
        while batch.work:
            folder, names = batch.work.popitem()
            if names is None:
                yield from self._scan(batch, folder)
            else:
                self._look(batch, folder, names)
                yield

    # Watched folders

    def _identity_at(self, path: bytes) -> Identity | None:
        """Return the identity of a watched folder, or None if it is missing. Raises OSError."""
        return None if self._service_roots.hides(os.fsdecode(path)) else snapshot.identity_at(path)

    def _look_at_roots(self, batch: Batch, tree: Tree) -> None:
        for path in tree.roots:
            try:
                identity = self._identity_at(path)
            except OSError as error:
                # Its state is unknown: keep the stored one.
                _log.warning("cannot read %s: %s", os.fsdecode(path), error)
                continue
            known = self.snapshot.root(tree.number, path)
            self._seats[tree.number, path] = identity
            if known is not None and known.identity != identity:
                self.log(tree, DELETED, folder_row(known.identity, None), path)
                self.drop_folders(known.number)
                known = None
            if identity is None:
                tree.missing.add(path)
                continue
            tree.missing.discard(path)
            if known is None:
                number = self.snapshot.add(tree.number, ROOT, path, identity)
                self.log(tree, CREATED, folder_row(identity, number), path)
                batch.work[number] = None
            elif known.number not in self.watches:
                batch.work[known.number] = None

    # Examining folders

    def _enter(self, batch: Batch, number: int, names: Names | None) -> OpenFolder | None:
        """Open a folder if it is where it was.

        Otherwise its place is examined, and its `names` in another batch: it may only have been renamed.
        """
        folder = self.snapshot.folder(number)
        if folder is None or (tree := self.trees.get(folder.tree)) is None:
            return None
        try:
            descriptor = snapshot.open_folder(self.snapshot.path(number))
        except OSError as error:
            if error.errno in snapshot.GONE:
                self._suspect(batch, folder, names)
            else:
                self.problems[number] = os.strerror(error.errno or 0)
            return None
        if snapshot.identity_of(descriptor) != folder.identity:
            os.close(descriptor)
            self._suspect(batch, folder, names)
            return None
        return OpenFolder(folder, tree, descriptor)

    def _suspect(self, batch: Batch, folder: Folder, names: Names | None) -> None:
        """A folder is not where it was: examine its former place after everything else."""
        merge(batch.again, folder.number, names)
        if folder.parent == ROOT:
            self._look_at_roots(batch, self.trees[folder.tree])
        else:
            batch.doubtful.setdefault((folder.parent, folder.name), False)

    def _scan(self, batch: Batch, number: int) -> Iterator[None]:
        """Examine a whole folder."""
        opened = self._enter(batch, number, None)
        if opened is None:
            return
        try:
            self.watches.add(number, opened.descriptor)
            try:
                names = self._names(opened)
            except OSError as error:
                self.problems[number] = os.strerror(error.errno or 0)
                return
            self.problems.pop(number, None)
            for at in range(0, max(len(names), 1), CHUNK):
                low = names[at] if at else b""
                high = names[at + CHUNK] if at + CHUNK < len(names) else None
                self._scan_some(batch, opened, names[at : at + CHUNK], low, high)
                self._match_if_many(batch, MAX_WAITING)
                yield
        finally:
            os.close(opened.descriptor)

    def _scan_some(
        self, batch: Batch, opened: OpenFolder, names: list[bytes], low: bytes, high: bytes | None
    ) -> None:  # fmt: skip
        """Examine the entries of a folder from the name `low` up to, but not including, `high`; `names` are those
        listed."""
        folder, tree, descriptor = opened
        rows = self.snapshot.rows(folder.number, low, high)
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
                if row is not None and snapshot.is_as_stored(status, row):
                    # This is by far the most common case.
                    continue
                seen = Seen.of(status)
                if not tree.complete and row is None and seen.kind != FOLDER:
                    new.append((folder.number, name, self.row_of(batch, folder.number, name, seen)))
                    continue
            self.compare(batch, opened, name, row, seen, touched=True)
        self.snapshot.put_all(new)
        left_out = self._left_out(folder, tree) if rows else None
        for name, row in rows.items():
            assert left_out is not None
            # It may have appeared after the names were read, and been seen by another batch.
            seen = self._see_own(opened, left_out, name, row)
            self.compare(batch, opened, name, row, seen, touched=True)

    def _see_own(self, opened: OpenFolder, left_out: LeftOut, name: bytes, row: Row | None) -> Seen | None:
        """Examine an entry of an open folder; None if it is missing or left out."""
        folder, _, descriptor = opened
        try:
            seen = Seen.of(os.stat(name, dir_fd=descriptor, follow_symlinks=False))
        except FileNotFoundError:
            return None
        except OSError as error:
            # Its state is unknown: keep the stored one.
            self.problems[folder.number] = os.strerror(error.errno or 0)
            return None if row is None else Seen(*row[:3], abs(row.ctime_ns), row.inode, folder.identity.device)
        return None if left_out(os.fsdecode(name), seen.kind == FOLDER) else seen

    def _names(self, opened: OpenFolder) -> list[bytes]:
        """Return the sorted names of a folder's entries that belong to the tree."""
        folder, tree, descriptor = opened
        left_out = self._left_out(folder, tree)
        with os.scandir(descriptor) as entries:
            return sorted(
                os.fsencode(entry.name)
                for entry in entries
                if not left_out(entry.name, entry.is_dir(follow_symlinks=False))
            )

    def _left_out(self, folder: Folder, tree: Tree) -> LeftOut:
        """Return the rule for a folder's entries: some are excluded by the tree, others hidden from the service."""
        above, hidden = self._above(folder, tree), None
        if self._service_roots.hides_some:
            hidden = self._service_roots.hidden_in(os.fsdecode(self.snapshot.path(folder.number)))
        if hidden is None:
            return lambda name, is_folder: tree.rules.passes_over(above, name, is_folder=is_folder)
        return lambda name, is_folder: hidden(name) or tree.rules.passes_over(above, name, is_folder=is_folder)

    def _above(self, folder: Folder, tree: Tree) -> str:
        """Return a folder's path in the form that patterns are matched against."""
        if not tree.rules.by_path or folder.parent == ROOT:
            return ""
        path = self.snapshot.path(folder.number)
        root = next(root for root in tree.roots if path.startswith(root.rstrip(b"/") + b"/"))
        return os.fsdecode(path[len(root.rstrip(b"/")) + 1 :]) + "/"

    def _look(self, batch: Batch, number: int, names: Names, *, evict: bool = False) -> None:
        """Examine some entries of a folder."""
        opened = self._enter(batch, number, names)
        if opened is None:
            return
        try:
            if number not in self.watches and number not in self.watches.without:
                batch.work[number] = None
            left_out = self._left_out(opened.folder, opened.tree)
            for name, touched in names.items():
                row = self.snapshot.row(number, name)
                seen = self._see_own(opened, left_out, name, row)
                self.compare(batch, opened, name, row, seen, touched=touched, evict=evict)
            self._match_if_many(batch, MAX_WAITING)
        finally:
            os.close(opened.descriptor)

    def _match_if_many(self, batch: Batch, many: int) -> None:
        if len(batch.fresh) >= many or len(batch.gone) >= many:
            self.match_files(batch)

    # End of a batch

    def _settle(self, batch: Batch) -> None:
        """Decide about folders that are not where they were, starting with those whose place is taken by another
        one."""
        wanted = [place for place, occupied in batch.doubtful.items() if occupied]
        for place in wanted:
            del batch.doubtful[place]
            self._look(batch, place[0], {place[1]: True})
        if batch.work:
            return
        gone = [place for place, occupied in batch.doubtful.items() if not occupied]
        # If two want each other's places, one has to give way.
        for place in gone or list(batch.doubtful)[:1]:
            batch.doubtful.pop(place, None)
            self._look(batch, place[0], {place[1]: True}, evict=True)
