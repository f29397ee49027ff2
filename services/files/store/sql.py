"""Row helpers for queries, and SQL functions besides SQLite's own.

The schema decides what a column holds, not types: every value of a row is `Any`, and its reader knows the type. A
function call holds the interpreter lock: while very many rows are matched, the process waits for it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import apsw

from services.shared import linear

Row = tuple[Any, ...]


# Bindings may have any type that SQLite stores; apsw checks each one.
def fetch_all(db: apsw.Connection, sql: str, bindings: Sequence[Any] = ()) -> list[Row]:
    """Return all rows of a query."""
    return list(db.execute(sql, bindings))


def fetch_one(db: apsw.Connection, sql: str, bindings: Sequence[Any] = ()) -> Row | None:
    """Return the first row, or None."""
    return next(iter(db.execute(sql, bindings)), None)


def fetch_value(db: apsw.Connection, sql: str, bindings: Sequence[Any] = ()) -> Any:
    """Return the first column of the first row, or None."""
    found = fetch_one(db, sql, bindings)
    return None if found is None else found[0]


def register(connection: apsw.Connection) -> None:
    """Register the functions `matches` (RE2) and `folded` with a connection."""
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
    """Return a searcher that finds an RE2 pattern anywhere in a text. Raises BadPattern if the pattern is invalid.

    It is a set of one pattern: that reports only whether the pattern matches, not where, in half the time.
    """
    return linear.searching(pattern)


def is_pattern(text: str) -> bool:
    """True if RE2 accepts the text as a regular expression."""
    try:
        searcher(text)
    except linear.BadPattern:
        return False
    return True


def key(column: str) -> str:
    """Return an SQL expression for comparing `column` case-insensitively.

    SQLite's own `lower` handles only ASCII, which most names are; Python is called for the others.
    """
    return f"iif(octet_length({column}) = length({column}), lower({column}), folded({column}))"
