"""Disk failures reported to callers as such: full, over quota, read-only, failing, damaged.

Libraries report them in different ways (`OSError`, SQLite result codes). Background work pauses on a full disk and
continues when there is room (`retry_when_full`).
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol

import apsw
import trio

from proto.errors import Executed, OperationError

_FULL = "the disk is full"
_READ_ONLY = "the disk is read-only"
_FAILS = "the disk fails"

_ERRNO = {
    errno.ENOSPC: _FULL, errno.EDQUOT: "the disk quota is used up", errno.EROFS: _READ_ONLY, errno.EIO: _FAILS,
}  # fmt: skip
_SQLITE = {apsw.SQLITE_FULL: _FULL, apsw.SQLITE_READONLY: _READ_ONLY, apsw.SQLITE_IOERR: _FAILS}
"""https://www.sqlite.org/rescode.html; SQLite reports an exhausted quota as an I/O error."""

FULL_PAUSE_S = 0.5
"""Pause between attempts on a full disk, so that work resumes within a second of room being made."""

_log = logging.getLogger("linckia.service")


class DiskFull(OperationError):
    """The disk cannot take the write: it is full, over quota, read-only or failing. Nothing was done."""


class Damaged(OperationError):
    """Part of a file that cannot be recreated from other data is unreadable. Nothing was done."""


class Reports(Protocol):
    """`Environment`, as far as work that pauses needs it."""

    def info(self, **values: str) -> None: ...


async def retry_when_full(env: Reports, name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` to completion; if the disk cannot take a write, pause and run it again.

    It must be safe to restart `work` after any of its steps. During a pause, `status` shows the reason.

    Raises whatever else `work` raises.
    """
    paused = False
    while True:
        try:
            return await work()
        except (DiskFull, OSError) as error:
            trouble = trouble_of(error) or (isinstance(error, DiskFull) and str(error))
            if not trouble:
                raise
            if not paused:
                _log.warning("%s pauses: %s", name, error)
            paused = True
            env.info(**{name: f"paused: {trouble}"})
            await trio.sleep(FULL_PAUSE_S)
            env.info(**{name: ""})


def trouble_of(error: BaseException) -> str:
    """Return the disk problem that `error`, one of its causes or a member of its group reports; else empty."""
    return next((said for each in _all_of(error) if (said := _said(each))), "")


def starved_of(error: BaseException) -> str:
    """Return what the process has run out of, files or threads, according to `error` or its causes; else empty."""
    each: BaseException | None = error
    seen: set[int] = set()
    # An exception that is raised again while its consequence is handled appears in its own context.
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if isinstance(each, OSError) and each.errno == errno.EMFILE:
            return "open files"
        if isinstance(each, RuntimeError) and str(each) == "can't start new thread":
            return "threads"
        if isinstance(each, apsw.CantOpenError):
            # SQLite does not say why.
            try:
                os.close(os.dup(0))
            except OSError:
                return "open files"
        # The context counts even with `from None`, which errors for clients use.
        each = each.__cause__ or each.__context__
    return ""


def disk_full(error: BaseException, path: Path, executed: Executed = Executed.NO) -> DiskFull | None:
    """Return the failure for a disk error under `path`; None for any other error.

    Args:
        executed: `maybe` if no transaction has rolled back everything.
    """
    trouble = trouble_of(error)
    if not trouble:
        return None
    undone = executed is Executed.NO
    where = f"({path}): nothing was done." if undone else f"({path}, or where the call writes to)."
    return DiskFull(
        f"{trouble} {where} Acknowledged changes are kept. Make room and call again",
        executed=executed,
        retry_after_ms=int(FULL_PAUSE_S * 1000) if undone else None,
    )


def _said(error: BaseException) -> str:
    if isinstance(error, OSError):
        return _ERRNO.get(error.errno or 0, "")
    # `sqlite3.Error` and `apsw.Error`; extended codes have the primary one in the lowest byte.
    code = getattr(error, "sqlite_errorcode", None) or getattr(error, "result", None)
    return _SQLITE.get(code & 0xFF, "") if isinstance(code, int) else ""


def _all_of(error: BaseException) -> Iterator[BaseException]:
    yield error
    for each in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _all_of(each)
    if error.__cause__ is not None:
        yield from _all_of(error.__cause__)
