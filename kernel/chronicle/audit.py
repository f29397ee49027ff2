"""The audit log: one JSON line for each change and each refusal, in a file that no service can access.

With `[audit] reads`, each read of a client has a line as well.

The router reports the outcome of each call; a front reports what it refused before a call was made. A thread appends
lines every 50 ms: a kernel that is killed loses the lines of the last 50 ms and those of calls in flight. A disk that
cannot be written to blocks no call: lines wait in memory up to a limit, beyond which they are counted as lost.
`linckia status` and `linckia doctor` report that.

Repeated refusals get one line, and then one count per minute. Files are rotated by size. Since the number of files is
limited, a client that may write can push old lines out, but only with very many writes.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import trio

from kernel.chronicle.isolation import isolated
from kernel.chronicle.line_file import decoded
from proto.ops.kernel import AuditStatus
from proto.repeats import INTERVAL_S, Repeats

FOLDER: Final = "audit"
"""Folder in the data directory."""

STEM: Final = "audit"

GATHER_S = 0.05
"""Interval between writes: a thread for each line would add a tenth to the cost of a call."""

AGAIN_S = 1.0
"""Delay after a failed write."""

MAX_WAITING_BYTES = 4 * 1024 * 1024
"""Maximum size of lines waiting for the disk: some ten thousand lines."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the log.

    `at` is when the call arrived. `who` is the token's name, `stdio`, `http`, `operator`, or a service that acted by
    itself. `outcome` is `ok` or the kind of failure; `executed` says whether the work may have been done, if the
    outcome does not. `count` calls of this kind were made in one minute. `source` names the plan that a call is part
    of, which `who` created. `approval` is the approval that the call waited for, `held_ms` for how long, and
    `decided_by` who approved or denied it; `duration_ms` does not include that wait, unless it was denied.
    """

    at: datetime.datetime
    who: str
    operation: str
    target: str = ""
    outcome: str = "ok"
    message: str = ""
    executed: str = ""
    duration_ms: float | None = None
    trace: str = ""
    peer: str = ""
    source: str = ""
    approval: str = ""
    decided_by: str = ""
    held_ms: float | None = None
    count: int = 1


_encode = msgspec.json.Encoder().encode
_Refusal = tuple[str, str, str, str]
"""Who was refused, from where, which operation, and the outcome."""


class Audit:
    """Writes the audit log; `run` must be running.

    Attributes:
        reads: whether calls of clients that change nothing are recorded, too.
    """

    def __init__(self, data_dir: Path, *, max_bytes: int, files: int, reads: bool = False) -> None:
        self.reads = reads
        self._max_bytes, self._files = max_bytes, files
        self._folder = data_dir / FOLDER
        self.path = path_of(data_dir)
        self._fd: int | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._rest = b""
        self._halved = False
        self._news = trio.Event()
        self.written = trio.Event()
        """Set when lines have been written, and then replaced."""
        self._problem = ""
        self._lost = 0
        self._said_lost = 0
        self._refusals: Repeats[_Refusal] = Repeats(("", "", "", ""))

    @property
    def state(self) -> AuditStatus:
        waiting = len(self._waiting) + self._rest.count(b"\n")
        return AuditStatus(path=str(self.path), problem=self._problem, waiting=waiting, lost=self._lost)

    def record(self, entry: AuditEntry) -> None:
        """Queue a line to be written. Never blocks."""
        line = _encode(entry) + b"\n"
        if self._waiting_bytes + len(line) > MAX_WAITING_BYTES:
            self._lost += 1
        else:
            self._waiting.append(line)
            self._waiting_bytes += len(line)
            self._news.set()

    def refused(self, entry: AuditEntry) -> None:
        """Record a refusal; equal ones that follow are counted instead."""
        # Report the past minute first, however late the writer is: its thread may be waiting for the disk.
        self._count_refusals()
        key = (entry.who, entry.peer, entry.operation, entry.outcome)
        if self._refusals.is_first(key, trio.current_time()):
            self.record(entry)
        self._news.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write recorded lines until cancelled, then write the rest."""
        task_status.started()
        try:
            while True:
                if not self._problem:
                    with trio.move_on_after(math.inf if self._refusals.is_empty else INTERVAL_S):
                        await self._news.wait()
                    self._news = trio.Event()
                self._count_refusals()
                self._gather()
                has_lines = bool(self._rest)
                with isolated("the audit log"):
                    await trio.to_thread.run_sync(self._write)
                if has_lines:
                    self.written.set()
                    self.written = trio.Event()
                await trio.sleep(AGAIN_S if self._problem else GATHER_S)
        finally:
            self._count_refusals(at_once=True)
            self._gather()
            self._write()
            self._close()

    def _count_refusals(self, *, at_once: bool = False) -> None:
        for (who, peer, operation, outcome), count in self._refusals.take(trio.current_time(), at_once=at_once):
            text = "repeated" if operation else "further refusals, of various kinds"
            self.record(
                AuditEntry(
                    at=now(), who=who, operation=operation, outcome=outcome or "refused", message=text, peer=peer,
                    count=count,
                )
            )  # fmt: skip

    def _gather(self) -> None:
        if self._lost > self._said_lost and not self._problem:
            lost, self._said_lost = self._lost - self._said_lost, self._lost
            text = "lines were lost while the disk could not be written to"
            entry = AuditEntry(at=now(), who="kernel", operation="audit", outcome="lost", message=text, count=lost)
            self._waiting.append(_encode(entry) + b"\n")
        self._rest += b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0

    def _write(self) -> None:
        """Write waiting lines. Blocks, as do the methods below; runs in a thread."""
        data, done = self._rest, 0
        try:
            while done < len(data):
                line = data.index(b"\n", done) + 1
                fd, room = self._open(line - done)
                done += os.write(fd, data[done : max(line, data.rfind(b"\n", done, done + room) + 1)])
                # If the disk has half a line, the next write continues it.
                self._halved = data[done - 1 : done] != b"\n"
            self._problem = ""
        except OSError as error:
            self._problem = f"{self.path}: {error.strerror}"
        self._rest = data[done:]
        if len(self._rest) > MAX_WAITING_BYTES:
            retained = self._rest[: self._rest.rindex(b"\n", 0, MAX_WAITING_BYTES) + 1]
            self._lost += self._rest.count(b"\n") - retained.count(b"\n")
            self._rest = retained

    def _open(self, size: int) -> tuple[int, int]:
        """Return the file and the room left in it: enough for a line of this size, unless the file is new."""
        if self._fd is not None and not os.fstat(self._fd).st_nlink:
            self._close()
        if self._fd is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self.path, flags, 0o600)
            self._end_line(self._fd)
        written = os.fstat(self._fd).st_size
        room = self._max_bytes - written
        if room >= size or not written or self._halved:
            return self._fd, room
        self._close()
        self._rotate()
        return self._open(size)

    def _end_line(self, fd: int) -> None:
        """End a line that was cut when an earlier kernel was killed."""
        size = os.fstat(fd).st_size
        if not self._halved and size and os.pread(fd, 1, size - 1) != b"\n":
            os.write(fd, b"\n")

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _rotate(self) -> None:
        _file(self._folder, self._files - 1).unlink(missing_ok=True)
        for number in reversed(range(self._files - 1)):
            with contextlib.suppress(FileNotFoundError):
                _file(self._folder, number).rename(_file(self._folder, number + 1))


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def path_of(data_dir: Path) -> Path:
    """Return the file that is currently written to."""
    return _file(data_dir / FOLDER, 0)


def files_of(data_dir: Path) -> list[Path]:
    """Return the existing files, oldest first."""
    numbered = ((path.name.split(".")[1:-1], path) for path in (data_dir / FOLDER).glob(f"{STEM}*.jsonl"))
    found = [(int(number[0]) if number else 0, path) for number, path in numbered if not number or number[0].isdigit()]
    return [path for _, path in sorted(found, reverse=True)]


def _file(folder: Path, number: int) -> Path:
    return folder / (f"{STEM}.{number}.jsonl" if number else f"{STEM}.jsonl")


def entries(lines: Iterable[bytes]) -> Iterator[AuditEntry]:
    """Yield the readable entries."""
    return decoded(lines, AuditEntry)
