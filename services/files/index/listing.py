"""What is on the disk: a directory's entries, read through its descriptor with no link followed, and their fingerprint;
single entries; and the file systems that are mounted.

Two listings with the same fingerprint found the same names with the same inodes, sizes, blocks and change times
(`ctime`, which no program can set): nothing in the directory itself was made, removed, renamed or written meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from linckia.services.files import paths
from linckia.services.files.store import schema
from linckia.services.runtime.ignore_files import Patterns
from linckia.services.runtime.roots import Roots

MAX_INT = 2**63 - 1

# Looping in C over a directory is half the time of a loop in Python.
_STATUS = operator.methodcaller("stat", follow_symlinks=False)
_NAME = operator.attrgetter("name")
_CHANGING = operator.attrgetter("st_ino", "st_size", "st_blocks", "st_ctime_ns")

_KINDS = {stat.S_IFREG: schema.FILE, stat.S_IFDIR: schema.DIRECTORY, stat.S_IFLNK: schema.SYMLINK}

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

LeftOut = Callable[[str, bool], bool]
"""Whether an entry of a folder is left out: of its name, and whether it is a folder."""


class Ignored:
    """What is left out of the index: what patterns name, and what is hidden from the service."""

    def __init__(self, patterns: Sequence[str], roots: Roots) -> None:
        """The patterns are relative to the root that an entry lies below. Raises ValueError where one cannot be
        understood."""
        self._patterns = Patterns(patterns) if patterns else None
        self._roots = roots
        self._tops = [paths.as_folder(paths.to_text(root)) for root in roots]

    def hides(self, path: str) -> bool:
        """Whether a clean path is hidden from the service, whatever the patterns."""
        return self._roots.hides(paths.to_os(path))

    def within(self, folder: str) -> LeftOut | None:
        """The rule for a folder, by its path with slash; None where nothing in it is left out."""
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


class Found(NamedTuple):
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
    def of(cls, name: str, status: os.stat_result) -> Found:
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), schema.OTHER)
        mtime, ctime = status.st_mtime_ns, status.st_ctime_ns
        # Some file systems count inodes to 2**64 and times past the year 2262; SQLite's integers end at 2**63.
        if abs(mtime) > MAX_INT or abs(ctime) > MAX_INT:
            mtime, ctime = (max(-MAX_INT, min(MAX_INT, time)) for time in (mtime, ctime))
        return cls(
            name, kind, status.st_ino & MAX_INT, status.st_dev & MAX_INT, status.st_nlink,
            status.st_size if kind != schema.DIRECTORY else 0, status.st_blocks * 512, mtime, ctime,
        )  # fmt: skip


@dataclass
class Listing:
    """All that is in a directory, and the names of what could not be examined."""

    names: list[str]
    statuses: list[os.stat_result]
    fingerprint: bytes
    unknown: list[str]

    def found(self) -> list[Found]:
        """The entries."""
        return list(map(Found.of, self.names, self.statuses))

    @functools.cached_property
    def totals(self) -> tuple[int, int, int]:
        """How many files there are, how many bytes they and all but the subdirectories have, how many of those."""
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
        """The names of the subdirectories."""
        return [name for name, status in zip(self.names, self.statuses, strict=True) if _is_folder(status.st_mode)]


NOTHING = Listing([], [], b"nothing", [])
"""Of a file system that holds no files."""


def _is_folder(mode: int) -> bool:
    return mode & 0o170000 == 0o040000


def open_folder(name: str, above: int | None) -> int:
    """A descriptor of a directory, by its name in an open one or by its path; no link is followed. Raises OSError."""
    return os.open(paths.to_os(name), _OPEN, dir_fd=above)


def is_at(descriptor: int, path: str) -> bool:
    """Whether an open directory is the one of this clean path, to which no link led. Raises OSError."""
    try:
        real = os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        # A system without such a folder; of the two moments the first has passed.
        real = os.path.realpath(paths.to_os(path))
    return real == paths.to_os(path)


def read_folder(descriptor: int, path: str, ignored: Ignored | None) -> Listing:
    """List an open directory; `path` (with slash) is for the rules alone. Raises OSError."""
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
    """What is gone between listing and stat is not there; what cannot be examined is neither there nor gone."""
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
    # The hash of numbers and tuples, unlike that of text, is the same in every process.
    numbers = hash(tuple(map(_CHANGING, statuses))).to_bytes(8, "little", signed=True)
    return hashlib.blake2b("\0".join(names).encode() + numbers, digest_size=16).digest()


def look(path: str) -> Found | None:
    """The entry at a clean path, no link followed at its end; None where there is none. Raises OSError."""
    try:
        status = os.lstat(paths.to_os(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Found.of(paths.split(path)[1], status)


def ignore_rules(patterns: Sequence[str], roots: Roots) -> Ignored | None:
    """None where nothing is ignored. Raises ValueError where a pattern cannot be understood."""
    return Ignored(patterns, roots) if patterns or roots.hides_some else None


# The file systems that are mounted


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
    """All that this process sees, as `/proc/self/mountinfo` has them; none where there is no such file."""
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
    """Whether it is of a kind that holds files."""
    return mount.kind not in _WITHOUT_FILES


def without_files(root: str) -> frozenset[int]:
    """The devices of file systems below a clean path that hold no files; they answer sizes that mean nothing."""
    return frozenset(mount.device for mount in mounts() if not holds_files(mount) and paths.overlap(mount.path, root))


def _unescaped(field: str) -> str:
    # Blanks are written as octal numbers.
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return paths.to_text(field)
