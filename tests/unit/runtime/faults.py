"""Faults under SQLite, for tests: a disk that is full at a chosen statement, commit or write, and damaged pages.

They reach every connection that is opened while they last, without a hook in the product: by apsw's own hooks.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import apsw

_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE|COMMIT|CREATE|DROP|ALTER)", re.IGNORECASE)
PAGE_BYTES = 4096


def is_write(statement: str) -> bool:
    """Return whether a statement changes the database file."""
    return _WRITES.match(statement) is not None


class Disk:
    """A disk that may be full: from its `full_at`th write statement from now on, until there is `room` again."""

    def __init__(self) -> None:
        self.full_at: int | None = None
        self.seen = 0
        self._behind: str | None = None
        self._full = full_error()

    def fill(self, at: int = 1) -> None:
        """The `at`th statement that writes, counted from now, and all after it, find the disk full."""
        self.full_at, self.seen, self._behind = at, 0, None

    def fill_behind(self, statement: str) -> None:
        """All that writes after the transaction with the next statement that begins so finds the disk full.

        For services whose background work writes as well, at moments of its own.
        """
        self.full_at, self.seen, self._behind = 1, 0, statement

    def room(self) -> None:
        """Make room."""
        self.full_at = None

    @property
    def struck(self) -> bool:
        """Whether a statement has found the disk full since `fill`."""
        return self.full_at is not None and self.seen >= self.full_at

    def _trace(self, cursor: apsw.Cursor, statement: str, bindings: object) -> bool:
        if self.full_at is None or not is_write(statement):
            return True
        if self._behind is not None:
            if self._behind == "COMMIT" and statement.startswith("COMMIT"):
                self._behind = None
            elif statement.lstrip().startswith(self._behind):
                self._behind = "COMMIT"
            return True
        self.seen += 1
        if self.seen < self.full_at:
            return True
        connection = cursor.connection
        if connection.in_transaction:
            # As SQLite does after some of these errors.
            with self._paused():
                connection.execute("ROLLBACK")
        raise self._full

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        kept, self.full_at = self.full_at, None
        try:
            yield
        finally:
            self.full_at = kept

    def hook(self, connection: apsw.Connection) -> None:
        """For `apsw.connection_hooks`."""
        connection.exec_trace = self._trace


def full_error() -> apsw.Error:
    """As SQLite raises it, with its result code."""
    connection = apsw.Connection(":memory:")
    connection.execute("PRAGMA max_page_count=2; CREATE TABLE t(x)").fetchall()
    try:
        connection.execute("INSERT INTO t VALUES(zeroblob(100000))")
    except apsw.FullError as error:
        return error
    raise AssertionError("a database of two pages took a hundred kilobytes")


@contextlib.contextmanager
def disk() -> Iterator[Disk]:
    """Every connection opened within the block is on this disk, for as long as it lives."""
    one = Disk()
    apsw.connection_hooks.append(one.hook)
    try:
        yield one
    finally:
        apsw.connection_hooks.remove(one.hook)


def files_in(folder: Path, pattern: str = "*") -> list[Path]:
    """What lies in a folder by now."""
    return sorted(folder.glob(pattern))


def page_count(path: Path) -> int:
    """Return the number of pages in a database's file."""
    return path.stat().st_size // PAGE_BYTES


def damage_page(path: Path, page: int) -> None:
    """Overwrite one page (from 1) of a database that is closed and whose log is in it."""
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE_BYTES)
        file.write(b"\xa5" * PAGE_BYTES)


def pages_of(path: Path, table: str) -> list[int]:
    """The pages of a table or index."""
    connection = apsw.Connection(str(path))
    try:
        return [
            int(str(page))
            for (page,) in connection.execute("SELECT pageno FROM dbstat WHERE name = ? ORDER BY 1", (table,))
        ]
    finally:
        connection.close()
