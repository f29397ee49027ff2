"""The files of a data directory: sources and derived data, for backups and repairs.

Manifests declare services' files, and the kernel declares its own. A backup includes undeclared files, so that a
forgotten one is not lost; a test finds such files.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from proto.manifest import Keep

LOGS: Final = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps next to a database."""

MAX_DEPTH: Final = 100
MAX_PATH_BYTES: Final = 2048
"""Limits for backed-up paths; a restored path must fit below any data directory."""


class StoredFile(NamedTuple):
    """A file, link or folder, by its path in the data directory; `keep` is None if it is not declared.

    `folder` is an open descriptor of the containing folder, valid until the walk continues.
    """

    path: str
    keep: Keep | None
    status: os.stat_result
    folder: int

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


Refuse = Callable[[str, str], None]
"""Called with a path that cannot be backed up, and the reason."""


class Stores:
    """Declarations: patterns for paths in the data directory. The first match applies."""

    def __init__(self, patterns: Sequence[tuple[str, Keep]]) -> None:
        self._patterns = tuple(patterns)
        self.keep_of = functools.lru_cache(4096)(self._keep_of)
        """Return the declaration of a path, or of a folder that contains it; None if there is no declaration."""

    def _keep_of(self, path: str) -> Keep | None:
        of = next((path[: -len(end)] for end in LOGS if path.endswith(f".db{end}")), path)
        above = [str(folder) for folder in reversed(PurePath(of).parents)]
        matches = (
            keep for each in (*above, of) for pattern, keep in self._patterns if fnmatch.fnmatchcase(each, pattern)
        )
        return next(matches, None)

    def walk(self, data_dir: Path, refuse: Refuse = lambda path, why: None) -> Iterator[StoredFile]:
        """Yield everything, except the contents of folders that a backup treats as a unit and that are not SOURCE.

        Links are never followed, even if one replaces a folder meanwhile.
        """
        with opened_folder(data_dir) as folder:
            yield from self._walk(folder, "", refuse)

    def _walk(self, folder: int, below: str, refuse: Refuse) -> Iterator[StoredFile]:
        for path, status in entries(folder, below, refuse):
            keep = self.keep_of(path)
            yield (found := StoredFile(path, keep, status, folder))
            if found.is_dir and keep in (None, Keep.SOURCE):
                try:
                    with opened_folder(found.name, folder) as inner:
                        yield from self._walk(inner, path, refuse)
                except OSError as error:
                    if error.errno != errno.ENOENT:
                        refuse(path, f"cannot be opened: {error.strerror}")


def entries(folder: int, below: str, refuse: Refuse) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the paths of entries in an open folder, whose own path is `below`, by name."""
    for name in sorted(os.listdir(folder)):
        path = os.path.join(below, name)
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if why := _unnameable(path):
                refuse(path, why)
            else:
                yield path, status


def _unnameable(path: str) -> str:
    if path.count("/") >= MAX_DEPTH or len(os.fsencode(path)) > MAX_PATH_BYTES:
        return f"is nested too deeply: more than {MAX_DEPTH} folders or {MAX_PATH_BYTES} bytes"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    return ""


@contextlib.contextmanager
def opened_folder(path: Path | str, folder: int | None = None) -> Iterator[int]:
    """Open a folder, which must not be a link unless it is the first one. Raises OSError."""
    nofollow = 0 if folder is None else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | nofollow, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def foreign(status: os.stat_result, owner: int, names: int = 1) -> str:
    """Return why a file in a service's folder may hold data that is not the service's; "" if it cannot.

    A compromised service can put links there to files that it may not read, but cannot change their owner.

    Args:
        owner: the user to whom the folder belongs.
        names: the number of hard links that it should have.
    """
    if not stat.S_ISREG(status.st_mode):
        return "is a link" if stat.S_ISLNK(status.st_mode) else "is not a regular file"
    if status.st_nlink != names:
        return "has other names (hard links)"
    return "" if status.st_uid == owner else f"belongs to user {status.st_uid}, not to {owner} like its folder"


def shown(path: str) -> str:
    """Return a printable form of a path, which may contain control characters or bytes that are not UTF-8."""
    return path if path.isprintable() else repr(path)[1:-1]
