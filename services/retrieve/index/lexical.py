"""The authoritative word index: BM25 over FTS5, updated in the same transaction as the text.

The index is contentless, so removing a row requires the exact words it was added with. `VERSION` identifies how words
are made. Damage to any page raises `WordsDamaged`, and only the index is rebuilt from the items. SQLite does not notice
all damage (a page of zeros reads as "no such word"); `check` finds it by comparing the index with the items.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import apsw

from services.retrieve.filters import Where
from services.retrieve.index.terms import indexed, query_terms, spellings

VERSION = "3"
"""Version of `terms` and of the table below.  If a database has another one, its index is rebuilt."""

TITLE_WEIGHT, HEADING_WEIGHT = 2.0, 1.5
"""Relative to 1 for the text."""

TOKENIZER = ("porter", "unicode61", "remove_diacritics", "2", "categories", "L* N* Co Mn Mc", "tokenchars", "_")
"""The categories include marks because vowels in Thai and Indian scripts are marks, which would otherwise split words.
"""

_PROBES = 50

_COMMON = 1000
"""Pieces containing a word are counted only up to this number."""

_INDEXED = (
    "SELECT item_id, groups.title || ' ' || groups.names, heading, text FROM items "
    "JOIN groups ON groups.group_id = items.group_id"
)
"""Selects the words by which each item is found."""


class WordsDamaged(Exception):
    """The index is damaged and has to be rebuilt from the items."""


@contextlib.contextmanager
def _noticing_damage() -> Iterator[None]:
    try:
        yield
    except (apsw.CorruptError, apsw.SQLError) as error:
        raise WordsDamaged(str(error)) from error


class Row(NamedTuple):
    """The terms by which one item is found, separated by spaces."""

    item_id: int
    title: str
    heading: str
    text: str


def row_of(item_id: int, title: str, heading: str, text: str) -> Row:
    """Return the index row of an item."""
    return Row(item_id, indexed(title), indexed(heading), indexed(text))


class Fts5:
    """The index in the collection's database, on one connection.  Methods block and may raise WordsDamaged."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def add(self, rows: Iterable[Row]) -> None:
        with _noticing_damage():
            self._db.executemany("INSERT INTO words (rowid, title, heading, text) VALUES (?, ?, ?, ?)", rows)

    def remove(self, rows: Iterable[Row]) -> None:
        """Remove `rows`, exactly as they were added."""
        sql = "INSERT INTO words (words, rowid, title, heading, text) VALUES ('delete', ?, ?, ?, ?)"
        with _noticing_damage():
            self._db.executemany(sql, rows)

    def search(self, query: str, limit: int, where: Where | None) -> list[tuple[int, float]]:
        """Return item ids and BM25 scores (greater is better), best first.  Any text is a valid query."""
        found = query_terms(query)
        if not found:
            return []
        match = " OR ".join(map(_expression, found))
        sql = "SELECT rowid, rank FROM words WHERE words MATCH ?"
        arguments: tuple[str | int | float, ...] = (match,)
        if where is not None:
            # The plus keeps SQLite from querying the index once per admitted item.
            sql += f" AND +rowid IN (SELECT item_id FROM items WHERE group_id IN ({where.groups}))"
            arguments = (match, *where.arguments)
        with _noticing_damage():
            rows = self._db.execute(f"{sql} ORDER BY rank LIMIT ?", (*arguments, limit))
            return [(item_id, -rank) for item_id, rank in rows]

    def weights(self, query: str) -> dict[str, float]:
        """Return the words of a query with their inverse document frequency, at least 0.1."""
        count = self._db.execute("SELECT coalesce(max(item_id), 0) FROM items").get
        sql = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)"
        with _noticing_damage():
            return {
                term: max(0.1, math.log((count + 1) / (self._db.execute(sql, (_expression(term), _COMMON)).get + 0.5)))
                for term in query_terms(query)
            }

    def held(self, terms: Iterable[str], items: Sequence[int]) -> dict[int, list[str]]:
        """Map each item to those of `terms` that it holds."""
        with _noticing_damage():
            return {item: [term for term in terms if _holds(self._db, item, term)] for item in items}


def _holds(db: apsw.Connection, item: int, term: str) -> bool:
    return (
        db.execute("SELECT 1 FROM words WHERE words MATCH ? AND rowid = ?", (_expression(term), item)).get is not None
    )


def _expression(term: str) -> str:
    """Return an FTS5 expression for `term` in any spelling.  Quoting disables FTS5 syntax; terms contain no quotes."""
    return " OR ".join(f'"{each}"' for each in (term, *spellings(term)))


