"""Rows of the database. The schema decides what a column holds, not types: each value is `Any`, and its reader
knows the type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

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
