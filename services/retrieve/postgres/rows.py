"""Rows of a collection on the server: its connection, the statistics of its words, and how values are stored."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, LiteralString, NamedTuple

import msgspec
import numpy as np
from pgvector import HalfVector
from psycopg import Cursor, sql

from services.retrieve.item_store import Metadata
from services.retrieve.postgres.server import Connection, parts
from services.retrieve.postgres.staging import Staging
from services.retrieve.vector_store import Model

CHUNK = 8192
"""How many ids one statement names."""


class Indexing(msgspec.Struct, frozen=True):
    """How vectors are searched on the server: `kind` is `flat`, `hnsw` or `binary` (`[retrieve.postgres]`)."""

    kind: str
    search: int
    """How many candidates the graph keeps (`hnsw.ef_search`)."""
    stages: bool = False
    """Whether the graph leaves out what is staged."""


class ServerVectors(NamedTuple):
    """`SearchedVectors`: the model, how many vectors of it there are, and how they are indexed."""

    model: Model
    vectors: int
    indexing: Indexing

    def __len__(self) -> int:
        return self.vectors


class WordCounts(msgspec.Struct):
    """The server's statistics of the words of a large collection."""

    items: int
    average: float
    held_by: dict[str, float]
    """The share of the items that hold a word, for the most common words."""


class ServerRows:
    """One connection, in a transaction or on one snapshot.

    Args:
        number: of the collection.
        counts: the statistics of a large collection; None if it is small.
        staging: decides which new vectors are staged.
    """

    def __init__(
        self, connection: Connection, schema: str, number: int, counts: WordCounts | None, staging: Staging
    ) -> None:
        self._connection = connection
        self._number = number
        self._parts = parts(schema, number)
        self._counts = counts
        self._staging = staging
        self.queued = 0
        """How many items this transaction added to the outbox, less those it removed."""
        self.made = 0
        """How many vectors it added to those that are searched."""

    def _run(self, query: LiteralString, arguments: Sequence[Any] = (), **more: sql.Composable) -> Cursor[Any]:
        statement = sql.SQL(query).format(**self._parts, **more)
        return self._connection.execute(statement, arguments)

    def _rows(self, query: LiteralString, arguments: Sequence[Any] = (), **more: sql.Composable) -> list[Any]:
        return self._run(query, arguments, **more).fetchall()

    def _many(self, query: LiteralString, rows: Sequence[Sequence[Any]], **more: sql.Composable) -> None:
        if rows:
            with self._connection.cursor() as cursor:
                cursor.executemany(sql.SQL(query).format(**self._parts, **more), rows)

    def _one(self, query: LiteralString, arguments: Sequence[Any] = (), **more: sql.Composable) -> Any:
        row = self._run(query, arguments, **more).fetchone()
        return None if row is None else row[0]


def indexed(dimensions: int, *, binary: bool, of: LiteralString = "vector") -> sql.Composable:
    """Return the expression that an index holds; a query must use the same one."""
    half = typed(of, dimensions)
    if not binary:
        return half
    return sql.SQL("(binary_quantize({half})::bit({dimensions}))").format(half=half, dimensions=sql.Literal(dimensions))


def typed(of: LiteralString, dimensions: int) -> sql.Composable:
    return sql.SQL("({of}::halfvec({dimensions}))").format(of=sql.SQL(of), dimensions=sql.Literal(dimensions))


def half_vector(vector: bytes) -> HalfVector:
    return HalfVector(np.frombuffer(vector, dtype="<f2"))


_ESCAPE, _NUL = "\ufdd0", "\ufdd0\ufdd1"


def stored(text: str) -> str:
    """Return `text` as the server can store it: it has no NUL.  U+FDD0, which stands for no character, escapes it."""
    if "\0" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, 2 * _ESCAPE).replace("\0", _NUL)
    return text


def given(text: str) -> str:
    """Return a `stored` text as it was given."""
    if _ESCAPE not in text:
        return text
    parts_ = text.split(2 * _ESCAPE)
    return _ESCAPE.join(part.replace(_NUL, "\0") for part in parts_)


def read_metadata(text: str) -> Metadata:
    return msgspec.json.decode(text, type=Metadata)


def divided(value: str | int | float) -> tuple[str | None, Decimal | None]:
    """Return a value as a word or a number."""
    if isinstance(value, str):
        return stored(value), None
    # As it is written, because the binary number nearest to 0.1 is not 0.1.
    return None, Decimal(repr(value))
