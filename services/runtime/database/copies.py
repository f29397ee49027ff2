"""Copies kept next to a database: the file before a migration, and files set aside as damaged.

`NAME.before-vN` is the copy made before a migration, in case the new version does not work. The first start after
`RETENTION_S` removes it. To go back: stop Linckia, move the copy over the database, remove `NAME-wal` and `NAME-shm`,
and start the version that wrote it.
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

from proto.host.durable import sync_folder

RETENTION_S = 7 * 86_400

_log = logging.getLogger("linckia.service")


def copy_before_migration(connection: apsw.Connection, path: Path, version: int) -> None:
    """Copy the open database at `path` before it is migrated to `version`; blocks. The copy is complete or absent.

    Raises apsw.Error or OSError if the disk cannot take it or a page is damaged.
    """
    part = path.with_name(f"{path.name}.before-v{version}.part")
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
    os.close(os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, mode))
    try:
        with contextlib.closing(apsw.Connection(str(part))) as copy:
            with copy.backup("main", connection, "main") as steps:
                steps.step()
            # Without this, the copy gets its own log as soon as anyone opens it.
            copy.pragma("journal_mode", "delete")
        part.replace(part.with_suffix(""))
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove_expired(path: Path) -> None:
    """Remove the copies of the database at `path` whose retention period is over."""
    for copy in path.parent.glob(f"{path.name}.before-v*"):
        with contextlib.suppress(OSError):
            if copy.stat().st_mtime < time.time() - RETENTION_S:
                copy.unlink()


def damaged_files(path: Path) -> list[Path]:
    """Return the damaged files set aside for the database at `path`, oldest first.

    Each name ends with the time in nanoseconds.
    """
    return sorted(path.parent.glob(f"{path.name}.damaged-*"))


@contextlib.contextmanager
def open_damaged(aside: Path) -> Iterator[apsw.Connection]:
    """Open a damaged database for reading. Raises apsw.Error."""
    # Ignore the log: SQLite must not write any file next to it.
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with contextlib.closing(apsw.Connection(f"{aside.as_uri()}?immutable=1", flags=flags)) as old:
        yield old


def read_intact(old: apsw.Connection, query: str, order: str) -> tuple[list[tuple[Any, ...]], bool]:
    """Read the rows of `query` up to the first damaged page, then from the other end in reverse `order`.

    Returns the rows, and True if they are complete.
    """
    rows: list[tuple[Any, ...]] = []
    for each in (query, f"{query} ORDER BY {order} DESC"):
        try:
            # Not `list.extend`, so that rows read before an error are kept.
            for row in old.execute(each):
                rows.append(row)
        except apsw.Error as error:
            _log.warning("damaged: %s: %s", query, error)
        else:
            return rows, each is query
    return rows, False
