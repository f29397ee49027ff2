"""Notes on disk: their places, version stamps, and reading them."""

from __future__ import annotations

import codecs
import hashlib
import os
import time
from dataclasses import dataclass
from typing import NamedTuple

from proto.errors import InvalidParams
from services.knowledge.notes.spelling import as_on_disk
from services.runtime import rewrite
from services.runtime.roots import OutsideRoots, Roots

TooLarge = rewrite.TooLarge
_MAX_INT = 2**63 - 1
RACY_NS = 20_000_000
"""File times have the resolution of the kernel's timer (1 to 10 ms), so a second change within this time may go
unnoticed."""


class Stamp(NamedTuple):
    """Distinguishes versions of a file without reading it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        # Some file systems have inodes up to 2**64 and times after the year 2262; SQLite's integers end at 2**63.
        mtime_ns, ctime_ns = (max(-_MAX_INT, min(_MAX_INT, t)) for t in (status.st_mtime_ns, status.st_ctime_ns))
        return cls(status.st_size, mtime_ns, ctime_ns, status.st_ino & _MAX_INT)


class Place(NamedTuple):
    """A note's file: a root, and the path below it with `/` as separator."""

    root: str
    path: str

    @property
    def absolute(self) -> str:
        return os.path.join(self.root, self.path)


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file's bytes, and its stamp from before they were read.

    `settled` is False if the file changed while it was read, or a further write might not change the stamp.
    """

    data: bytes
    stamp: Stamp
    settled: bool

    @property
    def text(self) -> str:
        """The exact text with byte order mark and line breaks; invalid bytes become U+FFFD."""
        return decode(self.data)


def read(path: str, roots: Roots, now_ns: int | None = None) -> FileContent:
    """Read a regular file below `roots`, never blocking on a pipe.

    Args:
        now_ns: the current time; by default the system's.

    Raises OSError, TooLarge, and OutsideRoots if a link leads out of the roots, access is denied or it is not a regular
    file.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    descriptor, status = roots.open(path)
    with open(descriptor, "rb") as file:
        data = rewrite.bounded(file, status.st_size, rewrite.MAX_BYTES)
        stamp = Stamp.of(status)
        settled = stamp == Stamp.of(os.fstat(descriptor)) and now_ns - stamp.ctime_ns > RACY_NS
        return FileContent(data, stamp, settled)


def locate(path: str, roots: Roots, field: str) -> str:
    """Resolve a client's path of a note to an absolute path, in the spelling used on disk.

    Blocks on the disk. Raises InvalidParams: it cannot be the path of a note, or is a relative one that could be below
    several roots.
    """
    if "\0" in path or not path.lower().endswith(".md"):
        raise InvalidParams(f"parameter `{field}`: {path[:200]!r} is not a Markdown file (.md)", field=field)
    return as_on_disk(roots.absolute(path, field), roots.reachable)


def text_if_readable(place: Place, roots: Roots) -> str | None:
    """Return the text of a file, or None if it cannot be read.  Blocks on the disk."""
    try:
        return read(place.absolute, roots).text
    except (OSError, OutsideRoots, TooLarge):
        return None


def decode(data: bytes) -> str:
    """Decode UTF-8, or UTF-16 with a byte order mark; invalid bytes become U+FFFD."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8", "replace")


def digest(text: str) -> str:
    """Hash the trimmed text."""
    return hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).hexdigest()


def why(error: Exception) -> str:
    """Return an error's message; for an OSError the system's message, without the path on this machine."""
    return os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
