"""Directories that were changed by something other than a scan, and when: what a scan read before that is out of date.

File operations and live events add a directory once their change is in the index. Times are marks that only rise.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from services.files import paths

MAX_FOLDERS = 100_000
"""Kept; the oldest go first, long after the scans that they matter to have written what they read."""


class Invalidations:
    """For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders: OrderedDict[str, int] = OrderedDict()
        self._mark = 0

    @property
    def mark(self) -> int:
        """Now."""
        return self._mark

    def add(self, *folders: str) -> None:
        """These directories (paths with slash) have changed since they were last read."""
        with self._lock:
            self._mark += 1
            for folder in folders:
                self._folders[folder] = self._mark
                self._folders.move_to_end(folder)
            while len(self._folders) > MAX_FOLDERS:
                self._folders.popitem(last=False)

    def has(self, folder: str, mark: int) -> bool:
        """Whether a directory changed after `mark`."""
        return self._folders.get(folder, 0) > mark

    def since(self, mark: int, root: str) -> list[str]:
        """The directories at or below a clean path that changed after `mark`, as clean paths."""
        with self._lock:
            found = [folder for folder, at in self._folders.items() if at > mark]
        return [clean for folder in found if paths.is_within(clean := folder.rstrip("/") or "/", (root,))]
