"""Statements about many rows at once.

While SQLite works the interpreter is free for other threads, and is asked for again at the end of each step.  Where
those threads read and compress, a hundred statements of one row wait for it a hundred times, one of a hundred rows
once; that is most of the time that a bulk add would take.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

import apsw

_ROWS = 128


def insert(db: apsw.Connection, table: str, rows: Sequence[tuple[apsw.SQLiteValue, ...]]) -> None:
    """Insert rows into `table(column, …)`."""
    if not rows:
        return
    row = f"({', '.join('?' * len(rows[0]))})"
    whole = len(rows) - len(rows) % _ROWS
    many = f"INSERT INTO {table} VALUES{', '.join([row] * _ROWS)}"
    for start in range(0, whole, _ROWS):
        db.execute(many, tuple(chain.from_iterable(rows[start : start + _ROWS])))
    if whole < len(rows):
        rest = rows[whole:]
        db.execute(f"INSERT INTO {table} VALUES{', '.join([row] * len(rest))}", tuple(chain.from_iterable(rest)))


def ids(numbers: Iterable[int]) -> apsw.CArrayBinding:
    """Numbers of rows as the table `carray(?)`, which cannot be empty: for none it has -1, the number of no row."""
    return apsw.carray(array("q", numbers) or array("q", (-1,)))


def next_id(db: apsw.Connection, table: str) -> int:
    """The number that the next row of a table will get, which numbers its rows by AUTOINCREMENT."""
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name=?", (table,)).fetchone()
    return 1 if row is None else int(str(row[0])) + 1
