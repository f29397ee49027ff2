"""A data directory as it is at one moment, while its services write.

Each database in it is locked for writing from here (`store`), as SQLite locks it between processes: a service waits as
it would for a writer of its own, and the system frees the locks of a process that dies.  While all of them are held,
which takes some milliseconds, the state of each is kept, and all other files are linked into a staging folder.  Nothing
is asked of the services, so one that rests or is dead makes no difference, nor does a kernel that dies meanwhile.

A service that was taken over decides what is in its folder.  No link is followed there, what is not the service's alone
is left out, and whatever cannot be held or copied is named in `problems` and keeps nothing else from being saved.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import errno
import fcntl
import math
import os
import resource
import shutil
import signal
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from linckia.proto.backup import STAGING, BackupFailed
from linckia.proto.manifest import Keep
from linckia.proto.removal import empty, remove
from linckia.proto.stores import LOGS, Found, Refuse, Stores, entries, foreign, opened_folder, shown
from linckia.services.backup.piece import Piece, has_too_many_holes, opened
from linckia.services.backup.store import Store, Unfit

HOLD_S = 0.5
"""How long writers are held at most, for all of it to be taken."""

OR_DIE_S = 5.0
"""After which a process that holds writers is killed by the system, because it was stopped or its disk hangs: half the
time that a service waits for a lock."""

PATIENCE_S = 60.0
"""For a database that is written to without a pause, as in a long transaction."""

LESS_PATIENCE_S = 1.0
"""For each one after that."""

OPEN_S = 5.0
"""For a database to be opened; it is waited for no second one of a service that makes it wait."""

MOST_STORES: Final = 256
"""Databases of a service that are held at once; each takes four open files."""

MOST_NAMED: Final = 20
"""Problems of a service that are stated one by one."""

_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP)
_REFUSED = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
"""Errors that are due to what was put there, and not to the disk."""


class _TooLong(Exception):
    """Not all could be taken within HOLD_S."""


class _Problems:
    """What is wrong with files, the first of each service one by one."""

    def __init__(self) -> None:
        self._said: dict[str, list[str]] = {}
        self._more: collections.Counter[str] = collections.Counter()

    def add(self, path: str, why: str) -> None:
        place = shown(_place(path))
        said = self._said.setdefault(place, [])
        if len(said) < MOST_NAMED:
            said.append(f"{shown(path)} {why}")
        else:
            self._more[place] += 1

    def __iter__(self) -> Iterator[str]:
        for place, said in self._said.items():
            yield from said
            if more := self._more[place]:
                yield f"{place} has {more} more of such problems"


class Moment:
    """A context manager; inside, `pieces` is all that is to be backed up, and `problems` what is wrong with it.

    Raises BackupFailed: another backup is under way; OSError.
    """

    def __init__(self, data_dir: Path, stores: Stores) -> None:
        self.at = 0.0
        """When it was (time.time)."""
        self.held_s = 0.0
        self.schemas: dict[str, int] = {}
        self.later: str = ""
        self._data_dir = data_dir
        self._declared = stores
        self._staging = data_dir / STAGING
        self._stores: list[Store] = []
        self._plain: dict[str, Piece] = {}
        self._of_stores, self._of_items, self._of_plain, self._of_copies = (_Problems() for _ in range(4))
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Moment:
        try:
            self._stage()
            self._open()
            self._take()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    @property
    def problems(self) -> list[str]:
        """What could not be held or copied, and why."""
        late = [self.later] if self.later else []
        return [*late, *self._of_stores, *self._of_items, *self._of_plain, *self._of_copies]

    def left_out(self, path: str, why: str) -> None:
        """Name a piece that could not be copied."""
        self._of_copies.add(path, f"{why}; it is not in the backup")

    @property
    def pieces(self) -> Iterator[Piece]:
        """Folders before what is in them."""
        yield from self._plain.values()
        items = self._staging / "items"
        for found in self._items():
            for folder, folders, files in os.walk(items / found.path):
                for name in (*folders, *files):
                    path = Path(folder, name)
                    yield _piece(str(path.relative_to(items)), path)
        for store in self._stores:
            yield from store.pieces

    def _stage(self) -> None:
        """An empty staging folder, which is this process's alone."""
        self._staging.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(self._staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupFailed(f"another backup of {self._data_dir} is under way") from None
        # Also what one that was killed has left.
        empty(self._staging)
        self._stack.callback(empty, self._staging)

    def _open(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        opened: collections.Counter[str] = collections.Counter()
        slow: set[str] = set()
        for found in self._declared.walk(self._data_dir):
            if found.keep in (None, Keep.SOURCE) and found.path.endswith(".db") and stat.S_ISREG(found.status.st_mode):
                place = _place(found.path)
                opened[place] += 1
                began = time.monotonic()
                try:
                    if opened[place] > MOST_STORES:
                        raise Unfit(f"is more than the {MOST_STORES} databases that are held at once")
                    owner = found.status.st_uid if (given := self._owner(found)) is None else given
                    self._stores.append(Store(found, owner, 0 if place in slow else OPEN_S))
                    self._stack.callback(self._stores[-1].close)
                except (Unfit, OSError) as error:
                    self._as_it_is(found.path, error)
                if time.monotonic() - began > OPEN_S / 2:
                    slow.add(place)

    def _as_it_is(self, path: str, error: Exception) -> None:
        why = f"cannot be opened ({error.strerror})" if isinstance(error, OSError) else str(error)
        self._of_stores.add(path, f"{why}, and is copied as it is")

    def _owner(self, found: Found) -> int | None:
        """The user of the service in whose folder it is, which the service cannot change; None: it may be anybody's."""
        parts = found.path.split("/")
        if parts[0] != "services" or len(parts) < 3 or found.keep is Keep.ITEMS:
            return None
        return os.stat(self._data_dir / "services" / parts[1], follow_symlinks=False).st_uid

    def _take(self) -> None:
        give_up = time.monotonic() + PATIENCE_S
        order, is_late = [*self._stores], False
        while (busy := self._attempt(order, give_up, is_late=is_late)) is not None:
            if isinstance(busy, Store) and (busy.unfit or time.monotonic() > give_up):
                # It costs its own state, and no other's.
                order.remove(busy)
                self._stores.remove(busy)
                busy.close()
                self._as_it_is(busy.path, busy.unfit or Unfit(f"was written to for {PATIENCE_S:.0f} s without a pause"))
            elif time.monotonic() > give_up:
                is_late = True
                self.later = f"all but the databases is later than these: {busy} took too long to be linked"
            if time.monotonic() > give_up:
                give_up = time.monotonic() + LESS_PATIENCE_S
            # The one that was not free is waited for first, while nothing else is held.
            order.sort(key=lambda store: store is not busy)
        self.schemas = {store.path: store.schema() for store in self._stores}

    def _attempt(self, order: list[Store], give_up: float, *, is_late: bool) -> Store | _TooLong | None:
        """What kept it from succeeding; `is_late`: link files only after writers were let go."""
        timer, held = _Timer(), False
        began = time.monotonic()
        try:
            # Most of it beforehand, since writers do not wait for that.
            self._link_items(math.inf if is_late else give_up)
            remove(self._staging / "plain")
            began = time.monotonic()
            for store in order:
                if not store.hold(began + HOLD_S if held else give_up):
                    return store
                if not held:
                    held, began = True, time.monotonic()
                    timer.kill_after(OR_DIE_S)
            self.at = time.time()
            for store in order:
                if not store.keep():
                    return store
            if not is_late:
                self._link_items(began + HOLD_S)
                self._link_plain(began + HOLD_S)
        except _TooLong as slow:
            return slow
        finally:
            for store in order:
                store.release()
            timer.close()
        self.held_s = time.monotonic() - began
        if is_late:
            self._link_items(math.inf)
            self._link_plain(math.inf)
        return None

    def _link_plain(self, until: float) -> None:
        self._plain.clear()
        self._of_plain = _Problems()
        databases = {f"{store.path}{end}" for store in self._stores for end in ("", *LOGS)}
        for found in self._declared.walk(self._data_dir, self._of_plain.add):
            if found.keep in (None, Keep.SOURCE, Keep.ITEMS) and found.path not in databases:
                staged = self._staging / "plain" / found.path
                if self._link(found, staged, until, self._of_plain.add, self._owner(found)):
                    self._plain[found.path] = _piece(found.path, staged)

    def _items(self) -> list[Found]:
        return [each for each in self._declared.walk(self._data_dir) if each.keep is Keep.ITEMS and each.is_dir]

    def _link_items(self, until: float) -> None:
        self._of_items = _Problems()
        for each in self._declared.walk(self._data_dir):
            if each.keep is Keep.ITEMS and each.is_dir:
                with contextlib.suppress(OSError), opened_folder(each.name, each.folder) as folder:
                    self._link_new(folder, each.path, until)

    def _link_new(self, folder: int, path: str, until: float) -> None:
        staged, there = self._staging / "items" / path, set(os.listdir(folder))
        staged.mkdir(parents=True, exist_ok=True)
        for name in set(os.listdir(staged)) - there:
            remove(staged / name)
        known = set(os.listdir(staged))
        for item, status in entries(folder, path, self._of_items.add):
            if os.path.basename(item) not in known:
                at = self._staging / "items" / item
                try:
                    self._link_tree(Found(item, Keep.ITEMS, status, folder), until)
                except BaseException:
                    remove(at)
                    raise

    def _link_tree(self, found: Found, until: float) -> None:
        refuse = self._of_items.add
        if not self._link(found, self._staging / "items" / found.path, until, refuse) or not found.is_dir:
            return
        try:
            with opened_folder(found.name, found.folder) as folder:
                for path, status in entries(folder, found.path, refuse):
                    self._link_tree(Found(path, Keep.ITEMS, status, folder), until)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            refuse(found.path, f"cannot be opened: {error.strerror}")

    def _link(self, found: Found, staged: Path, until: float, refuse: Refuse, owner: int | None = None) -> bool:
        """Another name for a file, or another folder; False where it is gone, or refused.

        Where an `owner` is given, files are to be that user's alone.  Raises _TooLong, OSError.
        """
        if time.monotonic() > until:
            raise _TooLong(shown(found.path))
        try:
            why = _linked(found, staged, owner)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            why = f"cannot be linked: {error.strerror}"
        if why and why != _IS_LINK:
            refuse(found.path, f"{why}; it is not in the backup")
            return False
        if why:
            refuse(found.path, why)
        return True


class _Timer:
    """Kills this process, stopped or not, unless it is closed in time; timer_create(2).  Raises OSError."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._id = ctypes.c_void_p()
        # struct sigevent: a value, the signal, SIGEV_SIGNAL.
        event = struct.pack("Qii48x", 0, signal.SIGKILL, 0)
        if self._libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(self._id)):
            raise OSError(ctypes.get_errno(), "timer_create")

    def kill_after(self, seconds: float) -> None:
        # struct itimerspec: no interval, seconds and nanoseconds.
        when = struct.pack("qqqq", 0, 0, int(seconds), int(seconds % 1 * 1e9))
        if self._libc.timer_settime(self._id, 0, when, None):
            raise OSError(ctypes.get_errno(), "timer_settime")

    def close(self) -> None:
        self._libc.timer_delete(self._id)


_IS_LINK: Final = "is a link, of which the backup does not hold what it leads to"


def _linked(found: Found, staged: Path, owner: int | None) -> str:
    """Have it staged; why it is not, or what is wrong with it.  Raises OSError."""
    mode = found.status.st_mode
    if stat.S_ISDIR(mode):
        staged.mkdir(parents=True, exist_ok=True)
        staged.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
        return ""
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        return "is neither a file nor a folder"
    try:
        os.link(found.name, staged, src_dir_fd=found.folder, follow_symlinks=False)
        names = 2
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        names = 1
        _copy(found, staged)
    # What was linked stays as it is, whatever its old name stands for by now.
    status = os.lstat(staged)
    if stat.S_ISLNK(status.st_mode):
        return _IS_LINK if found.path.startswith("services/") and found.keep is not Keep.ITEMS else ""
    why = foreign(status, status.st_uid if owner is None else owner, status.st_nlink if owner is None else names)
    if why:
        staged.unlink()
    return why


def _copy(found: Found, staged: Path) -> None:
    """Where the file system has no hard links.  Raises OSError."""
    if stat.S_ISLNK(found.status.st_mode):
        os.symlink(os.readlink(found.name, dir_fd=found.folder), staged)
        return
    with open(opened(found.name, found.folder), "rb") as source:
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode) or has_too_many_holes(source.fileno()):
            raise OSError(errno.EACCES, "no regular file, or one of holes")
        with staged.open("xb") as copy:
            shutil.copyfileobj(source, copy)
            os.fchmod(copy.fileno(), stat.S_IMODE(status.st_mode))
            os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))


def _place(path: str) -> str:
    """The part of a data directory that one service writes."""
    return "/".join(path.split("/")[:2])


def _piece(path: str, staged: Path) -> Piece:
    status = os.lstat(staged)
    if stat.S_ISLNK(status.st_mode):
        return Piece(path, status, target=os.readlink(staged))
    return Piece(path, status, status.st_size, staged) if stat.S_ISREG(status.st_mode) else Piece(path, status)
