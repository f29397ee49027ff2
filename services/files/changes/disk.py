"""Changes on the disk that cannot be redirected by links, and that never overwrite.

What is changed is a name in an open directory, reached from its root name by name with no link followed: a directory
that is swapped for a link meanwhile is not entered. Names here are as `os` has them; messages are for clients.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from linckia.proto.errors import LinckiaError
from linckia.services.files import paths
from linckia.services.files.paths import FileRoots
from linckia.services.files.store.database import Note

_O_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
O_READ_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def open_at(name: str, flags: int, folder: int | None = None, mode: int = 0o777) -> Iterator[int]:
    """A descriptor, closed at the end. Raises OSError."""
    descriptor = os.open(name, flags, mode, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Refused(Exception):
    """One item cannot be done; nothing of it was. The message is for the client."""


class Place(NamedTuple):
    """A name in an open directory."""

    folder: int
    """Its descriptor, good for `dir_fd` alone."""
    name: str
    path: str
    """All of it, as text."""

    def status(self) -> os.stat_result | None:
        """Of the entry, no link followed; None where there is none. Raises OSError."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None


@dataclass(slots=True)
class Item:
    """One change, and what became of it."""

    kind: str
    """move, trash, restore or delete."""
    source: str
    target: str = ""
    source_field: str = "from"
    target_field: str = "to"
    trash_id: int | None = None
    force: bool = False
    make: bool = False
    error: str | None = None
    scan: list[str] = field(default_factory=list)
    """Paths that are to be scanned, for the index to know all of it."""
    done: bool = False

    def paths(self) -> tuple[str, ...]:
        """Those that clients know."""
        return tuple(path for path in (self.source, self.target) if path)


@dataclass(slots=True)
class Opened:
    """An item with its places."""

    item: Item
    source: Place
    target: Place | None
    status: os.stat_result
    intent: int = 0
    note: Note | None = None
    """Of an item for the trash."""
    crosses: bool = False


@contextlib.contextmanager
def opened(roots: FileRoots, path: str, field: str, *, make: bool = False, moved: str = "") -> Iterator[Place]:
    """The place of a path, of which every link but the last is followed.

    Args:
        make: make the directories that lead to it and are missing.
        moved: as `FileRoots.place`.

    Raises:
        Refused: it is no path below the roots, is denied or itself a root, or a directory that leads to it is missing.
    """
    place = placed(roots, path, field, moved=moved)
    root = max((root for root in roots.paths if paths.is_within(place, (root,))), key=len)
    *folders, name = place[len(paths.as_folder(root)) :].split("/")
    at = paths.as_folder(root)
    try:
        descriptor = os.open(paths.to_os(root), _O_FOLDER)
        try:
            for folder in folders:
                at += f"{folder}/"
                descriptor = _step(descriptor, paths.to_os(folder), make=make)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise Refused(f"`{field}`: there is no directory {paths.shown(paths.of_folder(at))}") from None
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise Refused(f"`{field}`: {paths.shown(paths.of_folder(at))} is not a directory") from None
        raise Refused(f"`{field}`: {said(paths.of_folder(at), error)}") from None
    try:
        yield Place(descriptor, paths.to_os(name), place)
    finally:
        os.close(descriptor)


def placed(roots: FileRoots, path: str, field: str, *, moved: str = "") -> str:
    """The path with every link but the last followed (see `FileRoots.place`). Raises Refused."""
    try:
        place = roots.place(paths.clean(path, field), field, moved=moved)
    except LinckiaError as error:
        raise Refused(error.failure.message) from None
    if place in roots.paths:
        raise Refused(f"`{field}`: {paths.shown(place)} is a root, which stays where it is")
    return place


def _step(above: int, name: str, *, make: bool) -> int:
    try:
        below = os.open(name, _O_FOLDER, dir_fd=above)
    except FileNotFoundError:
        if not make:
            raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
            sync(above)
        below = os.open(name, _O_FOLDER, dir_fd=above)
    os.close(above)
    return below


def said(path: str, error: OSError) -> str:
    """A failure at a path, in words."""
    return f"{paths.shown(path)}: {os.strerror(error.errno or 0)}"


def where(error: OSError) -> str:
    """Where in a directory it was, in words."""
    inside = error.filename
    return f" ({paths.shown(paths.to_text(inside))}; what comes before it is gone)" if isinstance(inside, str) else ""


def not_empty(path: str) -> str:
    """That a directory is not deleted, in words."""
    return f"`path`: {paths.shown(path)} is a directory that is not empty; `force` deletes it"


def exists(named: str, path: str) -> str:
    """That nothing is overwritten, in words."""
    return f"`{named}`: {paths.shown(path)} exists already, and nothing is overwritten"


def check_not_inside(source: str, target: str, named: str) -> None:
    """Raises Refused."""
    if target != source and paths.is_within(target, (source,)):
        raise Refused(f"`{named}`: {paths.shown(target)} lies within the directory to be moved")


def sync(folder: int) -> None:
    """Have the names in a directory on the disk. Raises OSError."""
    # One that may be written to and not read cannot be asked.
    with contextlib.suppress(PermissionError), open_at(".", O_READ_FOLDER, folder) as readable:
        os.fsync(readable)


def sync_all(ready: Iterable[Opened]) -> None:
    """Have the names that changed on the disk, each directory once."""
    synced = set()
    for each in ready:
        for place in (each.source, each.target):
            if place is not None:
                status = os.fstat(place.folder)
                if (status.st_dev, status.st_ino) not in synced:
                    synced.add((status.st_dev, status.st_ino))
                    sync(place.folder)


# Removing


def is_empty(place: Place) -> bool:
    """Whether the directory at a place has nothing in it. Raises OSError."""
    with open_at(place.name, O_READ_FOLDER, place.folder) as descriptor, os.scandir(descriptor) as entries:
        return next(entries, None) is None


def remove(place: Place, *, force: bool) -> None:
    """Remove an entry; with `force` also a directory with all its content. Raises OSError where it, or something in it,
    cannot be removed; what could be is gone."""
    status = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(place.name, dir_fd=place.folder)
        return
    if force:
        _empty(os.open(place.name, O_READ_FOLDER, dir_fd=place.folder), place.path)
    os.rmdir(place.name, dir_fd=place.folder)


def _empty(descriptor: int, path: str) -> None:
    """Take all out of an open directory, and close it."""
    stack: list[tuple[int, str, Iterator[os.DirEntry[str]]]] = []
    try:
        stack.append((descriptor, "", _entries(descriptor)))
        while stack:
            folder, name, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop()
                os.close(folder)
                if stack:
                    os.rmdir(name, dir_fd=stack[-1][0])
            elif entry.is_dir(follow_symlinks=False):
                below = os.open(entry.name, O_READ_FOLDER, dir_fd=folder)
                stack.append((below, entry.name, _entries(below)))
            else:
                os.unlink(entry.name, dir_fd=folder)
    except OSError as error:
        inside = "/".join([path, *(name for _, name, _ in stack[1:]), *([error.filename] if error.filename else [])])
        raise OSError(error.errno, error.strerror, inside) from None
    finally:
        for folder, _, _ in stack:
            os.close(folder)


def _entries(descriptor: int) -> Iterator[os.DirEntry[str]]:
    # Read when first asked for: by then the descriptor is where it will be closed.
    with os.scandir(descriptor) as entries:
        found = list(entries)
    yield from found
