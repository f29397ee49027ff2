"""Notes on disk: which files below the roots are notes, and how one is read.

`Walker.walk` finds every `.md` file below the roots and states of each what tells one version from the next.  It
follows no symbolic link (what a link points to below a root is found there by itself), prunes hidden folders and
those of package installers, and honours `.gitignore`, `.ignore` and `.linckiaignore` with git's rules.  What cannot
be read is reported and skipped, and told from what is gone: an unreadable folder never looks like a deleted one.

`read` opens a file without following a link out of the roots, never blocks on a pipe, and decodes it.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".ignore", ".linckiaignore")
"""In rising order of precedence."""

SKIPPED_FOLDERS = frozenset({"node_modules", "bower_components", "__pycache__", "site-packages", "lost+found"})

MAX_READ_BYTES = 64 * 1024 * 1024
"""A larger file is not a note that anyone reads as one text."""

_MAX_INT = 2**63 - 1

RACY_NS = 20_000_000
"""Time stamps tick with the kernel's timer (1 to 10 ms): so shortly after a change, another may go unseen."""


class Stamp(NamedTuple):
    """What differs between two versions of a file without reading it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        mtime_ns, ctime_ns = status.st_mtime_ns, status.st_ctime_ns
        # Some file systems count inodes to 2**64 and times past the year 2262; SQLite's integers end at 2**63.
        if abs(mtime_ns) > _MAX_INT or abs(ctime_ns) > _MAX_INT:
            mtime_ns, ctime_ns = (max(-_MAX_INT, min(_MAX_INT, t)) for t in (mtime_ns, ctime_ns))
        return cls(status.st_size, mtime_ns, ctime_ns, status.st_ino & _MAX_INT)

    def is_settled(self, now_ns: int) -> bool:
        """Whether a later write is sure to show in the stamp; `now_ns` is the wall clock before the file was read."""
        return now_ns - self.ctime_ns > RACY_NS


class Place(NamedTuple):
    """A note's file: a root and the path below it with `/` between its parts."""

    root: str
    path: str

    @property
    def absolute(self) -> str:
        return os.path.join(self.root, self.path)


@dataclass(slots=True)
class Walk:
    """What one walk found.

    `unreadable` are folders and files (absolute) that are neither there nor gone; `problems` says in words what was
    left out.
    """

    notes: dict[Place, Stamp] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)

    def is_hidden_from_view(self, place: Place) -> bool:
        """Whether the walk could not have seen this file even if it is there."""
        path = place.absolute
        return any(path == seat or path.startswith(seat.rstrip(os.sep) + os.sep) for seat in self.unreadable)


