"""Texts in pieces of whole lines, each a row of its own in the index of trigrams.

A match lies in one line.  A long text has most trigrams somewhere, and so would be a candidate for most patterns; that
one short piece of it has all that a match needs is rare: among 59,000 source files and manuals a third to a sixth as
many texts have to be read as with one row for each text, and the index is twice as long.

Rows are numbered one after the other, which takes the least room in the lists of the index, in the order of contents,
which answers come in.  A content whose text comes late, as one that had to be extracted, has rows far beyond those.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import apsw

PIECE_CHARACTERS = 4096
MOST = 16
"""Pieces of one text; those of a longer one are longer."""
LATE = 1 << 40
"""From here on a row's number says which content it is a piece of."""


def cut(text: str) -> list[str]:
    """The pieces, `MOST` at most; an empty text is one."""
    least = max(PIECE_CHARACTERS, -(-len(text) // MOST))
    found: list[str] = []
    at = 0
    while len(text) - at > least:
        end = text.find("\n", at + least - 1) + 1
        if not end:
            break
        found.append(text[at:end])
        at = end
    if at < len(text) or not found:
        found.append(text[at:])
    return found


def put(db: apsw.Connection, object_: int, text: str) -> None:
    """Write a text that is not in the index yet into it; inside the caller's transaction, on the index alone."""
    parts = cut(text)
    last = db.execute(
        "SELECT object, first + pieces FROM done WHERE first < ? ORDER BY first DESC LIMIT 1", (LATE,)
    ).get
    first = 1
    if last is not None:
        before, first = last
        if object_ < before:
            first = LATE + object_ * MOST
    db.executemany("INSERT INTO trigram(rowid, text) VALUES(?, ?)", enumerate(parts, first))
    db.execute("INSERT INTO done(object, first, pieces) VALUES(?, ?, ?)", (object_, first, len(parts)))


def remove(db: apsw.Connection, object_: int) -> None:
    """Take a text out of the index, where it is there; inside the caller's transaction, on the index alone."""
    there = db.execute("SELECT first, pieces FROM done WHERE object=?", (object_,)).get
    if there is not None:
        first, count = there
        db.executemany("DELETE FROM trigram WHERE rowid=?", ((row,) for row in range(first, first + count)))
        db.execute("DELETE FROM done WHERE object=?", (object_,))


def having(db: apsw.Connection, expression: str, least: int) -> Iterator[int]:
    """The contents of which a piece fulfils an FTS5 expression, in their order, from `least` on; read as they are asked
    for, on a connection that has the index attached as `idx`."""
    if db.execute("SELECT 1 FROM idx.done WHERE first >= ? LIMIT 1", (LATE,)).get is None:
        return _in_turn(db, expression, least)
    return heapq.merge(_in_turn(db, expression, least), _late(db, expression, least))


_ROWS = "SELECT rowid FROM idx.trigram WHERE trigram MATCH ? AND rowid >= ? AND rowid < ? ORDER BY rowid"


def _in_turn(db: apsw.Connection, expression: str, least: int) -> Iterator[int]:
    query = "SELECT first FROM idx.done WHERE object >= ? AND first < ? ORDER BY object LIMIT 1"
    first = db.execute(query, (least, LATE)).get
    if first is None:
        return
    end = 0
    for (row,) in db.execute(_ROWS, (expression, first, LATE)):
        assert isinstance(row, int)
        if row >= end:
            query = "SELECT object, first + pieces FROM idx.done WHERE first <= ? ORDER BY first DESC LIMIT 1"
            object_, end = db.execute(query, (row,)).get
            yield object_


def _late(db: apsw.Connection, expression: str, least: int) -> Iterator[int]:
    last = -1
    for (row,) in db.execute(_ROWS, (expression, LATE + least * MOST, 1 << 62)):
        assert isinstance(row, int)
        object_ = (row - LATE) // MOST
        if object_ != last:
            last = object_
            yield object_
