"""Which folder each watch of the operating system is on, and which folders have none because there are no more.

The event loop reads from here while the worker thread writes: each step is one operation on a dict.
"""

from __future__ import annotations

import errno
import logging

from services.watch.inotify import Inotify

_log = logging.getLogger("linckia.watch")


class Watches:
    """The watches of this process.

    Args:
        limit: how many it may have at most; 0 leaves that to the operating system.
    """

    def __init__(self, inotify: Inotify, limit: int = 0) -> None:
        self._inotify = inotify
        self._limit = limit
        self._folders: dict[int, tuple[int, ...]] = {}
        self._watch_of: dict[int, int] = {}
        self.without: set[int] = set()
        """Folders that have none and are to be looked at now and then."""

    def __len__(self) -> int:
        return len(self._folders)

    def __contains__(self, folder: int) -> bool:
        return folder in self._watch_of

    def folders(self, watch: int) -> tuple[int, ...]:
        """The folders that an event is about: several where one is in several trees."""
        return self._folders.get(watch, ())

    def add(self, folder: int, descriptor: int) -> None:
        """Watch an open folder. To be called before it is looked into."""
        known = self._watch_of.get(folder)
        if known is None and self._limit and len(self._folders) >= self._limit:
            self.without.add(folder)
            return
        try:
            watch = self._inotify.add(descriptor)
        except OSError as error:
            # ENOSPC is the limit, ENOMEM the kernel's own; whatever it is, the folder is polled.
            if not self.without:
                _log.warning("no more folders can be watched (%s): the others are polled", error)
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EACCES, errno.ENOENT):
                raise
            self.without.add(folder)
            return
        if known is not None and known != watch:
            self._unlink(folder, known)
        self._watch_of[folder] = watch
        others = self._folders.get(watch, ())
        if folder not in others:
            self._folders[watch] = (*others, folder)
        self.without.discard(folder)

    def drop(self, folder: int) -> None:
        """Stop watching a folder."""
        self.without.discard(folder)
        watch = self._watch_of.pop(folder, None)
        if watch is not None and self._unlink(folder, watch):
            self._inotify.remove(watch)

    def ended(self, watch: int) -> tuple[int, ...]:
        """The operating system ended a watch; answers the folders that it was on."""
        folders = self._folders.pop(watch, ())
        for folder in folders:
            self._watch_of.pop(folder, None)
        return folders

    def _unlink(self, folder: int, watch: int) -> bool:
        """Take the folder off the watch; answers whether that was the last one."""
        left = tuple(other for other in self._folders.get(watch, ()) if other != folder)
        if left:
            self._folders[watch] = left
            return False
        return self._folders.pop(watch, None) is not None
