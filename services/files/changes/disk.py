"""Changes on disk that links cannot redirect, and that never overwrite anything.

A change applies to a name in an open directory, which is reached from its root name by name without following links: a
directory that is swapped for a link meanwhile is not entered. Names here are in `os` form; messages are for clients.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from proto.errors import LinckiaError
from services.files import paths
from services.files.paths import FileRoots
from services.files.store.database import Note

MAX_NAME_BYTES = 255
"""Longest name of an entry on the file systems of Linux."""

_O_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
O_READ_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def open_at(name: str, flags: int, folder: int | None = None, mode: int = 0o777) -> Iterator[int]:
    """Open a descriptor and close it on exit. Raises OSError."""
    descriptor = os.open(name, flags, mode, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Refused(Exception):
    """An item that cannot be processed; nothing of it was done. The message is for the client."""


class OpenPath(NamedTuple):
    """A name in an open directory."""

    folder: int
    """Descriptor of the directory, usable only as `dir_fd`."""
    name: str
    path: str
    """The full path, as text."""

    def status(self) -> os.stat_result | None:
        """Stat the entry without following links; None if it does not exist. Raises OSError."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None


@dataclass(slots=True)
class Item:
    """A change and its result."""

    kind: str
    """One of "move", "copy", "folder", "trash", "restore" and "delete"."""
    source: str
    target: str = ""
    source_field: str = "from"
    target_field: str = "to"
    trash_id: int | None = None
    exact: bool = False
    """Whether an entry has exactly this name, so that none with another Unicode form of it may be taken instead."""
    force: bool = False
    make: bool = False
    error: str | None = None
    scan: list[str] = field(default_factory=list)
    """Paths to scan so that the index is complete."""
    done: bool = False
    made: bool = False
    """Whether it was changed on disk, although the call failed."""
    existed: bool = False
    """Whether the directory to be made exists already."""
    step: str = ""
    """Its number in a call with an idempotency key, which stores its outcome."""

    def paths(self) -> tuple[str, ...]:
        """Return the paths known to clients."""
        return tuple(path for path in (self.source, self.target) if path)


@dataclass(slots=True)
class OpenItem:
    """An item with its opened source and target."""

    item: Item
    source: OpenPath
    target: OpenPath | None
    status: os.stat_result
    intent: int = 0
    note: Note | None = None
    """The trash note of an item to be moved to the trash."""
    crosses: bool = False


