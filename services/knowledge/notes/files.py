"""Notes on disk: their places, the stamps of their versions, and how they are read."""

from __future__ import annotations

import codecs
import hashlib
import os
import time
from dataclasses import dataclass
from typing import NamedTuple

from linckia.proto.errors import InvalidParams
from linckia.services.knowledge.notes.spelling import as_on_disk
from linckia.services.runtime import rewrite
from linckia.services.runtime.roots import OutsideRoots, Roots

TooLarge = rewrite.TooLarge
_MAX_INT = 2**63 - 1
RACY_NS = 20_000_000
"""Time stamps tick with the kernel's timer (1 to 10 ms): so shortly after a change, another may go unseen."""


class Stamp(NamedTuple):
    """Tells two versions of a file apart without reading them."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        # Some file systems count inodes to 2**64 and times past the year 2262; SQLite's integers end at 2**63.
        mtime_ns, ctime_ns = (max(-_MAX_INT, min(_MAX_INT, t)) for t in (status.st_mtime_ns, status.st_ctime_ns))
        return cls(status.st_size, mtime_ns, ctime_ns, status.st_ino & _MAX_INT)


class Place(NamedTuple):
    """A note's file: a root and the path below it with `/` between its parts."""

    root: str
    path: str

    @property
    def absolute(self) -> str:
        return os.path.join(self.root, self.path)


@dataclass(frozen=True, slots=True)
class Content:
    """A file's bytes, and its stamp from before they were read.

    `settled` is False where a further write might not show in the stamp, or happened while the file was read.
    """

    data: bytes
    stamp: Stamp
    settled: bool

    @property
    def text(self) -> str:
        """The text exactly, byte order mark and line breaks included; bytes that are no text become U+FFFD."""
        return decode(self.data)


def read(path: str, roots: Roots, now_ns: int | None = None) -> Content:
    """Read a regular file below `roots`, never blocking on a pipe; `now_ns` is the wall clock if not the system's.

    Raises OSError, TooLarge, and OutsideRoots where a link leads out of the roots, it is denied, or no regular file.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    descriptor, status = roots.open(path)
    with open(descriptor, "rb") as file:
        data = rewrite.bounded(file, status.st_size, rewrite.MAX_BYTES)
        stamp = Stamp.of(status)
        settled = stamp == Stamp.of(os.fstat(descriptor)) and now_ns - stamp.ctime_ns > RACY_NS
        return Content(data, stamp, settled)


def locate(path: str, roots: Roots, field: str) -> str:
    """The absolute path that a client means by a note's path: itself, or below the first root that has such a file, or
    else that may be written; as it is spelled on disk. Blocks on the disk.

    Raises InvalidParams: it cannot be a note's path.
    """
    if "\0" in path or not path.lower().endswith(".md"):
        raise InvalidParams(f"parameter `{field}`: {path[:200]!r} is not a Markdown file (.md)", field=field)
    if os.path.isabs(path):
        return as_on_disk(path, roots.reachable)
    candidates = [as_on_disk(os.path.join(root, path), roots.reachable) for root in roots.reachable]
    writable = [os.path.join(root, path) for root in roots.reachable if root not in roots.read_only]
    found = next((each for each in candidates if os.path.lexists(each)), (*writable, *candidates, path)[0])
    return as_on_disk(found, roots.reachable)


def text_if_readable(place: Place, roots: Roots) -> str | None:
    """The text of a file, for answers that can do without it. Blocks on the disk."""
    try:
        return read(place.absolute, roots).text
    except (OSError, OutsideRoots, TooLarge):
        return None


def decode(data: bytes) -> str:
    """UTF-8, or UTF-16 where a byte order mark says so; other bytes are replaced by U+FFFD, never refused."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8", "replace")


def digest(text: str) -> str:
    """Hash of the trimmed text: another hash is another content."""
    return hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).hexdigest()


def why(error: Exception) -> str:
    """Of an OSError the system's words, without the path on this machine."""
    return os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
