"""What goes wrong with the disk under a service, told as such to whoever called it: full, read-only, failing.

Libraries say it in their own ways (`OSError`, the result codes of SQLite in `sqlite3` and `apsw`); a caller can do
something about it only once it is named.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proto.errors import Executed, OperationError

_FULL: Final = "the disk is full"
_READ_ONLY: Final = "the disk is read-only"
_FAILS: Final = "the disk fails"

_ERRNO: Final = {
    errno.ENOSPC: _FULL, errno.EDQUOT: "the disk quota is used up", errno.EROFS: _READ_ONLY, errno.EIO: _FAILS,
}  # fmt: skip
_SQLITE: Final = {13: _FULL, 8: _READ_ONLY, 10: _FAILS}
"""SQLITE_FULL, SQLITE_READONLY, SQLITE_IOERR; https://www.sqlite.org/rescode.html"""


def trouble_of(error: BaseException) -> str:
    """What is wrong with the disk, in words, where that is what `error` tells (or a cause or a member of it); or ''."""
    return next((said for each in _all_of(error) if (said := _said(each))), "")


def as_failure(error: BaseException, data_dir: Path) -> OperationError | None:
    """What a caller is told of an `error` that is the disk's; None for any other."""
    trouble = trouble_of(error)
    if not trouble:
        return None
    return OperationError(
        f"{trouble} ({data_dir}, or where the call writes to); what was acknowledged before is kept. "
        "Make room, and call again",
        # A transaction that failed so was undone; but a call may have made several.
        executed=Executed.MAYBE,
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
