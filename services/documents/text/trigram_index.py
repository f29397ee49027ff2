"""The trigram index: texts are split into pieces of whole lines, one row each.

A match lies within one line. A long text contains most trigrams somewhere, so it would be a candidate for most
patterns, but a single short piece rarely has all the trigrams of a match. For 60,000 source files and manuals (930 MB),
pieces of 2 KB make 330,000 rows and 235 MB. With pieces of 4 KB and at most 16 per text, there were half as many rows
and 173 MB, but up to three times as many texts were read in vain.

A sample of the pieces tells which trigrams are common in this store, and so which of a pattern's trigrams to look up.

Rows are numbered consecutively, which keeps the posting lists small, and in the order of contents, which is the order
of results. Texts that arrive late, such as extracted ones, get row numbers in a separate high range.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence

import apsw

from services.shared import literals
from services.shared.literals import Query

PIECE_BYTES = 2048
MOST = 128
"""Maximum number of pieces per text; long texts have longer pieces."""
SAMPLED_OF = 128
"""One of this many pieces is sampled."""
LATE = 1 << 40
"""Start of the range of late rows, whose numbers encode the content."""
RAREST = 6
"""Number of trigrams to look up in a conjunction.  On 8,000 source files, 17 patterns took as long as with a cost
model; looking up all trigrams took up to three times as long, and looking up four up to twice.
"""
MAX_TERMS = 1000
"""Maximum number of trigrams in a query.  A query with more admits everything."""
Rarity = Callable[[str], tuple[float, float]]
"""Sort key of trigrams, rarest first."""


def ends(text: bytes) -> list[int]:
    """Return the end offsets of the pieces of a UTF-8 text, at most `MOST`.  An empty text is one piece."""
    least = max(PIECE_BYTES, -(-len(text) // MOST))
    found: list[int] = []
    at = 0
    while at < len(text) - least and (end := text.find(b"\n", at + least - 1) + 1):
        found.append(end)
        at = end
    if at < len(text) or not found:
        found.append(len(text))
    return found


def put(db: apsw.Connection, object_: int, text: bytes) -> None:
    """Add a text that is not in the index yet, inside the caller's transaction on the index database."""
    query = "SELECT object, first + pieces FROM done WHERE first < ? ORDER BY first DESC LIMIT 1"
    before, first = db.execute(query, (LATE,)).get or (0, 1)
    if object_ < before:
        first = LATE + object_ * MOST
    till = ends(text)
    parts = [text[start:end].decode("utf-8", "replace") for start, end in itertools.pairwise((0, *till))]
    db.executemany("INSERT INTO trigram(rowid, text) VALUES(?, ?)", enumerate(parts, first))
    # The row alone would not do, since late texts always start at a multiple.
    _sample(db, first + object_, parts)
    db.execute("INSERT INTO done(object, first, pieces) VALUES(?, ?, ?)", (object_, first, len(till)))


def _sample(db: apsw.Connection, turn: int, parts: Sequence[str]) -> None:
    """Count the trigrams of some pieces.  Counts of removed texts stay, as only rough numbers are needed."""
    for part in parts[-turn % SAMPLED_OF :: SAMPLED_OF]:
        some = {part[at : at + 3] for at in range(len(part) - 2)}
        db.executemany(
            "INSERT INTO sample(trigram, pieces) VALUES(?, 1) ON CONFLICT(trigram) DO UPDATE SET pieces=pieces+1",
            ((trigram,) for trigram in sorted(some)),
        )


def expression_of(db: apsw.Connection, query: Query) -> str | None:
    """Return an FTS5 expression of the trigrams to look up; None if any text may match.

    `db` has the index attached as `idx`.
    """
    counts = "SELECT trigram, pieces FROM carray(?) AS one JOIN idx.sample ON trigram = one.value"
    wanted = tuple(terms(query))
    found: dict[str, int] = dict(db.execute(counts, (apsw.carray(wanted),))) if wanted else {}
    query = thinned(query, lambda one: (found.get(one, 0), literals.commonness(one)))
    return None if query.op == "any" or _size(query) > MAX_TERMS else _expression(query)


def remove(db: apsw.Connection, object_: int) -> None:
    """Remove a text from the index if present, inside the caller's transaction on the index database."""
    there = db.execute("SELECT first, pieces FROM done WHERE object=?", (object_,)).get
    if there is not None:
        first, count = there
        db.executemany("DELETE FROM trigram WHERE rowid=?", ((row,) for row in range(first, first + count)))
        db.execute("DELETE FROM done WHERE object=?", (object_,))


def having(db: apsw.Connection, expression: str, least: int) -> Iterator[int]:
    """Yield the contents from id `least` on that have a piece matching an FTS5 expression, in order and lazily.

    `db` has the index attached as `idx`.
    """
    rows = "SELECT rowid FROM idx.trigram WHERE trigram MATCH ? AND rowid >= ? AND rowid < ? ORDER BY rowid"
    query = "SELECT first FROM idx.done WHERE object >= ? AND first < ? ORDER BY object LIMIT 1"
    begin = db.execute(query, (least, LATE)).get
    in_turn = _in_turn(db, db.execute(rows, (expression, LATE if begin is None else begin, LATE)))
    if db.execute("SELECT 1 FROM idx.done WHERE first >= ? LIMIT 1", (LATE,)).get is None:
        return in_turn
    late = ((row - LATE) // MOST for (row,) in db.execute(rows, (expression, LATE + least * MOST, 1 << 62)))
    return heapq.merge(in_turn, (object_ for object_, _ in itertools.groupby(late)))


def _in_turn(db: apsw.Connection, rows: apsw.Cursor) -> Iterator[int]:
    query = "SELECT object, first + pieces FROM idx.done WHERE first <= ? ORDER BY first DESC LIMIT 1"
    end = 0
    for (row,) in rows:
        if row >= end:
            object_, end = db.execute(query, (row,)).get
            yield object_


def terms(query: Query) -> frozenset[str]:
    return query.trigrams.union(*map(terms, query.parts))


def thinned(query: Query, rarity: Rarity) -> Query:
    """Return the query with only the rarest trigrams of each conjunction."""
    parts = tuple(dict.fromkeys(thinned(part, rarity) for part in query.parts))
    ordered = sorted(query.trigrams, key=lambda one: (rarity(one), one))
    return Query(query.op, frozenset(ordered[:RAREST] if query.op == "and" else ordered), parts)


def _size(query: Query) -> int:
    return len(query.trigrams) + sum(map(_size, query.parts))


def _expression(query: Query) -> str:
    quoted = [f'"{trigram.replace(chr(34), chr(34) * 2)}"' for trigram in sorted(query.trigrams)]
    inner = [_expression(part) for part in query.parts]
    joined = (" AND " if query.op == "and" else " OR ").join([*quoted, *inner])
    return f"({joined})"
