"""Texts in pieces of whole lines, each a row of its own in the index of trigrams; and which trigrams of a pattern are
worth asking that index for.

A match lies in one line.  A long text has most trigrams somewhere, and so would be a candidate for most patterns; that
one short piece of it has all that a match needs is rare.  Among 60,000 source files and manuals, 930 MB, pieces of 2 KB
are 330,000 rows of 235 MB; of 4 KB, where a long text had 16 at most, there were half as many rows of 173 MB, and up to
three times as many texts were read in vain.

Which trigrams are common differs from store to store, and decides which of a pattern's are worth looking for; a sample
of the pieces tells.

Rows are numbered one after the other, which takes the least room in the lists of the index, in the order of contents,
which answers come in.  A content whose text comes late, as one that had to be extracted, has rows far beyond those.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence

import apsw

from linckia.services.runtime import literals
from linckia.services.runtime.literals import Query

PIECE_BYTES = 2048
MOST = 128
"""Pieces of one text; those of a longer one are longer."""
SAMPLED_OF = 128
"""Of so many pieces, one is in the sample."""
LATE = 1 << 40
"""From here on a row's number says which content it is a piece of."""
RAREST = 6
"""Of the trigrams that a match needs all of, so many are looked for.  Of 8,000 source files, 17 patterns took as long
as with a model of what each costs and excludes; all of them took up to three times as long, four up to twice.
"""
MAX_TERMS = 1000
"""Trigrams of a query; one with more admits anything."""
Rarity = Callable[[str], tuple[float, float]]
"""What trigrams are sorted by, the rarest first."""


def ends(text: bytes) -> list[int]:
    """Where each piece of a text in UTF-8 ends, `MOST` pieces at most; an empty text is one."""
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
    """Write a text that is not in the index yet into it; inside the caller's transaction, on the index alone."""
    query = "SELECT object, first + pieces FROM done WHERE first < ? ORDER BY first DESC LIMIT 1"
    before, first = db.execute(query, (LATE,)).get or (0, 1)
    if object_ < before:
        first = LATE + object_ * MOST
    till = ends(text)
    parts = [text[start:end].decode("utf-8", "replace") for start, end in itertools.pairwise((0, *till))]
    db.executemany("INSERT INTO trigram(rowid, text) VALUES(?, ?)", enumerate(parts, first))
    # Not by the row alone: a text that comes late always begins at a multiple.
    _sample(db, first + object_, parts)
    db.execute("INSERT INTO done(object, first, pieces) VALUES(?, ?, ?)", (object_, first, len(till)))


def _sample(db: apsw.Connection, turn: int, parts: Sequence[str]) -> None:
    """Take note of the trigrams of some pieces; those of a text that is removed later stay, for it is only about how
    many."""
    for part in parts[-turn % SAMPLED_OF :: SAMPLED_OF]:
        some = {part[at : at + 3] for at in range(len(part) - 2)}
        db.executemany(
            "INSERT INTO sample(trigram, pieces) VALUES(?, 1) ON CONFLICT(trigram) DO UPDATE SET pieces=pieces+1",
            ((trigram,) for trigram in sorted(some)),
        )


def expression_of(db: apsw.Connection, query: Query) -> str | None:
    """As an FTS5 expression of the trigrams that are worth looking for; None where anything may match.  On a connection
    that has the index attached as `idx`."""
    counts = "SELECT trigram, pieces FROM carray(?) AS one JOIN idx.sample ON trigram = one.value"
    wanted = tuple(terms(query))
    found: dict[str, int] = dict(db.execute(counts, (apsw.carray(wanted),))) if wanted else {}
    query = thinned(query, lambda one: (found.get(one, 0), literals.commonness(one)))
    return None if query.op == "any" or _size(query) > MAX_TERMS else _expression(query)


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
    """The same with fewer trigrams: of those that a match needs all of, the rarest."""
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
