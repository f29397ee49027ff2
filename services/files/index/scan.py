"""A scan: examines everything below a directory and updates the index, batch by batch.

Stored directories are compared first, in path order (`comparing`); one that has changed is listed, and its new
directories are walked depth first. Each directory is listed through its descriptor, opened by name in its parent or at
its real path, so that a path swapped for a link meanwhile leads nowhere else. Directories with an unchanged fingerprint
cost no write. The others are written in a series of transactions, each of which leaves every sum correct: a scan that
ends early, or with its process, leaves an index that is partly updated but consistent. Memory holds the directories
between the root and the current position, and one batch.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import apsw

from proto.errors import Unavailable
from services.files import paths
from services.files.index.comparing import Ask, Listed, compared, different
from services.files.index.edit import Edit
from services.files.index.listing import NOTHING, Listing, is_at, look, open_folder, read_folder
from services.files.index.tree import Tree, find, folder_path, set_rows
from services.files.store import schema
from services.files.store.sql import fetch_all, fetch_value

BATCH_ENTRIES = 20_000
BATCH_S = 0.5
"""How long results may wait to be written; also the delay for cancellation and progress."""

RETRY_MS = 1_000
"""Retry delay after the index was found damaged."""

MAX_PROBLEMS = 20
"""Number of problems that are described; the others are only counted."""


class Missing(Exception):
    """Nothing exists at the path to scan."""


class Cancelled(Exception):
    """The scan was cancelled."""


@dataclass(eq=False, slots=True)
class Counts:
    """What a scan has found so far; written only by its thread."""

    progress: float = 0.0
    """0 to 100, never decreasing."""
    files: int = 0
    directories: int = 0
    size: int = 0
    changed: int = 0
    """Number of directories that differed from the stored state."""
    problem_count: int = 0
    problems: list[str] = field(default_factory=list)

    def problem(self, path: str, why: str) -> None:
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(f"{paths.of_folder(path)}: {why}")


@dataclass(eq=False, slots=True)
class _Folder:
    """A directory to be listed, or with subdirectories to be listed."""

    above: _Folder | None
    name: str
    path: str
    """Ends in a slash."""
    id: int | None = None
    """None until it is stored."""
    fingerprint: bytes | None = None
    inside: int = 0
    own_files: int = 0
    own_size: int = 0
    fresh: bool = True
    """True if none of its entries are stored."""
    is_root: bool = False
    alone: bool = False
    """True if its stored subdirectories are examined separately."""
    share: float = 0.0
    """Its share of the progress."""
    descriptor: int | None = None
    waiting: int = 0
    """Number of subdirectories still to be opened."""

    def opened_one(self) -> None:
        self.waiting -= 1
        if self.waiting <= 0:
            self.close()

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class _Listed(NamedTuple):
    """A directory whose listing, or problem, is still to be written."""

    folder: _Folder
    listing: Listing | None
    inside: list[_Folder]
    mark: int
    problem: str


class Scan:
    """A scan of a real path below the roots. `run` blocks; `cancel` may be called from any thread."""

    def __init__(
        self,
        tree: Tree,
        path: str,
        *,
        skipped_devices: frozenset[int] = frozenset(),
        on_batch: Callable[[apsw.Connection, Counts], None] = lambda db, counts: None,
        ask: Ask | None = None,
        rows: int | None = None,
    ) -> None:
        """Create a scan.

        Args:
            ask: requests the examination of some stored directories by other processes.
            rows: new value of `folder.rows` for the path; None leaves it unchanged.
            skipped_devices: file systems that hold no files (`/proc`); their directories are shown empty.
            on_batch: called in each transaction.
        """
        self.counts = Counts()
        self._database, self._invalidations, self._ignored = tree
        self._generation = tree.database.generation
        self._path = path
        self._skipped_devices = skipped_devices
        self._on_batch = on_batch
        self._ask = ask
        self._rows = rows
        self._cancelled = threading.Event()
        self._batch: list[_Listed] = []
        self._batch_entries = 0
        self._batch_since = time.monotonic()
        self._mark = tree.invalidations.mark
        self._last = 0
        """The highest id at the start; anything with a higher one was stored since."""
        self._incomplete: set[str] = set()
        """Directories that lost a subdirectory after they were examined."""

    def cancel(self) -> None:
        """Make `run` stop within a fraction of a second."""
        self._cancelled.set()

    def run(self) -> None:
        """Run the scan to the end.

        Raises:
            Missing: nothing exists at the path; its index entries have been removed if its parent directory exists
                and can be read.
            Cancelled: `cancel` was called; everything found by then is indexed.
            OSError: the path cannot be examined.
            DiskFull: the results cannot be written.
            Unavailable: the index was found damaged, and is being rebuilt.
        """
        mark = self._mark = self._invalidations.mark
        root = self._root()
        if root is not None:
            with self._database.reader() as reader:
                self._compare(root, reader)
                # Changes made by others meanwhile may have been missed.
                for path in {*self._invalidations.since(mark, self._path), *self._incomplete}:
                    self._again(path, reader)
                self._flush()
        self.counts.progress = 100.0

    # The path itself

    def _root(self) -> _Folder | None:
        hidden = self._ignored is not None and self._ignored.hides(self._path)
        found = None if hidden else look(self._path)
        folder, _ = paths.split(self._path)
        with self._database.transaction() as db:
            edit = Edit(db, time.time_ns())
            if found is None:
                gone = find(db, self._path)
                # If its parent is unreadable or also missing, it may come back later (an unmounted disk).
                if gone is not None and _readable(folder):
                    edit.remove(gone)
                    edit.finish()
            else:
                parent = edit.reach(paths.of_folder(folder)) if folder else 0
                id_ = edit.put(parent, folder, found)
                edit.finish()
                if self._rows is not None:
                    db.execute("UPDATE entry SET scanned = abs(scanned) WHERE id = ?", (id_,))
                    set_rows(db, self._path, self._rows)
                self._on_batch(db, self.counts)
        if found is None:
            raise Missing(f"{self._path} does not exist")
        if found.kind != schema.DIRECTORY:
            self.counts.files += found.kind == schema.FILE
            self.counts.size += found.size
            return None
        return _Folder(None, self._path, paths.as_folder(self._path), id_, share=100.0)

    # Stored directories

    def _compare(self, root: _Folder, reader: apsw.Connection) -> None:
        """Examine all stored directories, and list those that have changed."""
        counts = self.counts
        self._last = fetch_value(reader, "SELECT max(id) FROM entry")
        total = 1 + fetch_value(reader, "SELECT directories FROM entry WHERE id = ?", (root.id,))
        share = 100.0 / total
        for folders, others in compared(reader, root.path, self._last, self._look, self._ask, self._check_cancelled):
            counts.directories += len(folders)
            to_list = {folders[number].id for number in others}
            for each in folders:
                if each.id in to_list:
                    folder = _Folder(
                        None, paths.of_folder(each.path), each.path, each.id, each.fingerprint, each.inside,
                        each.own_files, each.own_size, fresh=False, is_root=each.id == root.id, alone=True, share=share,
                    )  # fmt: skip
                    self._walk(folder, reader)
                else:
                    counts.files += each.own_files
                    counts.size += each.own_size
            counts.progress = min(99.9, counts.progress + (len(folders) - len(others)) * share)
            self._flush_in_time()

    def _look(self, folders: Listed) -> list[int]:
        return different(folders, self._ignored, self._skipped_devices)

    def _again(self, path: str, reader: apsw.Connection) -> None:
        """List a directory once more, and its new directories."""
        stored = find(reader, path)
        if stored is None or stored.kind != schema.DIRECTORY:
            return
        self._walk(_Folder(None, path, paths.as_folder(path), stored.id, fresh=False), reader)

    # The walk

    def _walk(self, root: _Folder, reader: apsw.Connection) -> None:
        pending = [root]
        try:
            while pending:
                folder = pending.pop()
                pending.extend(self._visit(folder, reader))
                self._flush_in_time()
        finally:
            for folder in pending:
                if folder.above is not None:
                    folder.above.opened_one()

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            self._flush()
            raise Cancelled

    def _visit(self, folder: _Folder, reader: apsw.Connection) -> Iterator[_Folder]:
        self._check_cancelled()
        mark = self._invalidations.mark
        above = folder.above
        try:
            try:
                folder.descriptor = open_folder(folder.name, None if above is None else above.descriptor)
                if above is None and not is_at(folder.descriptor, folder.name):
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            finally:
                if above is not None:
                    above.opened_one()
            if self._skipped_devices and os.fstat(folder.descriptor).st_dev in self._skipped_devices:
                listing = NOTHING
            else:
                listing = read_folder(folder.descriptor, folder.path, self._ignored)
        except OSError as error:
            folder.close()
            self._unreadable(folder, error, mark, reader)
            return
        counts = self.counts
        for name in listing.unknown:
            counts.problem(folder.path + name, "could not be examined")
        unchanged = folder.fingerprint == listing.fingerprint
        names = None if unchanged else listing.folders()
        inside = self._inside(folder, names, reader)
        counts.directories += len(inside)
        share = folder.share / (len(inside) + 1)
        for each in inside:
            each.share = share
        counts.progress = min(99.9, counts.progress + share)
        if unchanged:
            counts.files += folder.own_files
            counts.size += folder.own_size
        else:
            counts.changed += 1
            self._batch.append(_Listed(folder, listing, inside, mark, ""))
            self._batch_entries += len(listing.names) + 1
        if inside:
            folder.waiting = len(inside)
        else:
            folder.close()
        yield from inside

    def _inside(self, folder: _Folder, names: list[str] | None, reader: apsw.Connection) -> list[_Folder]:
        """Return the named subdirectories, or all stored ones, each with its stored state."""
        if names == [] or (names is None and not folder.inside):
            return []
        known: dict[str, _Folder] = {}
        if not folder.fresh:
            query = "SELECT path, id, fingerprint, inside, own_files, own_size FROM folder WHERE parent = ?"
            for path, *row in fetch_all(reader, query, (folder.id,)):
                name = path[len(folder.path) : -1]
                known[name] = _Folder(folder, name, path, *row)
                known[name].fresh = False
        inside = []
        for name in known if names is None else names:
            each = known.get(name) or _Folder(folder, name, f"{folder.path}{name}/")
            if each.id is None or not folder.alone or each.id > self._last:
                inside.append(each)
        return inside

    def _unreadable(self, folder: _Folder, error: OSError, mark: int, reader: apsw.Connection) -> None:
        self.counts.progress = min(99.9, self.counts.progress + folder.share)
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) and not folder.is_root:
            if folder.above is not None:
                # It vanished after its parent was listed, or something else replaced it.
                self._invalidations.add(folder.above.path)
            else:
                self._gone(folder, reader)
            return
        why = f"cannot be read: {os.strerror(error.errno or 0)}"
        self.counts.problem(folder.path, why)
        self._batch.append(_Listed(folder, None, [], mark, why))
        self._batch_entries += 1

    def _gone(self, folder: _Folder, reader: apsw.Connection) -> None:
        """Handle a stored directory that is missing: its parent has been listed without it, or was examined before."""
        self.counts.directories -= folder.alone
        for _ in range(2):
            if folder.id is None or folder_path(reader, folder.id) != folder.path:
                return
            if self._batch:
                self._flush()
        self._incomplete.add(paths.parent(folder.name))

    # Writing

    def _flush_in_time(self) -> None:
        if self._batch_entries >= BATCH_ENTRIES or time.monotonic() - self._batch_since > BATCH_S:
            self._flush()

    def _flush(self) -> None:
        batch, self._batch, self._batch_entries = self._batch, [], 0
        with self._database.transaction() as db:
            if self._database.generation != self._generation:
                raise Unavailable("the index was damaged and is being rebuilt", retry_after_ms=RETRY_MS)
            edit = Edit(db, time.time_ns())
            for each in batch:
                self._put(db, edit, each)
            edit.finish()
            self._on_batch(db, self.counts)
        self._batch_since = time.monotonic()

    def _put(self, db: apsw.Connection, edit: Edit, listed: _Listed) -> None:
        folder, listing, inside, mark, problem = listed
        if folder.id is None or self._invalidations.has(folder.path, mark):
            # Others have changed it, or its parent, since it was listed; it is listed again at the end.
            return
        if (not folder.fresh or self._invalidations.mark != self._mark) and edit.path_of(folder.id) != folder.path:
            # A directory above it was moved or removed.
            return
        if listing is None:
            edit.set_problem(folder.id, problem)
            return
        new = edit.put_folder(folder.id, folder.path, listing, fresh=folder.fresh)
        files, size, _ = listing.totals
        self.counts.files += files
        self.counts.size += size
        for each in inside:
            if each.id is None:
                each.id = new.get(each.name)


def _readable(folder: str) -> bool:
    """True if a directory, given by its path with slash, exists and can be listed."""
    try:
        descriptor = open_folder(folder, None)
    except OSError:
        return False
    os.close(descriptor)
    return True
