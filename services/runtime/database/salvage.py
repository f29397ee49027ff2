"""What can still be read of a damaged database that was put aside."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

_log = logging.getLogger("linckia.service")


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
