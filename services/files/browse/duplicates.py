"""Files with the same content: candidates by size from the index, then by both ends, then by a hash of all.

Names of one inode are one file. A file that changed since it was scanned, or cannot be read, is left out and counted.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from services.files.changes.disk import Refused, opened
from services.files.paths import Roots

END_BYTES = 16_384
"""Of each end, for the first comparison."""

CHUNK = 1 << 20


class File(NamedTuple):
    """A candidate, as it is in the index."""

    path: str
    size: int
    inode: int
    device: int


class Search:
    """One search; blocks."""

    def __init__(self, roots: Roots, go_on: Callable[[int], None]) -> None:
        """`go_on` is told how many files were read so far, and may raise to stop."""
        self._roots = roots
        self._go_on = go_on
        self.compared = 0
        self.unreadable = 0

    def groups(self, same_size: Iterable[list[File]]) -> list[list[File]]:
        """Those equal in content, the groups that waste most first, each in the order of its paths."""
        found = []
        for files in same_size:
            size = files[0].size
            for ends in self._split(files, END_BYTES):
                # What is not longer than both ends has been read whole.
                found += [ends] if size <= 2 * END_BYTES else self._split(ends, None)
        found = [sorted(group) for group in found]
        return sorted(found, key=lambda group: (-group[0].size * (len(group) - 1), group[0].path))

    def _split(self, files: list[File], ends: int | None) -> list[list[File]]:
        alike: dict[bytes, list[File]] = defaultdict(list)
        for file in files:
            if ends is not None:
                self.compared += 1
            self._go_on(self.compared)
            digest = self._digest(file, ends)
            if digest is not None:
                alike[digest].append(file)
        return [group for group in alike.values() if len(group) > 1]

    def _digest(self, file: File, ends: int | None) -> bytes | None:
        try:
            with opened(self._roots, file.path, "path") as place:
                descriptor = os.open(
                    place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place.folder
                )
            try:
                status = os.fstat(descriptor)
                digest = self._of(descriptor, file.size, ends)
                after = os.fstat(descriptor)
            finally:
                os.close(descriptor)
        except (Refused, OSError):
            self.unreadable += 1
            return None
        same = (status.st_size, status.st_ino, status.st_mtime_ns) == (file.size, file.inode, after.st_mtime_ns)
        if not same:
            self.unreadable += 1
        return digest if same else None

    def _of(self, descriptor: int, size: int, ends: int | None) -> bytes:
        hashed = hashlib.blake2b(digest_size=32)
        if ends is not None and size > 2 * ends:
            hashed.update(os.pread(descriptor, ends, 0))
            hashed.update(os.pread(descriptor, ends, size - ends))
            return hashed.digest()
        while chunk := os.read(descriptor, CHUNK):
            hashed.update(chunk)
            self._go_on(self.compared)
        return hashed.digest()