@dataclass(frozen=True, slots=True)
class _Rules:
    """The patterns of one folder's ignore files, with those of the folders above it."""

    above: _Rules | None
    prefix_length: int
    spec: GitIgnoreSpec

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Whether `path` (relative to the root) is ignored; the deepest rule that matches decides."""
        rules: _Rules | None = self
        while rules is not None:
            below = path[rules.prefix_length :] + ("/" if is_folder else "")
            verdict = rules.spec.check_file(below).include
            if verdict is not None:
                return verdict
            rules = rules.above
        return False


class Walker:
    """Walks the roots again and again, cheaply: what the ignore rules said is kept while their files stay the same."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self.roots = tuple(dict.fromkeys(str(root) for root in roots))
        self._root_set = frozenset(self.roots)
        self._verdicts: dict[str, tuple[_Rules, bool]] = {}
        self._rules: dict[str, tuple[_Identity, _Rules]] = {}

    def walk(self) -> Walk:
        """Every note below the roots; a root inside another belongs to itself alone."""
        found = Walk()
        seen_verdicts: dict[str, tuple[_Rules, bool]] = {}
        seen_rules: dict[str, tuple[_Identity, _Rules]] = {}
        for root in self.roots:
            pending: list[tuple[str, str, _Rules | None]] = [(root, "", None)]
            while pending:
                folder, prefix, rules = pending.pop()
                self._folder(root, folder, prefix, rules, found, pending, seen_verdicts, seen_rules)
        self._verdicts, self._rules = seen_verdicts, seen_rules
        return found

    def _folder(
        self,
        root: str,
        folder: str,
        prefix: str,
        above: _Rules | None,
        found: Walk,
        pending: list[tuple[str, str, _Rules | None]],
        seen_verdicts: dict[str, tuple[_Rules, bool]],
        seen_rules: dict[str, tuple[_Identity, _Rules]],
    ) -> None:
        try:
            with os.scandir(folder) as scan:
                entries = list(scan)
        except OSError as error:
            # A root that vanished may be a disk that is not mounted: its notes are out of sight, not deleted.
            if prefix and error.errno in (errno.ENOENT, errno.ENOTDIR):
                return
            found.unreadable.append(folder)
            found.problems[printable(folder)] = f"folder cannot be read: {error.strerror}"
            return
        names = {entry.name for entry in entries}
        if prefix and "pyvenv.cfg" in names:
            return
        rules = self._rules_of(folder, prefix, above, names, found, seen_rules)

        def ignored(path: str, is_folder: bool) -> bool:
            if rules is None:
                return False
            key = os.path.join(root, path)
            known = self._verdicts.get(key)
            verdict = known[1] if known is not None and known[0] is rules else rules.ignores(path, is_folder)
            seen_verdicts[key] = (rules, verdict)
            return verdict

        for entry in entries:
            name = entry.name
            if name.startswith("."):
                continue
            path = prefix + name
            try:
                if entry.is_dir(follow_symlinks=False):
                    if name not in SKIPPED_FOLDERS and entry.path not in self._root_set and not ignored(path, True):
                        pending.append((entry.path, path + "/", rules))
                elif name[-3:].lower() == ".md" and entry.is_file(follow_symlinks=False) and not ignored(path, False):
                    if not _is_text(path):
                        found.problems[printable(entry.path)] = "name is not valid UTF-8"
                        continue
                    found.notes[Place(root, path)] = Stamp.of(entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue
            except OSError as error:
                found.problems[printable(entry.path)] = f"cannot be examined: {error.strerror}"
                found.unreadable.append(entry.path)

    def _rules_of(
        self,
        folder: str,
        prefix: str,
        above: _Rules | None,
        names: Set[str],
        found: Walk,
        seen: dict[str, tuple[_Identity, _Rules]],
    ) -> _Rules | None:
        present = [os.path.join(folder, name) for name in IGNORE_FILES if name in names]
        if not present:
            return above
        identity = tuple((path, _stamp_or_error(path)) for path in present)
        known = self._rules.get(folder)
        if known is not None and known[0] == identity and known[1].above is above:
            seen[folder] = known
            return known[1]
        lines: list[str] = []
        for path in present:
            try:
                lines += (line.rstrip("\r") for line in read(path, self.roots, 0).text.split("\n"))
            except OSError as error:
                found.problems[printable(path)] = f"ignore file cannot be read: {error.strerror}"
            except (OutsideRoots, TooLarge) as error:
                found.problems[printable(path)] = f"ignore file is not used: {error}"
        rules = _Rules(above, len(prefix), GitIgnoreSpec.from_lines(_understood(lines)))
        seen[folder] = (identity, rules)
        return rules


_Identity: TypeAlias = tuple[tuple[str, Stamp | int | None], ...]


def _stamp_or_error(path: str) -> Stamp | int | None:
    try:
        return Stamp.of(os.stat(path))
    except OSError as error:
        return error.errno


def _understood(lines: Iterable[str]) -> list[str]:
    # Git passes over a pattern that it cannot understand, and keeps the rest.
    good = []
    for line in lines:
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError:
            continue
        good.append(line)
    return good


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(path: str) -> str:
    """A path that can be shown whatever its bytes are."""
    return os.fsencode(path).decode("utf-8", "replace")


class OutsideRoots(Exception):
    """The path leads out of the roots, or to something that is not a regular file."""


class TooLarge(Exception):
    """The file is larger than `MAX_READ_BYTES`."""


@dataclass(frozen=True, slots=True)
class Content:
    """A file's bytes, and its stamp from before they were read.

    `settled` is False where the file was written so shortly before that a further write might not show in its stamp, or
    while it was being read.
    """

    data: bytes
    stamp: Stamp
    settled: bool

    @property
    def text(self) -> str:
        """The text exactly, byte order mark and line breaks included; bytes that are no text become U+FFFD."""
        return decode(self.data)


def read(path: str, roots: Sequence[str], now_ns: int) -> Content:
    """Read a regular file below `roots` (real paths); `now_ns` is the wall clock, in nanoseconds.

    Raises:
        OSError: it is not there, or may not be read.
        OutsideRoots: a link led out of the roots, or it is no regular file.
        TooLarge: it has more than `MAX_READ_BYTES`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OutsideRoots(f"{printable(path)} is not a regular file")
        if not is_below(real_path_of(descriptor, path), roots):
            raise OutsideRoots(f"{printable(path)} leads out of the roots")
        if status.st_size > MAX_READ_BYTES:
            raise TooLarge(f"{status.st_size} bytes, more than the {MAX_READ_BYTES} that are read")
        data = file.read(MAX_READ_BYTES + 1)
        if len(data) > MAX_READ_BYTES:
            raise TooLarge(f"grew to more than {MAX_READ_BYTES} bytes while it was read")
        stamp = Stamp.of(status)
        after = Stamp.of(os.fstat(descriptor))
        return Content(data, stamp, stamp == after and stamp.is_settled(now_ns))


def real_path_of(descriptor: int, path: str) -> str:
    """Where an open file truly is; the kernel's own answer where `/proc` is there, so no rename can come between."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return os.path.realpath(path)


def is_below(real: str, roots: Sequence[str]) -> bool:
    """Whether a real path lies below one of `roots`."""
    return any(real.startswith(root.rstrip(os.sep) + os.sep) for root in roots)


def decode(data: bytes) -> str:
    """UTF-8, or UTF-16 where a byte order mark says so; what is neither is replaced by U+FFFD, never refused."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8", "replace")


def digest(text: str) -> str:
    """Hash of the trimmed text: what a change of content is told by."""
    return hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).hexdigest()
