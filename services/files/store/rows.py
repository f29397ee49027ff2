"""Rows of the database. What a column holds is decided by the schema, not by types: here each is `Any`, to be given its
type by whoever asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

Row = tuple[Any, ...]


# Rows and bindings are whatever the columns hold; who asks knows which, and SQLite's library checks what is bound.
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