def create(db: apsw.Connection) -> None:
    """Create an empty index."""
    tokenizer = " ".join(f"'{each}'" for each in TOKENIZER)
    db.execute(f"CREATE VIRTUAL TABLE words USING fts5 (title, heading, text, content='', tokenize=\"{tokenizer}\")")
    db.execute("INSERT INTO words (words, rank) VALUES ('rank', ?)", (f"bm25({TITLE_WEIGHT}, {HEADING_WEIGHT}, 1.0)",))
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('lexical_version', ?)", (VERSION,))


def is_current(db: apsw.Connection) -> bool:
    """Return whether the index was made by this version."""
    found: str | None = db.execute("SELECT value FROM meta WHERE key = 'lexical_version'").get
    return found == VERSION


def rebuild(db: apsw.Connection, readable: bool = True) -> None:
    """Rebuild the index from the items, inside the caller's transaction.

    Args:
        readable: the result of `is_readable`.
    """
    _drop(db, readable)
    create(db)
    Fts5(db).add(row_of(*each) for each in db.execute(_INDEXED))


def merge(db: apsw.Connection) -> None:
    """Purge removed rows from the index, inside the caller's transaction."""
    with _noticing_damage():
        db.execute("INSERT INTO words (words) VALUES ('optimize')")


def rows(db: apsw.Connection, ids: Sequence[int]) -> list[Row]:
    """Return the rows of those of `ids` (at most 500) that exist."""
    found = db.execute(f"{_INDEXED} WHERE item_id IN ({', '.join('?' * len(ids))})", ids)
    return [row_of(*each) for each in found]


def check(db: apsw.Connection) -> str:
    """Compare the index with the items.  Returns what is wrong, or an empty string.

    Reads the whole index, which takes a second for half a million items. `db` is only read; the caller has started a
    transaction, so it sees one snapshot.
    """
    try:
        items = db.execute("SELECT count(*) FROM items").get
        sized = db.execute("SELECT count(*) FROM words_docsize").get
        if sized != items:
            return f"it holds {sized} of {items} pieces"
        record: bytes | None = db.execute("SELECT block FROM words_data WHERE id = 1").get
        counted, *tokens = _varints(record or b"") or [0]
        if counted != items and (items or counted):
            return f"its counter says {counted} pieces, but there are {items}"
        found = db.execute("SELECT coalesce(sum(cnt), 0) FROM temp.words_seen").get
        if found != sum(tokens):
            return f"it holds {found} of the {sum(tokens)} words that were added"
        return _probe(db)
    except (apsw.CorruptError, apsw.SQLError) as error:
        return str(error)


def prepare_check(db: apsw.Connection) -> None:
    """Create the temporary table that `check` needs on this connection, outside any transaction."""
    db.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.words_seen USING fts5vocab('main', 'words', 'row')")


def _probe(db: apsw.Connection) -> str:
    """Check that a sample of items is found by their own words, as the index's tree may be damaged above its leaves.

    Returns what is wrong, or an empty string.
    """
    last = db.execute("SELECT coalesce(max(item_id), 0) FROM items").get
    dice = random.Random(last)
    chosen = {dice.randint(1, last) for _ in range(_PROBES)} if last else set()
    for each in rows(db, sorted(chosen)):
        terms = dict.fromkeys(f"{each.title} {each.heading} {each.text}".split())
        for term in dice.sample(sorted(terms), min(2, len(terms))):
            if not _holds(db, each.item_id, term):
                return f"piece {each.item_id} is not found by its word {term!r}"
    return ""


def is_readable(db: apsw.Connection) -> bool:
    """Return whether every page of the index can be read.

    Do not use the connection that rebuilds the index: after reading a bad page, a transaction cannot change the schema.
    """
    try:
        return all(db.execute(f"PRAGMA quick_check({part})").get == "ok" for part in _parts(db))
    except (apsw.CorruptError, apsw.SQLError):
        return False


def _parts(db: apsw.Connection) -> list[str]:
    """Return the names of the index's tables."""
    return [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE name GLOB 'words_*'")]


def _drop(db: apsw.Connection, readable: bool) -> None:
    parts = _parts(db)
    if readable:
        with contextlib.suppress(apsw.CorruptError, apsw.SQLError):
            db.execute("DROP TABLE IF EXISTS words")
            return
    # Unreadable pages cannot be freed, so only the schema entries are deleted.
    gone = ["words", *([] if readable else parts)]
    db.execute("PRAGMA writable_schema=ON")
    try:
        db.execute(f"DELETE FROM sqlite_master WHERE tbl_name IN ({', '.join('?' * len(gone))})", gone)
    finally:
        db.execute("PRAGMA writable_schema=RESET")
    for part in parts if readable else ():
        db.execute(f"DROP TABLE IF EXISTS {part}")


def _varints(data: bytes) -> list[int]:
    """Decode SQLite's variable-length integers: seven bits per byte, most significant first."""
    values: list[int] = []
    value = 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            values.append(value)
            value = 0
    return values
