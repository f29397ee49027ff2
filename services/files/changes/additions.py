"""Copies and new directories: changes that leave everything else in place.

A copy is made under a temporary name, and the record of the change gets its inode before it gets its own name. So the
next start after a crash knows whether it was made.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Sequence

import apsw

from proto.errors import LinckiaError
from services.files import paths
from services.files.changes import disk, following
from services.files.changes.copying import PREFIX, Copy
from services.files.changes.disk import Item, OpenItem, OpenPath, Refused, opened, placed
from services.files.changes.following import Follow
from services.files.index.listing import MAX_INT
from services.files.index.tree import Tree
from services.files.paths import FileRoots
from services.runtime.replace import rename

PLACED_EVERY_S = 0.5
"""Complete copies get their names at least this often: together, since each transaction waits for the disk."""


class Additions:
    """Makes the items of kind "copy" and "folder" that `Changes` has opened and recorded; blocks."""

    def __init__(self, tree: Tree, roots: FileRoots, defer: Callable[[int], None]) -> None:
        """`defer` is called for a recorded change that the index could not follow."""
        self._database = tree.database
        self._roots = roots
        self._follow = Follow(tree)
        self._defer = defer

    def open_folder(self, item: Item, stack: contextlib.ExitStack) -> OpenItem | None:
        """Open the place of the highest directory that has to be made for an item; None if there is none. Raises
        Refused."""
        item.source = place = self.folder(item)
        if item.existed:
            return None
        missing = [place, *(at for at in paths.ancestors(place) if not os.path.lexists(paths.to_os(at)))]
        source = stack.enter_context(opened(self._roots, missing[-1], item.source_field))
        return OpenItem(item, source, None, os.fstat(source.folder))

    def folder(self, item: Item) -> str:
        """Return the path of a directory to be made, and note in the item whether it exists. Raises Refused."""
        try:
            real = self._roots.real(self._roots.clean(item.source, item.source_field), item.source_field)
        except LinckiaError as error:
            raise Refused(error.failure.message) from None
        if os.path.isdir(paths.to_os(real)):
            item.existed = True
            return real
        place = placed(self._roots, item.source, item.source_field)
        disk.check_writable(self._roots, place, item.source_field)
        if os.path.lexists(paths.to_os(place)):
            raise Refused(disk.not_folder(item.source_field, place))
        return place

    def copy(self, copies: Sequence[OpenItem], go_on: Callable[[], None]) -> None:
        """Make the copies under temporary names; every `PLACED_EVERY_S`, those that are complete get their own."""
        made: list[OpenItem] = []
        last = time.monotonic()
        for each in copies:
            target = each.target
            assert target is not None
            try:
                if target.status() is not None:
                    raise Refused(disk.exists(each.item.target_field, each.item.target))
                Copy(each.source, self._unplaced(each), go_on, replaces=False).make()
            except Refused as error:
                each.item.error = str(error)
            made.append(each)
            if time.monotonic() - last > PLACED_EVERY_S:
                self._place(made)
                made, last = [], time.monotonic()
        self._place(made)

    @staticmethod
    def _unplaced(each: OpenItem) -> OpenPath:
        assert each.target is not None
        return each.target._replace(name=f"{PREFIX}{each.intent}")

    def _place(self, made: Sequence[OpenItem]) -> None:
        """Give complete copies their names, and have the index follow."""
        copied = [each for each in made if each.item.error is None]
        with self._database.transaction() as db:
            # By its inode, the next start recognises a copy that has got its name.
            for each in copied:
                if (status := self._unplaced(each).status()) is None:
                    # Another program removed it; renaming it will say so.
                    continue
                numbers = (status.st_ino & MAX_INT, status.st_dev & MAX_INT, each.intent)
                db.execute("UPDATE intent SET inode = ?, device = ? WHERE id = ?", numbers)
        renamed: list[OpenItem] = []
        try:
            with self._database.transaction() as db:
                for each in copied:
                    assert each.target is not None
                    try:
                        rename(self._unplaced(each), each.target)
                        renamed.append(each)
                    except FileExistsError:
                        each.item.error = disk.exists(each.item.target_field, each.item.target)
                    except OSError as error:
                        each.item.error = disk.describe_error(each.item.target, error)
                disk.sync_all(made)
                for each in made:
                    with contextlib.suppress(FileNotFoundError):
                        disk.remove(self._unplaced(each), force=True)
                    # After a failure, too: directories may have been made.
                    self._followed(db, each.item)
                    following.remove_intent(db, each.intent, done=each.item.done)
        except LinckiaError:
            for each in made:
                each.item.done = False
                each.item.scan.clear()
            for each in renamed:
                assert each.target is not None
                disk.remove(each.target, force=True)
            raise

    def make(self, ready: Sequence[OpenItem]) -> None:
        """Make directories. If the index has no room now, it follows later: they are there."""
        for each in ready:
            item = each.item
            try:
                with opened(self._roots, item.source, item.source_field, make=True) as place:
                    try:
                        os.mkdir(place.name, dir_fd=place.folder)
                    except FileExistsError:
                        # Another program was faster.
                        status = place.status()
                        if status is None or not stat.S_ISDIR(status.st_mode):
                            raise Refused(disk.not_folder(item.source_field, item.source)) from None
                        item.existed = True
                    disk.sync(place.folder)
                item.done = True
            except Refused as error:
                item.error = str(error)
            except OSError as error:
                item.error = disk.describe_error(item.source, error)
        try:
            with self._database.transaction() as db:
                for each in ready:
                    # After a failure, too: directories above it may have been made.
                    self._followed(db, each.item)
                    following.remove_intent(db, each.intent, done=each.item.done)
        except LinckiaError:
            for each in ready:
                self._defer(each.intent)

    def _followed(self, db: apsw.Connection, item: Item) -> None:
        item.done = item.error is None
        # Directories above it may be new, too, even after a failure.
        changed = following.highest_new(db, item.target or item.source)
        if self._follow.seen(db, changed):
            item.scan.append(changed)
