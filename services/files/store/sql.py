"""What every query uses: its rows, and the functions that SQL calls beside SQLite's own.

The schema decides what a column holds, not types: each value of a row is `Any`, and its reader knows the type. A call
of a function holds the lock of the interpreter: where very many rows are matched, the process waits for it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import apsw

from linckia.services.runtime import linear

Row = tuple[Any, ...]


# Bindings are of any type that SQLite stores; its library checks each.
def fetch_all(db: apsw.Connection, sql: str, bindings: Sequence[Any] = ()) -> list[Row]:
    """All rows of a query."""
    return list(db.execute(sql, bindings))


def fetch_one(db: apsw.Connection, sql: str, bindings: Sequence[Any] = ()) -> Row | None:
    """The first row; None where there is none."""
    return next(iter(db.execute(sql, bindings)), None)


def fetch_value(db: apsw.Connection, sql: str, bindings: Sequence[Any] = ()) -> Any:
    """The first column of the first row; None where there is none."""
    found = fetch_one(db, sql, bindings)
    return None if found is None else found[0]


def register(connection: apsw.Connection) -> None:
    """Make the functions `matches` (of RE2) and `folded` known to a connection."""
    connection.create_scalar_function("matches", _matches, 2, deterministic=True)
    connection.create_scalar_function("folded", _folded, 1, deterministic=True)


def _matches(*arguments: Any) -> bool:
    pattern, text = arguments
    return bool(searcher(pattern).Match(text))


def _folded(*arguments: Any) -> str:
    text: str = arguments[0]
    return text.casefold()


@functools.lru_cache(maxsize=256)
def searcher(pattern: str) -> Any:
    """What finds an RE2 pattern anywhere in a text. Raises BadPattern where it is none.

    A set of one pattern, since it only says whether and not where, in half the time.
    """
    return linear.searching(pattern)


def is_pattern(text: str) -> bool:
    """Whether it is a regular expression that RE2 takes."""
    try:
        searcher(text)
    except linear.BadPattern:
        return False
    return True


def key(column: str) -> str:
    """An SQL expression: the text of `column` for comparison without regard to case.

    SQLite's own `lower` knows ASCII alone, which most names are; Python is called for the others.
    """
    return f"iif(octet_length({column}) = length({column}), lower({column}), folded({column}))"
