"""Reads the disk: directory listings and their fingerprints, single entries, and mounted file systems.

Directories are read through a descriptor, without following links. Two listings with the same fingerprint contain the
same names with the same inodes, sizes, blocks and change times (`ctime`, which no program can set): nothing in the
directory itself was created, removed, renamed or written in between.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import operator
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.files import paths
from services.files.store import schema
from services.runtime.roots import Roots
from services.shared.ignore_files import Patterns

MAX_INT = 2**63 - 1

# Iterating over a directory in C takes half the time of a Python loop.
_STATUS = operator.methodcaller("stat", follow_symlinks=False)
_NAME = operator.attrgetter("name")
_CHANGING = operator.attrgetter("st_ino", "st_size", "st_blocks", "st_ctime_ns")

_KINDS = {stat.S_IFREG: schema.FILE, stat.S_IFDIR: schema.DIRECTORY, stat.S_IFLNK: schema.SYMLINK}

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

LeftOut = Callable[[str, bool], bool]
"""Tells whether an entry of a folder is left out, given its name and whether it is a folder."""


class Ignored:
    """Decides which entries are not indexed: matches of the ignore patterns, and paths hidden from the service."""

    def __init__(self, patterns: Sequence[str], roots: Roots) -> None:
        """Patterns are relative to the root above an entry. Raises ValueError if one is invalid."""
        self._patterns = Patterns(patterns) if patterns else None
        self._roots = roots
        self._tops = [paths.as_folder(paths.to_text(root)) for root in roots]

    def hides(self, path: str) -> bool:
        """True if a clean path is hidden from the service, whatever the patterns."""
        return self._roots.hides(paths.to_os(path))

    def within(self, folder: str) -> LeftOut | None:
        """Return the rule for a folder, by its path with slash; None if nothing in it is left out."""
        patterns, hidden = self._patterns, self._roots.hidden_in(paths.to_os(folder))
        if patterns is None and hidden is None:
            return None
        top = next((top for top in self._tops if folder.startswith(top)), folder)
        below = folder[len(top) :]

        def left_out(name: str, is_folder: bool) -> bool:
            if hidden is not None and hidden(paths.to_os(name)):
                return True
            return patterns is not None and patterns.verdict(below, name + "/" * is_folder) is True

        return left_out

    def __call__(self, folder: str, name: str, is_folder: bool) -> bool:
        left_out = self.within(folder)
        return left_out is not None and left_out(name, is_folder)


class DiskEntry(NamedTuple):
    """An entry as it is on disk."""

    name: str
    kind: int
    inode: int
    device: int
    links: int
    size: int
    disk: int
    mtime: int
    ctime: int

    @classmethod
    def of(cls, name: str, status: os.stat_result) -> DiskEntry:
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), schema.OTHER)
        mtime, ctime = status.st_mtime_ns, status.st_ctime_ns
        # Some file systems use inodes up to 2**64 and times past the year 2262; SQLite's integers end at 2**63.
        if abs(mtime) > MAX_INT or abs(ctime) > MAX_INT:
            mtime, ctime = (max(-MAX_INT, min(MAX_INT, time)) for time in (mtime, ctime))
        return cls(
            name, kind, status.st_ino & MAX_INT, status.st_dev & MAX_INT, status.st_nlink,
            status.st_size if kind != schema.DIRECTORY else 0, status.st_blocks * 512, mtime, ctime,
        )  # fmt: skip


@dataclass
class Listing:
    """The content of a directory, and the names of entries that could not be examined."""

    names: list[str]
    statuses: list[os.stat_result]
    fingerprint: bytes
    unknown: list[str]

    def found(self) -> list[DiskEntry]:
        """Return the entries."""
        return list(map(DiskEntry.of, self.names, self.statuses))

    @functools.cached_property
    def totals(self) -> tuple[int, int, int]:
        """The number of files, the total size of everything but subdirectories, and the number of subdirectories."""
        files = size = folders = 0
        for status in self.statuses:
            kind = status.st_mode & 0o170000
            if kind == 0o040000:
                folders += 1
                continue
            files += kind == 0o100000
            size += status.st_size
        return files, size, folders

    def folders(self) -> list[str]:
        """Return the names of the subdirectories."""
        return [name for name, status in zip(self.names, self.statuses, strict=True) if _is_folder(status.st_mode)]


NOTHING = Listing([], [], b"nothing", [])
"""Listing used for file systems that hold no files."""


def _is_folder(mode: int) -> bool:
    return mode & 0o170000 == 0o040000


def open_folder(name: str, above: int | None) -> int:
    """Open a directory by its name in an open directory, or by its path, without following links. Raises OSError."""
    return os.open(paths.to_os(name), _OPEN, dir_fd=above)


def is_at(descriptor: int, path: str) -> bool:
    """True if an open directory is the one at this clean path, with no links involved. Raises OSError."""
    try:
        real = os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        # The system has no /proc. This checks only the present moment, not the moment of opening.
        real = os.path.realpath(paths.to_os(path))
    return real == paths.to_os(path)


def read_folder(descriptor: int, path: str, ignored: Ignored | None) -> Listing:
    """List an open directory; `path` (with slash) is only used for the rules. Raises OSError."""
    with os.scandir(descriptor) as scan:
        entries = list(scan)
    unknown: list[str] = []
    try:
        statuses = list(map(_STATUS, entries))
    except OSError:
        entries, statuses, unknown = _one_by_one(entries)
    names = list(map(_NAME, entries))
    if not all(map(str.isascii, names)):
        names = list(map(paths.to_text, names))
    if ignored is not None and (left_out := ignored.within(path)) is not None:
        kept = [
            (name, status)
            for name, status in zip(names, statuses, strict=True)
            if not left_out(name, _is_folder(status.st_mode))
        ]
        names, statuses = [name for name, _ in kept], [status for _, status in kept]
    return Listing(names, statuses, _fingerprint(names, statuses), unknown)


def _one_by_one(entries: Iterable[os.DirEntry[str]]) -> tuple[list[os.DirEntry[str]], list[os.stat_result], list[str]]:
    """Stat entries one by one. Entries that vanish between listing and stat are dropped; those that cannot be examined
    are returned separately."""
    kept, statuses, unknown = [], [], []
    for entry in entries:
        try:
            statuses.append(entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            continue
        except OSError:
            unknown.append(paths.to_text(entry.name))
            continue
        kept.append(entry)
    return kept, statuses, unknown


def _fingerprint(names: list[str], statuses: list[os.stat_result]) -> bytes:
    # The hash of numbers and tuples, unlike that of strings, is the same in every process.
    numbers = hash(tuple(map(_CHANGING, statuses))).to_bytes(8, "little", signed=True)
    return hashlib.blake2b("\0".join(names).encode() + numbers, digest_size=16).digest()


def look(path: str) -> DiskEntry | None:
    """Return the entry at a clean path without following a link at its end; None if it does not exist. Raises
    OSError."""
    try:
        status = os.lstat(paths.to_os(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise
    return DiskEntry.of(paths.split(path)[1], status)


def ignore_rules(patterns: Sequence[str], roots: Roots) -> Ignored | None:
    """Return the ignore rules, or None if nothing is ignored. Raises ValueError if a pattern is invalid."""
    return Ignored(patterns, roots) if patterns or roots.hides_some else None


# Mounted file systems


class Mount(NamedTuple):
    """A mounted file system."""

    path: str
    kind: str
    device: int
    source: str


_WITHOUT_FILES = frozenset(
    {
        "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "efivarfs", "fusectl",
        "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
    }
)  # fmt: skip


def mounts() -> list[Mount]:
    """Return all mounts that this process sees in `/proc/self/mountinfo`; empty if there is no such file."""
    found = []
    with (
        contextlib.suppress(FileNotFoundError),
        open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines,
    ):
        for line in lines:
            before, _, after = line.partition(" - ")
            fields, (kind, source, *_) = before.split(" "), after.split(" ")
            major, _, minor = fields[2].partition(":")
            found.append(Mount(_unescaped(fields[4]), kind, os.makedev(int(major), int(minor)), _unescaped(source)))
    return found


def holds_files(mount: Mount) -> bool:
    """True if the file system's type holds files."""
    return mount.kind not in _WITHOUT_FILES


def without_files(root: str) -> frozenset[int]:
    """Return the devices of file systems below a clean path that hold no files, and report meaningless sizes."""
    return frozenset(mount.device for mount in mounts() if not holds_files(mount) and paths.overlap(mount.path, root))


def _unescaped(field: str) -> str:
    # Whitespace and backslashes are written as octal escapes.
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return paths.to_text(field)
