"""Files and folders to be looked at again, and when."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence

import trio

from proto.ops.watch import Change, ChangeKind, EntryKind
from services.knowledge.ingest.walking import MARKER
from services.runtime.ignore_files import IGNORE_FILES

QUIET_S = 0.25
DEBOUNCE_S = 1.0
"""A file is looked at once nothing has changed for the one, or the other after the first change."""

MAX_FILES = 50_000
"""To be looked at one by one; with more of them, a walk of everything is quicker."""


class Invalidations:
    """Files and folders, each named once, until they are taken."""

    def __init__(self) -> None:
        self._files: dict[str, None] = {}
        self._folders: dict[str, None] = {}
        self._since = 0.0
        self.at = math.inf
        """When it is time to look, on trio's clock."""

    @property
    def too_many(self) -> bool:
        """Whether a walk of everything is quicker."""
        return len(self._files) > MAX_FILES

    def add(self, files: Iterable[str], folders: Iterable[str] = (), *, wait: bool = True) -> None:
        """
        Args:
            wait: until the writers are done.
        """
        now = trio.current_time()
        if not self._files and not self._folders:
            self._since = now
        self._files.update(dict.fromkeys(files))
        self._folders.update(dict.fromkeys(folders))
        if self._files or self._folders:
            self.at = min(self._since + DEBOUNCE_S, now + QUIET_S) if wait else now

    def take(self) -> tuple[list[str], list[str]]:
        """All files and folders."""
        files, folders = list(self._files), list(self._folders)
        self._files, self._folders, self.at = {}, {}, math.inf
        return files, folders


def invalidated(changes: Sequence[Change]) -> tuple[list[str], list[str]]:
    """The files to look at, and the folders to look through, after `changes`."""
    files: list[str] = []
    folders: list[str] = []
    for change in changes:
        paths = [_path(change.path, change.raw_path)]
        if change.old_path is not None:
            paths.append(_path(change.old_path, change.raw_old_path))
        for path in paths:
            folder, name = os.path.split(path)
            if change.kind is EntryKind.FOLDER:
                # The content of a new one is reported as well, entry by entry.
                if change.change is not ChangeKind.CREATED:
                    folders.append(path)
            elif name == MARKER or name in IGNORE_FILES:
                folders.append(folder)
            else:
                files.append(path)
    return files, folders


def _path(text: str, raw: bytes | None) -> str:
    return text if raw is None else os.fsdecode(raw)
