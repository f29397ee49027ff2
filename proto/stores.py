"""The files of a data directory: sources and derived data, for backups and repairs.

Manifests declare the files of services, the kernel its own.  A backup includes files that nothing names, so that a
forgotten one is not lost; a test names it.
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

from linckia.proto.manifest import Keep

LOGS: Final = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, by the ends of their names."""

MAX_DEPTH: Final = 100
MAX_PATH_BYTES: Final = 2048
"""Of what is backed up; a restored path must fit below any data directory."""


class Found(NamedTuple):
    """A file, link or folder, by its path in the data directory; `keep` is None where nothing names it.

    `folder` is an open descriptor of the folder it lies in, valid until the walk goes on.
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
"""Is called with the path of what cannot be read, and why."""


class Stores:
    """Declarations: patterns of paths in the data directory.  The first match counts."""

    def __init__(self, patterns: Sequence[tuple[str, Keep]]) -> None:
        self._patterns = tuple(patterns)
        self.keep_of = functools.lru_cache(4096)(self._keep_of)
        """The declaration of a path, or of a folder that contains it; None if nothing names it."""

    def _keep_of(self, path: str) -> Keep | None:
        of = next((path[: -len(end)] for end in LOGS if path.endswith(f".db{end}")), path)
        above = [str(folder) for folder in reversed(PurePath(of).parents)]
        matches = (
            keep for each in (*above, of) for pattern, keep in self._patterns if fnmatch.fnmatchcase(each, pattern)
        )
        return next(matches, None)

    def walk(self, data_dir: Path, refuse: Refuse = lambda path, why: None) -> Iterator[Found]:
        """Everything there is, except inside folders that are uniform to a backup and not SOURCE.

        No link is followed, even one that takes a folder's place meanwhile.
        """
        with opened_folder(data_dir) as folder:
            yield from self._walk(folder, "", refuse)

    def _walk(self, folder: int, below: str, refuse: Refuse) -> Iterator[Found]:
        for path, status in entries(folder, below, refuse):
            keep = self.keep_of(path)
            yield (found := Found(path, keep, status, folder))
            if found.is_dir and keep in (None, Keep.SOURCE):
                try:
                    with opened_folder(found.name, folder) as inner:
                        yield from self._walk(inner, path, refuse)
                except OSError as error:
                    if error.errno != errno.ENOENT:
                        refuse(path, f"cannot be opened: {error.strerror}")


def entries(folder: int, below: str, refuse: Refuse) -> Iterator[tuple[str, os.stat_result]]:
    """The paths of what is in an open folder, whose own is `below`, by name."""
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
        return f"lies too deep: more than {MAX_DEPTH} folders or {MAX_PATH_BYTES} bytes"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    return ""


@contextlib.contextmanager
def opened_folder(path: Path | str, folder: int | None = None) -> Iterator[int]:
    """A descriptor of a folder, which is no link unless it is the first.  Raises OSError."""
    nofollow = 0 if folder is None else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | nofollow, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def foreign(status: os.stat_result, owner: int, names: int = 1) -> str:
    """Why a file in a service's folder may hold what is not the service's; empty if it cannot.

    A service that was taken over can put links there to files that it may not read, but not change their owner.

    Args:
        owner: the user whose folder it is.
        names: hard links that it should have.
    """
    if not stat.S_ISREG(status.st_mode):
        return "is a link" if stat.S_ISLNK(status.st_mode) else "is no regular file"
    if status.st_nlink != names:
        return "has other names (hard links)"
    return "" if status.st_uid == owner else f"belongs to user {status.st_uid}, not to {owner} like its folder"


def shown(path: str) -> str:
    """A path that can be printed: a name may have control characters, and bytes that are no text."""
    return path if path.isprintable() else repr(path)[1:-1]
