"""Files to back up, and reading their content."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_HOLES_BYTES = 16 * 1024**3
"""Limit per file: reading holes takes time though no space, and a file can have any number of them."""


class Unreadable(Exception):
    """A piece cannot be copied; the message completes "NAME ..."."""


class Piece(NamedTuple):
    """A file of the moment: `size` bytes from the start of `source`. Folders and links have no source."""

    path: str
    status: os.stat_result
    size: int = 0
    source: int | Path | None = None
    target: str = ""
    """The target of a link."""

    def blocks(self, size: int) -> Iterator[bytes]:
        """Yield the content in blocks of `size` bytes. Raises Unreadable."""
        if self.source is None:
            return
        try:
            own = os.dup(self.source) if isinstance(self.source, int) else opened(self.source)
            try:
                yield from self._blocks(own, size)
            finally:
                os.close(own)
        except OSError as error:
            raise Unreadable(f"cannot be read: {error.strerror}") from error

    def _blocks(self, descriptor: int, size: int) -> Iterator[bytes]:
        if has_too_many_holes(descriptor):
            raise Unreadable(f"has more than {MAX_HOLES_BYTES >> 30} GiB of holes")
        for at in range(0, self.size, size):
            block = os.pread(descriptor, min(size, self.size - at), at)
            if len(block) < min(size, self.size - at):
                raise Unreadable("became shorter while it was being copied")
            yield block


def opened(path: Path | str, folder: int | None = None) -> int:
    """Open a file for reading, without following a link or waiting for a FIFO. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)


def has_too_many_holes(descriptor: int) -> bool:
    """True if a file has more holes than are read. Raises OSError."""
    status = os.fstat(descriptor)
    holes, at = 0, 0
    if status.st_size - status.st_blocks * 512 <= MAX_HOLES_BYTES:
        return False
    # Compressed files have few blocks but no holes.
    while at < status.st_size and holes <= MAX_HOLES_BYTES:
        hole = os.lseek(descriptor, at, os.SEEK_HOLE)
        try:
            at = os.lseek(descriptor, hole, os.SEEK_DATA)
        except OSError:
            at = status.st_size
        holes += at - hole
    return holes > MAX_HOLES_BYTES
