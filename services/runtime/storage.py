"""Failures of the disk under a service, told as such to the caller: full, over quota, read-only, failing, damaged.

Libraries report them in their own ways (`OSError`, the result codes of SQLite). Work in the background pauses on a full
disk, and goes on when there is room (`patiently`).
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import apsw
import trio

from linckia.proto.errors import Executed, OperationError
from linckia.services.runtime.handlers import Environment

_FULL = "the disk is full"
_READ_ONLY = "the disk is read-only"
_FAILS = "the disk fails"

_ERRNO = {
    errno.ENOSPC: _FULL, errno.EDQUOT: "the disk quota is used up", errno.EROFS: _READ_ONLY, errno.EIO: _FAILS,
}  # fmt: skip
_SQLITE = {apsw.SQLITE_FULL: _FULL, apsw.SQLITE_READONLY: _READ_ONLY, apsw.SQLITE_IOERR: _FAILS}
"""https://www.sqlite.org/rescode.html; a quota that is used up is an I/O error to SQLite."""

FULL_PAUSE_S = 0.5
"""Between two attempts on a full disk: work goes on within a second of room being made."""

_log = logging.getLogger("linckia.service")


class DiskFull(OperationError):
    """The disk cannot take the write: it is full, over quota, read-only or failing. Nothing was done."""


class Damaged(OperationError):
    """A file that cannot be made again from other data has a part that cannot be read. Nothing was done."""


async def patiently(env: Environment, name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` to its end; where the disk cannot take a write, pause and run it again.

    `work` must be one that may be begun again after any of its steps. While it pauses, `status` shows why.

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
    """What is wrong with the disk, in words, where `error` (or a cause or a member of it) says so; else ''."""
    return next((said for each in _all_of(error) if (said := _said(each))), "")


def starved_of(error: BaseException) -> str:
    """What the process can have no more of, where `error`, or what it was raised for, says so: files or threads."""
    each: BaseException | None = error
    seen: set[int] = set()
    # One that is raised again while what it led to is handled is its own context's context.
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if isinstance(each, OSError) and each.errno == errno.EMFILE:
            return "open files"
        if isinstance(each, RuntimeError) and str(each) == "can't start new thread":
            return "threads"
        if isinstance(each, apsw.CantOpenError):
            # Which does not tell why.
            try:
                os.close(os.dup(0))
            except OSError:
                return "open files"
        # Also where it was raised `from None`, as what clients are told is.
        each = each.__cause__ or each.__context__
    return ""


def disk_full(error: BaseException, path: Path, executed: Executed = Executed.NO) -> DiskFull | None:
    """The failure of what the disk under `path` did not take; None for any other error than the disk's.

    Args:
        executed: `maybe` where no transaction has undone all of it.
    """
    trouble = trouble_of(error)
    if not trouble:
        return None
    undone = executed is Executed.NO
    where = f"({path}): nothing was done, and" if undone else f"({path}, or where the call writes to);"
    return DiskFull(
        f"{trouble} {where} what was acknowledged before is kept. Make room, and call again",
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
