"""What is to be looked at because somebody said that it changed, and when."""

from __future__ import annotations

import math
from collections.abc import Iterable

import trio

QUIET_S = 0.25
DEBOUNCE_S = 1.0
"""A file is looked at once nothing has changed for the one, or the other after the first change."""

MAX_FILES = 50_000
"""That are looked at one by one; with more, all are."""


class Touched:
    """Files and folders, each named once, until they are taken."""

    def __init__(self) -> None:
        self._files: dict[str, None] = {}
        self._folders: dict[str, None] = {}
        self._since = 0.0
        self._in_hand: dict[str, None] = {}
        self.at = math.inf
        """When it is time to look, on trio's clock."""
        self.taken = 0
        """How often all of it was taken."""

    @property
    def too_many(self) -> bool:
        """Whether a walk of everything is quicker."""
        return len(self._files) > MAX_FILES

    def add(self, files: Iterable[str], folders: Iterable[str] = (), *, wait: bool = True) -> None:
        """
        Args:
            wait: until those who write have come to rest.
        """
        now = trio.current_time()
        if not self._files and not self._folders:
            self._since = now
        self._files.update(dict.fromkeys(files))
        self._folders.update(dict.fromkeys(folders))
        if self._files or self._folders:
            self.at = min(self._since + DEBOUNCE_S, now + QUIET_S) if wait else now

    def take(self) -> tuple[list[str], list[str]]:
        """All files and folders; they are in hand until `done`."""
        files, folders = list(self._files), list(self._folders)
        self.taken += 1
        self._in_hand = self._files
        self._files, self._folders, self.at = {}, {}, math.inf
        return files, folders

    def done(self) -> None:
        """What was taken has been looked at."""
        self._in_hand = {}

    def is_in_hand(self, path: str) -> bool:
        """Whether this file was taken and has not been looked at yet."""
        return path in self._in_hand
