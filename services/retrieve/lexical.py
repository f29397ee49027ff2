"""The word index: BM25 over FTS5, in the same transaction as the text it stands for.

`LexicalIndex` is all that the rest knows, so that another index can take over for large collections. The index keeps
no text of its own; a row is taken out by the very words that it was put in with, hence the version that says how
words were made.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from services.retrieve.filters import Where
from services.retrieve.terms import indexed, query_terms

VERSION = "1"
"""Of `terms` and of the table below together; another one in a database makes its index anew."""

TITLE_WEIGHT, HEADING_WEIGHT = 2.0, 1.5
"""Against 1 for the text."""


class Words(NamedTuple):
    """What one item is found by."""

    item_id: int
    title: str
    heading: str
    text: str


class LexicalIndex(Protocol):
    """Items by words.  Methods block."""

    def add(self, items: Iterable[Words]) -> None: ...

    def remove(self, items: Iterable[Words]) -> None:
        """`items` as they were added."""

    def search(self, query: str, limit: int, where: Where | None) -> list[tuple[int, float]]:
        """Item ids and BM25 scores (greater is better), best first; any text is a query."""


class Fts5:
    """The index in the collection's own database, over one connection to it."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add(self, items: Iterable[Words]) -> None:
        self._db.executemany("INSERT INTO words (rowid, title, heading, text) VALUES (?, ?, ?, ?)", map(_row, items))

    def remove(self, items: Iterable[Words]) -> None:
        self._db.executemany(
            "INSERT INTO words (words, rowid, title, heading, text) VALUES ('delete', ?, ?, ?, ?)", map(_row, items)
        )

    def search(self, query: str, limit: int, where: Where | None) -> list[tuple[int, float]]:
        found = query_terms(query)
        if not found:
            return []
        # Quoted, a term is a term whatever it looks like; terms hold no quotation marks.
        match = " OR ".join(f'"{term}"' for term in found)
        sql = "SELECT rowid, rank FROM words WHERE words MATCH ?"
        arguments: Sequence[object] = (match,)
        if where is not None:
            # The plus keeps SQLite from asking the index once for every item that the filter admits.
            sql += f" AND +rowid IN (SELECT item_id FROM items WHERE group_id IN ({where.groups}))"
            arguments = (match, *where.arguments)
        rows = self._db.execute(f"{sql} ORDER BY rank LIMIT ?", (*arguments, limit))
        return [(int(item_id), -float(rank)) for item_id, rank in rows]


def create(db: sqlite3.Connection) -> None:
    """Make an empty index."""
    db.execute(
        "CREATE VIRTUAL TABLE words USING fts5 "
        "(title, heading, text, content='', tokenize=\"porter unicode61 remove_diacritics 2 tokenchars '_'\")"
    )
    db.execute("INSERT INTO words (words, rank) VALUES ('rank', ?)", (f"bm25({TITLE_WEIGHT}, {HEADING_WEIGHT}, 1.0)",))
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('lexical_version', ?)", (VERSION,))


def is_current(db: sqlite3.Connection) -> bool:
    """Whether the index was made by this version."""
    row = db.execute("SELECT value FROM meta WHERE key = 'lexical_version'").fetchone()
    return row is not None and row[0] == VERSION


def rebuild(db: sqlite3.Connection) -> None:
    """Make the index anew from the items; within the caller's transaction."""
    db.execute("DROP TABLE IF EXISTS words")
    create(db)
    items = db.execute(
        "SELECT item_id, groups.title, heading, text FROM items JOIN groups ON groups.group_id = items.group_id"
    )
    Fts5(db).add(Words(*row) for row in items)


def _row(item: Words) -> tuple[int, str, str, str]:
    return item.item_id, indexed(item.title), indexed(item.heading), indexed(item.text)
