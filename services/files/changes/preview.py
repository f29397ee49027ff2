"""What changes would do, told without doing any: each item sees the disk as those before it would have left it."""

from __future__ import annotations

import os
import stat

from services.files import paths
from services.files.changes import disk
from services.files.changes.changes import Changes, Item, check_not_inside, exists
from services.files.changes.disk import Refused, placed
from services.files.paths import Roots


class Preview:
    """The disk as the items so far would have left it; blocks."""

    def __init__(self, changes: Changes, roots: Roots) -> None:
        self._changes = changes
        self._roots = roots
        self._moves: list[tuple[str, str | None]] = []

    def run(self, item: Item) -> None:
        """Note in the item what would become of it."""
        try:
            self._run(item)
        except Refused as error:
            item.error = str(error)
        except OSError as error:
            item.error = disk.said(item.source, error)
        else:
            item.done = True

    def _run(self, item: Item) -> None:
        source: str | None = None
        if item.kind != "restore":
            source = placed(self._roots, item.source, item.source_field)
            self._changes.check(source, item.source_field)
            status = self._status(source)
            if status is None:
                raise Refused(f"`{item.source_field}`: {paths.shown(source)} does not exist")
            self._check_writable(source)
            if item.kind != "move":
                if stat.S_ISDIR(status.st_mode) and not item.force and self._holds_something(source):
                    raise Refused(f"`path`: {paths.shown(source)} is a directory that is not empty; `force` deletes it")
                self._moves.append((source, None))
                return
        target = placed(self._roots, item.target, item.target_field)
        self._changes.check(target, item.target_field)
        if source is not None:
            check_not_inside(source, target, item.target_field)
        above = paths.split(target)[0].rstrip("/") or "/"
        while item.make and self._status(above) is None:
            above = paths.split(above)[0].rstrip("/") or "/"
        folder = self._status(above)
        if folder is None:
            raise Refused(f"`{item.target_field}`: there is no directory {paths.shown(above)}")
        if not stat.S_ISDIR(folder.st_mode):
            raise Refused(f"`{item.target_field}`: {paths.shown(above)} is not a directory")
        if self._status(target) is not None:
            raise Refused(exists(item.target_field, target))
        self._check_writable(target)
        self._moves.append((source or "", target))

    def _origin(self, path: str) -> str | None:
        """Where on the disk that is now which would be at a path; None where nothing would be."""
        for source, target in reversed(self._moves):
            if target is not None and paths.is_within(path, (target,)):
                if not source:
                    return None
                path = source + path[len(target) :]
            elif source and paths.is_within(path, (source,)):
                return None
        return path

    def _status(self, path: str) -> os.stat_result | None:
        if any(target == path and not source for source, target in self._moves):
            # Of the trash; enough is known of it to stand in the way.
            return os.lstat("/")
        origin = self._origin(path)
        if origin is None:
            return None
        try:
            return os.lstat(paths.to_os(origin))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _holds_something(self, path: str) -> bool:
        origin = self._origin(path)
        names = os.listdir(paths.to_os(origin)) if origin is not None else []
        inside = [f"{path}/{paths.to_text(name)}" for name in names]
        inside += [target for _, target in self._moves if target is not None and paths.split(target)[0] == f"{path}/"]
        return any(self._status(each) is not None for each in inside)

    def _check_writable(self, path: str) -> None:
        above = self._origin(paths.split(path)[0].rstrip("/") or "/")
        if above is not None and os.path.isdir(paths.to_os(above)) and not os.access(paths.to_os(above), os.W_OK):
            raise Refused(f"{paths.shown(above)} may not be written to")
