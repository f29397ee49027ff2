"""Files beside a database: as it was before its tables were migrated, and what was put aside as damaged.

The former, `NAME.before-vN`, is the way back should the new version not serve; a start after `KEPT_S` removes it. To go
back: stop Linckia, move the copy over the database, remove `NAME-wal` and `NAME-shm`, and start the version that wrote
it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from linckia.proto.durable import sync_folder

KEPT_S = 7 * 86_400

_log = logging.getLogger("linckia.service")


def keep(connection: apsw.Connection, path: Path, version: int) -> None:
    """Copy the open database at `path` before it becomes `version`; blocks. The copy is whole, or not there.

    Raises apsw.Error, OSError: the disk cannot take it, or a page is damaged.
    """
    part = path.with_name(f"{path.name}.before-v{version}.part")
    mode = stat.S_IMODE(path.stat().st_mode)
    os.close(os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, mode))
    try:
        with contextlib.closing(apsw.Connection(str(part))) as copy:
            with copy.backup("main", connection, "main") as steps:
                steps.step()
            # Otherwise the copy has a log of its own as soon as it is looked at.
            copy.pragma("journal_mode", "delete")
        part.replace(part.with_suffix(""))
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def forget(path: Path) -> None:
    """Remove the copies of the database at `path` that have been kept for long enough."""
    for copy in path.parent.glob(f"{path.name}.before-v*"):
        with contextlib.suppress(OSError):
            if copy.stat().st_mtime < time.time() - KEPT_S:
                copy.unlink()


def damaged_files(path: Path) -> list[Path]:
    """What was put aside of the database at `path`, the oldest first; each name ends with its time in nanoseconds."""
    return sorted(path.parent.glob(f"{path.name}.damaged-*"))


@contextlib.contextmanager
def opened(aside: Path) -> Iterator[apsw.Connection]:
    """The damaged database, to read. Raises apsw.Error."""
    # Without its log: SQLite must write nothing beside it.
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with contextlib.closing(apsw.Connection(f"{aside.as_uri()}?immutable=1", flags=flags)) as old:
        yield old


def readable(old: apsw.Connection, query: str, order: str) -> tuple[list[tuple[Any, ...]], bool]:
    """The rows of `query` up to the first page that is damaged, and by `order` from behind; whether that is all."""
    rows: list[tuple[Any, ...]] = []
    for each in (query, f"{query} ORDER BY {order} DESC"):
        try:
            # Not `list.extend`: what was read before an error is kept.
            for row in old.execute(each):
                rows.append(row)  # as said
        except apsw.Error as error:
            _log.warning("damaged: %s: %s", query, error)
        else:
            return rows, each is query
    return rows, False
