"""A consistent view of a data directory at one moment, while its services write.

Every database in it is locked for writing from here (`store`), the way SQLite locks between processes: a service waits
as for another writer of its own, and the system releases the locks of a process that dies. While all locks are held,
for some milliseconds, the state of each database is pinned and all other files are hard-linked into a staging folder.
Services are not involved, so it does not matter if one is at rest or dead, or if the kernel dies meanwhile.

A compromised service controls the content of its folder. Links in it are not followed, files that do not belong to the
service alone are left out, and whatever cannot be locked or copied is listed in `problems`; the rest is backed up all
the same.
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

from proto.backup import STAGING, BackupFailed
from proto.host.removal import empty, remove
from proto.manifest import Keep
from proto.stores import LOGS, Refuse, StoredFile, Stores, entries, foreign, opened_folder, shown
from services.backup.locked_database import LockedDatabase, Unfit
from services.backup.piece import Piece, has_too_many_holes, opened

HOLD_S = 0.5
"""Longest time that writers are blocked while the view is taken."""

OR_DIE_S = 5.0
"""Time after which the system kills a process that blocks writers, because it was stopped or its disk hangs: half the
time that a service waits for a lock."""

PATIENCE_S = 60.0
"""How long to wait for a database that is written continuously, as in a long transaction."""

LESS_PATIENCE_S = 1.0
"""How long to wait for each further such database."""

OPEN_S = 5.0
"""How long to wait for a database to open. After one slow database, further ones of the same service are not waited
for."""

MAX_STORES: Final = 256
"""Most databases of a service that are locked at once; each uses four open files."""

MAX_NAMED: Final = 20
"""Most problems of a service that are listed individually."""

_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP)
_REFUSED = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
"""Errors caused by the content of a folder rather than by the disk."""


class _TooLong(Exception):
    """The view could not be completed within HOLD_S."""


class _Problems:
    """Problems with files; only the first ones of each service are listed individually."""

    def __init__(self) -> None:
        self._said: dict[str, list[str]] = {}
        self._more: collections.Counter[str] = collections.Counter()

    def add(self, path: str, why: str) -> None:
        place = shown(_service_folder(path))
        said = self._said.setdefault(place, [])
        if len(said) < MAX_NAMED:
            said.append(f"{shown(path)} {why}")
        else:
            self._more[place] += 1

    def __iter__(self) -> Iterator[str]:
        for place, said in self._said.items():
            yield from said
            if more := self._more[place]:
                yield f"{place}: {more} more problems of this kind"


class Moment:
    """A context manager. Inside, `pieces` is everything to back up, and `problems` lists what is wrong with it.

    Raises BackupFailed if another backup is in progress, and OSError.
    """

    def __init__(self, data_dir: Path, stores: Stores) -> None:
        self.at = 0.0
        """The time of the moment (time.time)."""
        self.held_s = 0.0
        self.schemas: dict[str, int] = {}
        self.later: str = ""
        self._data_dir = data_dir
        self._declared = stores
        self._staging = data_dir / STAGING
        self._stores: list[LockedDatabase] = []
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
        """Files that could not be locked or copied, and why."""
        late = [self.later] if self.later else []
        return [*late, *self._of_stores, *self._of_items, *self._of_plain, *self._of_copies]

    def left_out(self, path: str, why: str) -> None:
        """Record a piece that could not be copied."""
        self._of_copies.add(path, f"{why}; it is not in the backup")

    @property
    def pieces(self) -> Iterator[Piece]:
        """Yield all pieces, folders before their content."""
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
        """Create an empty staging folder, locked by this process."""
        self._staging.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(self._staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupFailed(f"another backup of {self._data_dir} is in progress") from None
        # This also removes what a killed backup has left.
        empty(self._staging)
        self._stack.callback(empty, self._staging)

    def _open(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        opened: collections.Counter[str] = collections.Counter()
        slow: set[str] = set()
        for found in self._declared.walk(self._data_dir):
            if found.keep in (None, Keep.SOURCE) and found.path.endswith(".db") and stat.S_ISREG(found.status.st_mode):
                place = _service_folder(found.path)
                opened[place] += 1
                began = time.monotonic()
                try:
                    if opened[place] > MAX_STORES:
                        raise Unfit(f"exceeds the {MAX_STORES} databases that can be locked at once")
                    owner = found.status.st_uid if (given := self._owner(found)) is None else given
                    self._stores.append(LockedDatabase(found, owner, 0 if place in slow else OPEN_S))
                    self._stack.callback(self._stores[-1].close)
                except (Unfit, OSError) as error:
                    self._copy_unlocked(found.path, error)
                if time.monotonic() - began > OPEN_S / 2:
                    slow.add(place)

    def _copy_unlocked(self, path: str, error: Exception) -> None:
        why = f"cannot be opened ({error.strerror})" if isinstance(error, OSError) else str(error)
        self._of_stores.add(path, f"{why}, and is copied without a lock")

    def _owner(self, found: StoredFile) -> int | None:
        """Return the user of the service whose folder it is in, which the service cannot change; None if any user is
        allowed."""
        parts = found.path.split("/")
        if parts[0] != "services" or len(parts) < 3 or found.keep is Keep.ITEMS:
            return None
        return os.stat(self._data_dir / "services" / parts[1], follow_symlinks=False).st_uid

    def _take(self) -> None:
        give_up = time.monotonic() + PATIENCE_S
        order, is_late = [*self._stores], False
        while (busy := self._attempt(order, give_up, is_late=is_late)) is not None:
            if isinstance(busy, LockedDatabase) and (busy.unfit or time.monotonic() > give_up):
                # Give up only this database's consistency, not that of the others.
                order.remove(busy)
                self._stores.remove(busy)
                busy.close()
                self._copy_unlocked(busy.path, busy.unfit or Unfit(f"was written continuously for {PATIENCE_S:.0f} s"))
            elif time.monotonic() > give_up:
                is_late = True
                self.later = f"files other than databases are more recent than these: linking {busy} took too long"
            if time.monotonic() > give_up:
                give_up = time.monotonic() + LESS_PATIENCE_S
            # Wait for the busy one first next time, while nothing else is locked.
            order.sort(key=lambda store: store is not busy)
        self.schemas = {store.path: store.schema() for store in self._stores}

    def _attempt(
        self, order: list[LockedDatabase], give_up: float, *, is_late: bool
    ) -> LockedDatabase | _TooLong | None:
        """Try to take the view. Returns what prevented it, or None. With `is_late`, link files only after releasing
        writers."""
        timer, held = _Timer(), False
        began = time.monotonic()
        try:
            # Link most files beforehand, when no writers are waiting.
            self._link_items(math.inf if is_late else give_up)
            remove(self._staging / "plain")
            began = time.monotonic()
            for store in order:
                if not store.lock(began + HOLD_S if held else give_up):
                    return store
                if not held:
                    held, began = True, time.monotonic()
                    timer.kill_after(OR_DIE_S)
            self.at = time.time()
            for store in order:
                if not store.pin():
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
        # Without it, files that are listed before the first folder would count as gone.
        (self._staging / "plain").mkdir(exist_ok=True)
        databases = {f"{store.path}{end}" for store in self._stores for end in ("", *LOGS)}
        for found in self._declared.walk(self._data_dir, self._of_plain.add):
            if found.keep in (None, Keep.SOURCE, Keep.ITEMS) and found.path not in databases:
                staged = self._staging / "plain" / found.path
                if self._link(found, staged, until, self._of_plain.add, self._owner(found)):
                    self._plain[found.path] = _piece(found.path, staged)

    def _items(self) -> list[StoredFile]:
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
                    self._link_tree(StoredFile(item, Keep.ITEMS, status, folder), until)
                except BaseException:
                    remove(at)
                    raise

    def _link_tree(self, found: StoredFile, until: float) -> None:
        refuse = self._of_items.add
        if not self._link(found, self._staging / "items" / found.path, until, refuse) or not found.is_dir:
            return
        try:
            with opened_folder(found.name, found.folder) as folder:
                for path, status in entries(folder, found.path, refuse):
                    self._link_tree(StoredFile(path, Keep.ITEMS, status, folder), until)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            refuse(found.path, f"cannot be opened: {error.strerror}")

    def _link(self, found: StoredFile, staged: Path, until: float, refuse: Refuse, owner: int | None = None) -> bool:
        """Link a file, or create a folder. Returns False if it is gone or was refused.

        Files must belong to `owner` alone, if given. Raises _TooLong or OSError.
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
    """Kills this process, even if it is stopped, unless closed in time; uses timer_create(2). Raises OSError."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._id = ctypes.c_void_p()
        # struct sigevent: a value, the signal, SIGEV_SIGNAL.
        event = struct.pack("Qii48x", 0, signal.SIGKILL, 0)
        if self._libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(self._id)):
            raise OSError(ctypes.get_errno(), "timer_create")

    def kill_after(self, seconds: float) -> None:
        # struct itimerspec: no interval, then seconds and nanoseconds.
        when = struct.pack("qqqq", 0, 0, int(seconds), int(seconds % 1 * 1e9))
        if self._libc.timer_settime(self._id, 0, when, None):
            raise OSError(ctypes.get_errno(), "timer_settime")

    def close(self) -> None:
        self._libc.timer_delete(self._id)


_IS_LINK: Final = "is a link, whose target is not in the backup"


def _linked(found: StoredFile, staged: Path, owner: int | None) -> str:
    """Stage an entry. Returns the reason if it was not staged, or any problem with it. Raises OSError."""
    mode = found.status.st_mode
    if stat.S_ISDIR(mode):
        staged.mkdir(parents=True, exist_ok=True)
        staged.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
        return ""
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        return "is neither a file, a link nor a folder"
    try:
        os.link(found.name, staged, src_dir_fd=found.folder, follow_symlinks=False)
        names = 2
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        names = 1
        _copy(found, staged)
    # The link no longer changes, whatever its old name refers to by now.
    status = os.lstat(staged)
    if stat.S_ISLNK(status.st_mode):
        return _IS_LINK if found.path.startswith("services/") and found.keep is not Keep.ITEMS else ""
    why = foreign(status, status.st_uid if owner is None else owner, status.st_nlink if owner is None else names)
    if why:
        staged.unlink()
    return why


def _copy(found: StoredFile, staged: Path) -> None:
    """Copy an entry on a file system without hard links. Raises OSError."""
    if stat.S_ISLNK(found.status.st_mode):
        try:
            target = os.readlink(found.name, dir_fd=found.folder)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise OSError(errno.EACCES, "is no longer the link that it was") from None
        os.symlink(target, staged)
        return
    with open(opened(found.name, found.folder), "rb") as source:
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode) or has_too_many_holes(source.fileno()):
            raise OSError(errno.EACCES, "not a regular file, or mostly holes")
        with staged.open("xb") as copy:
            shutil.copyfileobj(source, copy)
            os.fchmod(copy.fileno(), stat.S_IMODE(status.st_mode))
            os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))


def _service_folder(path: str) -> str:
    """Return the part of a data directory that a single service writes."""
    return "/".join(path.split("/")[:2])


def _piece(path: str, staged: Path) -> Piece:
    status = os.lstat(staged)
    if stat.S_ISLNK(status.st_mode):
        return Piece(path, status, target=os.readlink(staged))
    return Piece(path, status, status.st_size, staged) if stat.S_ISREG(status.st_mode) else Piece(path, status)
