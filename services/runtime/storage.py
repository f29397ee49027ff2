"""Failures of the disk under a service, told as such to the caller: full, over quota, read-only, failing, damaged.

Libraries report them in their own ways (`OSError`, the result codes of SQLite); a caller can act on them only once
they are named.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw

from proto.errors import Executed, OperationError

_FULL: Final = "the disk is full"
_READ_ONLY: Final = "the disk is read-only"
_FAILS: Final = "the disk fails"

_ERRNO: Final = {
    errno.ENOSPC: _FULL, errno.EDQUOT: "the disk quota is used up", errno.EROFS: _READ_ONLY, errno.EIO: _FAILS,
}  # fmt: skip
_SQLITE: Final = {apsw.SQLITE_FULL: _FULL, apsw.SQLITE_READONLY: _READ_ONLY, apsw.SQLITE_IOERR: _FAILS}
"""https://www.sqlite.org/rescode.html; a quota that is used up is an I/O error to SQLite."""

RETRY_MS: Final = 500


class DiskFull(OperationError):
    """The disk cannot take the write: it is full, over quota, read-only or failing. Nothing was done."""


class Damaged(OperationError):
    """A file that cannot be made again from other data has a part that cannot be read. Nothing was done."""


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk: a new file's name has to be there as well as its content. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def trouble_of(error: BaseException) -> str:
    """What is wrong with the disk, in words, where `error` (or a cause or a member of it) says so; else ''."""
    return next((said for each in _all_of(error) if (said := _said(each))), "")


def disk_full(error: BaseException, path: Path) -> DiskFull | None:
    """The failure of a transaction that was undone because of the disk under `path`; None for any other error."""
    trouble = trouble_of(error)
    if not trouble:
        return None
    return DiskFull(
        f"{trouble} ({path}): nothing was done, and what was acknowledged before is kept. Make room, and call again",
        retry_after_ms=RETRY_MS,
    )


def as_failure(error: BaseException, data_dir: Path, executed: Executed = Executed.MAYBE) -> OperationError | None:
    """What a caller is told of an `error` of the disk that no transaction has undone; None for any other error."""
    trouble = trouble_of(error)
    if not trouble:
        return None
    return DiskFull(
        f"{trouble} ({data_dir}, or where the call writes to); what was acknowledged before is kept. "
        "Make room, and call again",
        # The call may have made several transactions before this.
        executed=executed,
    )


def _said(error: BaseException) -> str:
    if isinstance(error, OSError):
        return _ERRNO.get(error.errno or 0, "")
    # `sqlite3.Error` and `apsw.Error`; extended codes have the primary one in the lowest byte.
    code = getattr(error, "sqlite_errorcode", None) or getattr(error, "result", None)
    return _SQLITE.get(code & 0xFF, "") if isinstance(code, int) else ""


def _all_of(error: BaseException) -> Iterator[BaseException]:
    yield error
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _all_of(each)
    if error.__cause__ is not None:
        yield from _all_of(error.__cause__)
