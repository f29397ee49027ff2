"""Changes on disk, with the index updated to match.

Each change is recorded before it begins and is made while no scan can write. The transaction that adds it to the index,
with every sum and set, also deletes the record. For records left by a crash, the next start checks the disk and updates
the index.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import apsw
import msgspec
from msgspec.structs import astuple

from proto.errors import LinckiaError
from proto.wire import frames
from services.files import paths
from services.files.changes import disk, following
from services.files.changes.additions import Additions
from services.files.changes.copying import PREFIX, Copy
from services.files.changes.disk import Item, OpenItem, OpenPath, Refused, opened, placed
from services.files.changes.following import Follow
from services.files.changes.recording import Records
from services.files.index.listing import MAX_INT, DiskEntry, look
from services.files.index.tree import Tree, find
from services.files.paths import FileRoots
from services.files.store import schema
from services.files.store.database import Note, remove_note, write_note
from services.files.store.sql import fetch_all
from services.runtime import change_log, keyed
from services.runtime.change_log import Change
from services.runtime.replace import rename
from services.runtime.rewrite import missing_folders

CHUNK_ITEMS = 100
"""Most items per transaction; items of one transaction do not affect each other."""

_log = logging.getLogger("linckia.files")


class Changes:
    """Makes changes, one call at a time; blocks."""

    def __init__(self, tree: Tree, roots: FileRoots, data_dir: Path) -> None:
        self._database = tree.database
        self._roots = roots
        self._follow = Follow(tree)
        self._trash = data_dir / "trash"
        self._left: list[int] = []
        """Intents of changes that the index could not follow yet."""
        self.additions = Additions(tree, roots, self.defer)

    def run(self, items: Sequence[Item], go_on: Callable[[int], None]) -> None:
        """Make all changes in order, and store in each item what became of it.

        Args:
            go_on: called with the number of items done, before each chunk and periodically; may raise to stop there.
        """
        for item in items[:1]:
            item.scan += self._recover_deferred()
        take_up(items)
        left = [item for item in items if not item.done]
        for item in left:
            item.exact = not item.source.isascii() and os.path.lexists(paths.to_os(item.source))
        done = len(items) - len(left)
        for chunk in self._chunks(left):
            go_on(done)
            try:
                self._run(chunk, functools.partial(go_on, done))
            except LinckiaError as error:
                # The error says that nothing was done. If part of the call was done, each item reports its own result.
                if not any(item.done for item in items):
                    raise
                for item in left:
                    if not item.done:
                        item.error = item.error or str(error)
                return
            done += len(chunk)

    def _chunks(self, items: Sequence[Item]) -> Iterator[list[Item]]:
        chunk: list[Item] = []
        used: set[str] = set()
        above: set[str] = set()
        for item in items:
            own = {path for given in item.paths() for path in self._forms(given)}
            over = {folder for path in own for folder in paths.ancestors(path)}
            if chunk and (len(chunk) >= CHUNK_ITEMS or used & (own | over) or above & own):
                yield chunk
                chunk, used, above = [], set(), set()
            chunk.append(item)
            used |= own
            above |= over
        if chunk:
            yield chunk

    def _forms(self, given: str) -> set[str]:
        """Return the path as given, and the path it currently leads to."""
        with contextlib.suppress(Refused):
            return {given, placed(self._roots, given, "path")}
        return {given}

    # A chunk

    def _run(self, chunk: list[Item], go_on: Callable[[], None]) -> None:
        with contextlib.ExitStack() as stack:
            ready = []
            for item in chunk:
                try:
                    if (each := self._open(item, stack)) is not None:
                        ready.append(each)
                except Refused as error:
                    item.error = str(error)
            if not ready:
                return
            self._note(ready)
            records = Records(ready)
            try:
                records.begin()
                # All items of a call are of the same kind.
                if ready[0].item.kind == "copy":
                    self.additions.copy(ready, go_on)
                    return
                if ready[0].item.kind == "folder":
                    self.additions.make(ready)
                    return
                for each in ready:
                    if each.target is None:
                        self._delete(each)
                self._apply([each for each in ready if each.target is not None], ready)
                for each in ready:
                    if each.crosses:
                        self._cross(each, go_on)
            except BaseException:
                # Sync the index with the disk now or, if it cannot be written, before the next change.
                self._left += [each.intent for each in ready]
                with contextlib.suppress(LinckiaError):
                    chunk[0].scan += self._recover_deferred()
                for each in ready:
                    each.item.made = each.item.done or self._was_made(each)
                raise
            finally:
                records.end()

    def _was_made(self, each: OpenItem) -> bool:
        inode, device = each.status.st_ino & MAX_INT, each.status.st_dev & MAX_INT
        return self._was_done(
            each.item.kind, each.item.source, each.item.target or None, inode, device, each.item.trash_id
        )

    def defer(self, intent: int) -> None:
        """Have the index follow this change before the next one is made."""
        self._left.append(intent)

    def _recover_deferred(self) -> list[str]:
        left = list(self._left)
        scan = self.recover(left)
        del self._left[: len(left)]
        return scan

    def _open(self, item: Item, stack: contextlib.ExitStack) -> OpenItem | None:
        """Open an item's source and target; None if there is nothing to do. Raises Refused."""
        if item.kind == "folder":
            return self.additions.open_folder(item, stack)
        if item.kind == "restore":
            source = OpenPath(stack.enter_context(self._open_trash()), str(item.trash_id), str(self._trash))
        else:
            if item.exact and not os.path.lexists(paths.to_os(item.source)):
                raise Refused(self._roots.missing(item.source, item.source_field))
            source = stack.enter_context(opened(self._roots, item.source, item.source_field))
            if item.kind == "copy":
                disk.check_readable(self._roots, source.path, item.source_field)
            else:
                disk.check_writable(self._roots, source.path, item.source_field)
            item.source = source.path
        try:
            status = source.status()
            if status is None:
                raise Refused(self._roots.missing(item.source, item.source_field))
            deletes = item.kind in ("delete", "trash") and stat.S_ISDIR(status.st_mode)
            if deletes and not item.force and not disk.is_empty(source):
                raise Refused(disk.not_empty(source.path))
        except OSError as error:
            raise Refused(disk.describe_error(item.source, error)) from None
        if item.kind == "delete":
            return OpenItem(item, source, None, status)
        if item.kind == "trash":
            return OpenItem(
                item, source, OpenPath(stack.enter_context(self._open_trash()), "", str(self._trash)), status
            )
        if item.make:
            # Before missing directories are made.
            place = disk.placed(self._roots, item.target, item.target_field)
            disk.check_not_inside(source.path, place, item.target_field)
            above = missing_folders(os.path.dirname(paths.to_os(place)))
            stack.enter_context(change_log.recorded([Change("folder", folder) for folder in above]))
        target = stack.enter_context(
            opened(
                self._roots, item.target, item.target_field, make=item.make,
                moved=disk.unmoved(self._roots, item, source.path),
            )
        )  # fmt: skip
        disk.check_writable(self._roots, target.path, item.target_field)
        disk.check_not_inside(source.path, target.path, item.target_field)
        item.target = target.path
        return OpenItem(item, source, target, status)

    def _open_trash(self) -> contextlib.AbstractContextManager[int]:
        self._trash.mkdir(mode=0o700, exist_ok=True)
        return disk.open_at(str(self._trash), disk.O_READ_FOLDER)

    def _note(self, ready: list[OpenItem]) -> None:
        with self._database.transaction() as db:
            for each in ready:
                item = each.item
                if item.kind == "trash":
                    stored, found = find(db, item.source), DiskEntry.of("", each.status)
                    size = stored.size if stored else found.size
                    each.note = Note(item.source, found.kind, size, time.time_ns())
                    db.execute("INSERT INTO trash(path, kind, size, deleted) VALUES(?,?,?,?)", astuple(each.note))
                    item.trash_id = db.last_insert_rowid()
                    following.remember(db, item.trash_id, item.source)
                    assert each.target is not None
                    each.target = each.target._replace(name=str(item.trash_id))
                db.execute(
                    "INSERT INTO intent(kind, source, target, inode, device, trash_id) VALUES(?,?,?,?,?,?)",
                    (
                        item.kind, item.source, item.target or None, each.status.st_ino & MAX_INT,
                        each.status.st_dev & MAX_INT, item.trash_id,
                    ),
                )  # fmt: skip
                each.intent = db.last_insert_rowid()
                keyed.intend_step(db, each.intent, item.step, Outcome(item.source, item.target, item.trash_id))
        for each in ready:
            if each.note is not None and each.item.trash_id is not None and each.target is not None:
                # Written before the item is moved into the trash.
                write_note(self._trash, each.item.trash_id, each.note)
                disk.sync(each.target.folder)

    def _delete(self, each: OpenItem) -> None:
        try:
            disk.remove(each.source, force=each.item.force)
        except OSError as error:
            each.item.error = f"{disk.describe_error(each.item.source, error)}{disk.describe_location(error)}"

    def _apply(self, moves: list[OpenItem], ready: list[OpenItem]) -> None:
        """Rename the items to be moved, and update the index for moves and deletions.

        Raises:
            LinckiaError: the index could not be updated. Renamed items are moved back; any that cannot be are `done`.
        """
        renamed: list[OpenItem] = []
        try:
            self._rename(moves, ready, renamed)
        except LinckiaError:
            for each in ready:
                each.item.scan.clear()
                # Deletions cannot be undone.
                each.item.done = each.target is None and each.item.error is None
                each.item.trash_id = None if each.item.kind == "trash" else each.item.trash_id
            for each in reversed(renamed):
                assert each.target is not None
                try:
                    rename(each.target, each.source)
                except OSError:
                    each.item.done = True
            disk.sync_all(renamed)
            raise

    def _rename(self, moves: list[OpenItem], ready: list[OpenItem], renamed: list[OpenItem]) -> None:
        with self._database.transaction() as db:
            for each in moves:
                assert each.target is not None
                try:
                    rename(each.source, each.target)
                    renamed.append(each)
                except FileExistsError:
                    each.item.error = disk.exists(each.item.target_field, each.item.target)
                except OSError as error:
                    if error.errno == errno.EXDEV:
                        each.crosses = True
                    else:
                        each.item.error = disk.describe_error(each.item.source, error)
            disk.sync_all(ready)
            for each in ready:
                if not each.crosses:
                    if each.item.error is None or each.target is None:
                        self._followed(db, each.item)
                    self._forget(db, each)

    def _followed(self, db: apsw.Connection, item: Item) -> None:
        item.done = item.error is None
        if item.kind == "move":
            if self._follow.moved(db, item.source, item.target):
                item.scan.append(item.target)
            return
        changed = item.target if item.kind == "restore" else item.source
        if self._follow.seen(db, changed):
            item.scan.append(changed)
        if item.kind == "restore":
            assert item.trash_id is not None
            following.came_back(db, item.trash_id, item.target)
            self._leave_trash(db, item.trash_id)

    def _leave_trash(self, db: apsw.Connection, trash_id: int) -> None:
        db.execute("DELETE FROM trash WHERE id = ?", (trash_id,))
        remove_note(self._trash, trash_id)

    def _forget(self, db: apsw.Connection, each: OpenItem) -> None:
        following.remove_intent(db, each.intent, done=each.item.done)
        if each.item.kind == "trash" and each.item.error is not None:
            assert each.item.trash_id is not None
            self._leave_trash(db, each.item.trash_id)
            each.item.trash_id = None

    def _cross(self, each: OpenItem, go_on: Callable[[], None]) -> None:
        """Move by a verified copy: the copy takes its new path, then the original is deleted."""
        item, target = each.item, each.target
        assert target is not None
        copy_place = target._replace(name=f"{PREFIX}{each.intent}")
        copy = Copy(each.source, copy_place, go_on)
        try:
            if target.status() is not None:
                raise Refused(disk.exists(item.target_field, item.target))
            copy.make()
        except Refused as error:
            item.error = str(error)
            with self._database.transaction() as db:
                self._forget(db, each)
            return
        placed = False
        try:
            with self._database.transaction() as db:
                try:
                    rename(copy_place, target)
                    placed = True
                    disk.sync(target.folder)
                except OSError as error:
                    item.error = disk.describe_error(item.target or item.source, error)
                    if isinstance(error, FileExistsError):
                        item.error = disk.exists(item.target_field, item.target)
                    self._forget(db, each)
                else:
                    if item.kind == "move":
                        self._followed(db, item)
        except LinckiaError:
            item.done = False
            disk.remove(target if placed else copy_place, force=True)
            raise
        if item.error is not None:
            disk.remove(copy_place, force=True)
            return
        if item.target and stat.S_ISDIR(each.status.st_mode):
            # Everything below it has new inodes.
            item.scan.append(item.target)
        try:
            copy.delete_original()
        except Refused as error:
            item.error = str(error)
        item.done = item.error is None
        with self._database.transaction() as db:
            if item.kind != "move":
                self._followed(db, item)
            elif self._follow.seen(db, item.source):
                item.scan.append(item.source)
            following.remove_intent(db, each.intent, done=item.done)

    # Recovery after a crash

    @staticmethod
    def noted(db: apsw.Connection) -> list[int]:
        """Return the intents that were not completed, or are in progress."""
        return [id_ for (id_,) in fetch_all(db, "SELECT id FROM intent")]

    def recover(self, only: Collection[int]) -> list[str]:
        """Update the index for intents that were not completed. Returns the paths to scan.

        Raises:
            DiskFull: nothing was stored.
        """
        if not only:
            return []
        scan: list[str] = []
        with self._database.transaction() as db:
            for id_, *row in fetch_all(db, "SELECT id, kind, source, target, inode, device, trash_id FROM intent"):
                if id_ not in only:
                    continue
                done = self._was_done(*row)
                scan += self._recover(db, id_, *row)
                following.remove_intent(db, id_, done=done)
        return scan

    def _was_done(
        self, kind: str, source: str, target: str | None, inode: int, device: int, trash_id: int | None
    ) -> bool:
        is_in_trash = os.path.lexists(self._trash / str(trash_id))
        match kind:
            case "trash":
                return is_in_trash
            case "restore":
                return not is_in_trash and target is not None and look(target) is not None
            case "delete":
                return look(source) is None
            case "folder":
                made = look(source)
                return made is not None and made.kind == schema.DIRECTORY
            case "move" if target is not None:
                there = look(target)
                return there is not None and (there.inode, there.device) == (inode, device) and look(source) is None
            case "copy" if target is not None:
                there = look(target)
                return there is not None and (there.inode, there.device) == (inode, device)
        return False

    def _recover(
        self, db: apsw.Connection, id_: int, kind: str, source: str, target: str | None, inode: int, device: int,
        trash_id: int | None,
    ) -> list[str]:  # fmt: skip
        _log.warning("%s of %s did not finish; updating the index from the disk", kind, source)
        self._remove_copy(id_, target)
        is_in_trash = os.path.lexists(self._trash / str(trash_id))
        if kind == "restore" and not is_in_trash and trash_id is not None and target is not None:
            following.came_back(db, trash_id, target)
        if kind in ("trash", "restore") and not is_in_trash and trash_id is not None:
            self._leave_trash(db, trash_id)
        if kind == "move" and target is not None:
            there = look(target)
            if there is not None and (there.inode, there.device) == (inode, device) and look(source) is None:
                return [target] if self._follow.moved(db, source, target) else []
        if kind in ("copy", "folder"):
            changed = [following.highest_new(db, target or source)]
        else:
            changed = [path for path in (source if kind != "restore" else None, target) if path]
        return [path for path in changed if self._follow.seen(db, path)]

    def _remove_copy(self, intent: int, target: str | None) -> None:
        """Remove what a crash left of an unfinished copy."""
        folder = str(self._trash) if target is None else paths.split(target)[0]
        with contextlib.suppress(Refused, FileNotFoundError):
            if target is None:
                with self._open_trash() as descriptor:
                    disk.remove(OpenPath(descriptor, f"{PREFIX}{intent}", folder), force=True)
            else:
                with opened(self._roots, f"{folder}{PREFIX}{intent}", "to") as place:
                    disk.remove(place, force=True)

    # The trash

    def empty(self, ids: Sequence[int]) -> list[str]:
        """Permanently delete items of the trash. Returns an error message for each failure."""
        problems = []
        with self._open_trash() as folder:
            for id_ in ids:
                try:
                    with contextlib.suppress(FileNotFoundError):
                        disk.remove(OpenPath(folder, str(id_), str(id_)), force=True)
                except OSError as error:
                    problems.append(f"{id_}: {os.strerror(error.errno or 0)}")
                    continue
                with self._database.transaction() as db:
                    self._leave_trash(db, id_)
                    keyed.step(db, str(id_), None)
        return problems


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What a call with an idempotency key stores of an item that was changed."""

    source: str
    target: str
    trash_id: int | None


def take_up(items: Sequence[Item]) -> None:
    """Mark the items that an earlier attempt of the same call changed as done."""
    earlier = keyed.steps()
    for item in items:
        if (value := earlier.get(item.step)) is not None:
            found = frames.read_body(value, Outcome)
            item.source, item.target, item.trash_id = found.source, found.target, found.trash_id
            item.done, item.error = True, None
            change_log.go_on()
