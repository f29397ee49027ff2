"""Records the changes of a chunk, so that they can be undone."""

from __future__ import annotations

import stat
from collections.abc import Sequence

from services.files import paths
from services.files.changes import disk
from services.files.changes.disk import OpenItem
from services.runtime import change_log
from services.runtime.change_log import Begun, Change
from services.runtime.rewrite import missing_folders


class Records:
    """The records of items that are changed together, in the log by one write."""

    def __init__(self, items: Sequence[OpenItem]) -> None:
        self._items = items
        self._of: list[OpenItem] = []
        """The item of each record."""
        self._begun: Begun | None = None

    def begin(self) -> None:
        """Record what is about to be done. Raises DiskFull."""
        changes: list[Change] = []
        made: set[str] = set()
        for each in self._items:
            # Several items may need the same folder above them.
            own = [change for change in _changes_of(each) if change.kind != "folder" or change.path not in made]
            made.update(change.path for change in own)
            changes += own
            self._of += [each] * len(own)
        self._begun = change_log.begin(changes)

    def end(self) -> None:
        """Note what was done, and what was not."""
        if self._begun is not None:
            done = [each.item.done or each.item.made for each in self._of]
            for is_done in (True, False):
                self._begun.end(is_done=is_done, only=[place for place, each in enumerate(done) if each is is_done])


def _changes_of(each: OpenItem) -> list[Change]:
    item, mode = each.item, stat.S_IMODE(each.status.st_mode)
    if item.kind == "folder":
        return [Change("folder", path) for path in missing_folders(paths.to_os(item.source))]
    if item.kind == "delete" and stat.S_ISDIR(each.status.st_mode) and disk.is_empty(each.source):
        return [Change("rmdir", item.source, mode=mode)]
    size = each.note.size if each.note is not None else 0
    return [Change(item.kind, item.source, item.target, mode=mode, size=size, trash_id=item.trash_id)]