@contextlib.contextmanager
def opened(roots: FileRoots, path: str, field: str, *, make: bool = False, moved: str = "") -> Iterator[OpenPath]:
    """Open the place of a path, resolving every link but the last.

    Args:
        make: create missing parent directories.
        moved: see `FileRoots.place`.

    Raises:
        Refused: the path is outside the roots, denied or itself a root, or a parent directory is missing.
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
            raise Refused(f"`{field}`: directory {paths.shown(paths.of_folder(at))} does not exist") from None
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise Refused(f"`{field}`: {paths.shown(paths.of_folder(at))} is not a directory") from None
        raise Refused(f"`{field}`: {describe_error(paths.of_folder(at), error)}") from None
    try:
        yield OpenPath(descriptor, paths.to_os(name), place)
    finally:
        os.close(descriptor)


def placed(roots: FileRoots, path: str, field: str, *, moved: str = "") -> str:
    """Return the path with every link but the last resolved (see `FileRoots.place`). Raises Refused."""
    try:
        place = roots.place(roots.clean(path, field), field, moved=moved)
    except LinckiaError as error:
        raise Refused(error.failure.message) from None
    if any(len(os.fsencode(paths.to_os(name))) > MAX_NAME_BYTES for name in place.split("/")):
        raise Refused(f"`{field}`: {paths.shown(place)} has a name of more than {MAX_NAME_BYTES} bytes")
    if place in roots.paths:
        raise Refused(f"`{field}`: {paths.shown(place)} is a root, which cannot be moved, copied or deleted itself")
    return place


def unmoved(roots: FileRoots, item: Item, source: str) -> str:
    """Return the place at which an item's target may get another Unicode form: where the entry is, or was deleted.
    Raises Refused."""
    return placed(roots, item.target, item.target_field) if item.target == item.source else source


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


def describe_error(path: str, error: OSError) -> str:
    """Format an error at a path."""
    return f"{paths.shown(path)}: {os.strerror(error.errno or 0)}"


def describe_location(error: OSError) -> str:
    """Describe where in a directory a deletion failed."""
    inside = error.filename
    return f" ({paths.shown(paths.to_text(inside))}; everything before it is gone)" if isinstance(inside, str) else ""


def not_empty(path: str) -> str:
    """Return the message for a directory that is not empty."""
    return f"`path`: {paths.shown(path)} is a directory and not empty; set `force` to delete it"


def exists(named: str, path: str) -> str:
    """Return the message for a target that exists."""
    return f"`{named}`: {paths.shown(path)} already exists and is not overwritten"


def not_folder(named: str, path: str) -> str:
    """Return the message for a directory to be made where something else is."""
    return f"`{named}`: {paths.shown(path)} exists and is not a directory"


def check_writable(roots: FileRoots, path: str, named: str) -> None:
    """Raises Refused if changing a path would affect a root, or something that may not be accessed or written."""
    if refusal := roots.all.refusal_of_all(paths.to_os(path)):
        raise Refused(f"`{named}`: {refusal}")
    if inside := [root for root in roots.paths if paths.is_within(root, (path,))]:
        raise Refused(f"`{named}`: {paths.shown(path)} contains the root {paths.shown(inside[0])}")


def check_readable(roots: FileRoots, path: str, named: str) -> None:
    """Raises Refused if copying a path would read something that may not be accessed."""
    if refusal := roots.all.refusal_of_all(paths.to_os(path), write=False):
        raise Refused(f"`{named}`: {refusal}")


def check_not_inside(source: str, target: str, named: str) -> None:
    """Raises Refused if the target is inside the source."""
    if target != source and paths.is_within(target, (source,)):
        raise Refused(f"`{named}`: {paths.shown(target)} is inside {paths.shown(source)} itself")


def sync(folder: int) -> None:
    """Make the names in a directory durable. Raises OSError."""
    # A directory that is writable but not readable cannot be synced.
    with contextlib.suppress(PermissionError), open_at(".", O_READ_FOLDER, folder) as readable:
        os.fsync(readable)


def sync_all(ready: Iterable[OpenItem]) -> None:
    """Make the changed names durable, syncing each directory once."""
    synced = set()
    for each in ready:
        for place in (each.source, each.target):
            if place is not None:
                status = os.fstat(place.folder)
                if (status.st_dev, status.st_ino) not in synced:
                    synced.add((status.st_dev, status.st_ino))
                    sync(place.folder)


# Removing


def is_empty(place: OpenPath) -> bool:
    """True if the directory is empty. Raises OSError."""
    with open_at(place.name, O_READ_FOLDER, place.folder) as descriptor, os.scandir(descriptor) as entries:
        return next(entries, None) is None


def remove(place: OpenPath, *, force: bool) -> None:
    """Remove an entry; with `force`, also a directory with all its content. Raises OSError if it, or something in it,
    cannot be removed; everything before that is gone."""
    status = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(place.name, dir_fd=place.folder)
        return
    if force:
        _empty(os.open(place.name, O_READ_FOLDER, dir_fd=place.folder), place.path)
    os.rmdir(place.name, dir_fd=place.folder)


def _empty(descriptor: int, path: str) -> None:
    """Remove everything in an open directory, and close it."""
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
    # Read on the first `next`: by then the descriptor is on the stack that closes it.
    with os.scandir(descriptor) as entries:
        found = list(entries)
    yield from found
