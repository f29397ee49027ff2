"""Continuous backups: a snapshot a few seconds after anything has changed, made by one process that stays.

A snapshot has all stores as of one moment, like any other, but only what may have changed since the one before is read:
a write changes the log of a database, and its main file once the log is moved into it. Each snapshot replaces the one
before; one in each interval is kept. While nothing changes, only the times of files are looked at.
"""

from __future__ import annotations

import calendar
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from proto import backup as outcomes
from proto.backup import Access, BackupFailed, File, Outcome, Program
from proto.manifest import Keep
from services.backup.making import copied, described, in_words, new_name
from services.backup.moment import Moment
from services.backup.piece import Piece, Unreadable
from services.backup.sealed import Sealed
from services.backup.target import opened

TICK_S: Final = 4.0
SETTLED_S: Final = 2.0
"""A file that was written so lately may be written again without another time."""

NOTED_S: Final = 30.0
"""Interval at which it is recorded that nothing has changed."""

LONGEST_PAUSE_S: Final = 60.0


class _Look(NamedTuple):
    """What tells whether a file has changed."""

    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result, size: int) -> _Look:
        return cls(status.st_ino, size, status.st_mtime_ns)

    def is_settled(self, at: float) -> bool:
        return self.modified_ns < (at - SETTLED_S) * 1e9


def continuous(
    data_dir: Path, to: str, program: Program, access: Access, keep: int, every_s: float, is_wanted: Callable[[], bool]
) -> None:
    """Make snapshots until they are no longer wanted. Only for encrypted targets.

    Args:
        keep: number of snapshots that are kept, besides the newest.
        every_s: interval between those.
    """
    os.nice(10)
    pause_s = TICK_S
    known: Known = {}
    while is_wanted():
        stream = Stream(data_dir, to, program, keep, every_s, known)
        try:
            with opened(to, data_dir, access, write=True) as target:
                if not isinstance(target, Sealed):
                    raise BackupFailed(f"continuous backups are encrypted, and {to} is not: set `encrypt` in [backup]")
                while is_wanted():
                    stream.tick(target)
                    pause_s = TICK_S
                    time.sleep(TICK_S)
        except (BackupFailed, OSError) as error:
            stream.note(error=in_words(error, data_dir, to))
            if isinstance(error, BackupFailed):
                # Perhaps a chunk has gone, which is then put again.
                known.clear()
            give_up = time.monotonic() + pause_s
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            while is_wanted() and time.monotonic() < give_up:
                time.sleep(1)


Known = dict[str, tuple[_Look, File]]
"""Files as the last snapshot has them, by path."""


class Stream:
    """The snapshots of one connection to a target."""

    def __init__(self, data_dir: Path, to: str, program: Program, keep: int, every_s: float, known: Known) -> None:
        self._data_dir, self._to, self._program = data_dir, to, program
        self._keep, self._every_s = keep, every_s
        self._known = known
        self._seen: dict[str, _Look] | None = None
        self._noted_at = 0.0
        self._kept_at: float | None = None
        self._replaced = ""
        """The object of the newest snapshot, unless it is kept."""

    def tick(self, target: Sealed) -> None:
        """Make a snapshot if anything has changed. Raises BackupFailed or OSError."""
        began = time.time()
        seen = self._looks()
        if self._seen is None or seen != self._seen:
            self._make(target)
            # What was written just now may have been written again meanwhile.
            self._seen = seen if all(each.is_settled(began) for each in seen.values()) else None
        elif began > self._noted_at + NOTED_S:
            self.note(succeeded=began)

    def _looks(self) -> dict[str, _Look]:
        kept = (None, Keep.SOURCE, Keep.ITEMS)
        # Reading changes the time of a database's shared memory.
        return {
            found.path: _Look.of(found.status, found.status.st_size)
            for found in self._program.stores.walk(self._data_dir)
            if found.keep in kept and not found.path.endswith("-shm")
        }

    def _make(self, target: Sealed) -> None:
        is_first = self._kept_at is None
        names = target.names()
        if self._kept_at is None:
            self._kept_at = _time_of(names[-1]) if names else 0.0
        with Moment(self._data_dir, self._program.stores) as moment:
            files = []
            for piece in moment.pieces:
                try:
                    files.append(self._file(piece, target, moment.at))
                except Unreadable as error:
                    moment.left_out(piece.path, str(error))
            name = new_name(moment.at, set(names))
            manifest = described(moment, self._program, self._data_dir, name, files)
            path = target.commit(manifest, listing=is_first)
        if self._replaced:
            target.remove(self._replaced)
        self._replaced = path
        if moment.at >= self._kept_at + self._every_s:
            self._kept_at, self._replaced = moment.at, ""
            target.prune(str(self._data_dir), self._keep)
        self.note(succeeded=moment.at, snapshot=name, problems=manifest.problems)

    def _file(self, piece: Piece, target: Sealed, at: float) -> File:
        """Return a file of the moment, from the snapshot before if it has not changed since. Raises Unreadable."""
        if piece.source is None:
            return copied(piece, target)
        try:
            status = os.fstat(piece.source) if isinstance(piece.source, int) else os.lstat(piece.source)
        except OSError as error:
            raise Unreadable(f"cannot be read: {error.strerror}") from error
        look = _Look.of(status, piece.size)
        known = self._known.get(piece.path)
        if known is not None and known[0] == look:
            now = copied(piece._replace(source=None), target)
            return msgspec.structs.replace(known[1], mode=now.mode, owner=now.owner)
        found = copied(piece, target)
        if look.is_settled(at):
            self._known[piece.path] = (look, found)
        else:
            self._known.pop(piece.path, None)
        return found

    def note(self, *, succeeded: float | None = None, snapshot: str = "", problems: list[str] | None = None,
             error: str = "") -> None:  # fmt: skip
        """Record the outcome for `linckia status`."""
        before = outcomes.known(self._data_dir).get(self._to) or Outcome(to=self._to, at=0)
        self._noted_at = time.time()
        given = {"succeeded": succeeded, "snapshot": snapshot, "problems": problems}
        changed = {name: value for name, value in given.items() if value not in (None, "")}
        try:
            outcomes.note(self._data_dir, msgspec.structs.replace(before, at=self._noted_at, error=error, **changed))
        except OSError:
            # The next one may be recorded.
            self._noted_at = 0.0


def _time_of(name: str) -> float:
    """Return when a snapshot was made, by its name."""
    try:
        return calendar.timegm(time.strptime(name[:16], "%Y%m%dT%H%M%SZ"))
    except ValueError:
        return 0.0
