"""Texts of many contents, read ahead: several by one question to the database, and unpacked on all cores.

Whoever looks through them may stop at any time, so little is read at first, and more each time.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import apsw

from services.documents import objects, statements
from services.documents.compress import Codec, Damaged
from services.documents.objects import Stored
from services.documents.schema import TEXT_OWN

FIRST, MOST = 8, 64
"""Contents at a time."""
SMALL_BYTES = 256 * 1024
"""Longer ones are left to be read by themselves: there are few, and what is read ahead is held in memory."""


def read(db: apsw.Connection, codec: Codec, ids: Iterator[int]) -> Iterator[tuple[Stored, bytes | None]]:
    """The contents in the order given, without those that are gone; and their text.

    None for a text that is long, or not the content itself: `texts.windows` reads it.  So it does where one is damaged,
    and says which.
    """
    count = FIRST
    while some := list(itertools.islice(ids, count)):
        count = min(MOST, 2 * count)
        rows = db.execute(
            f"SELECT {objects.COLUMNS}, block.dictionary, CASE WHEN object.size <= ?2 THEN block.data END,"
            " packed.dictionary, substr(pack.data, packed.start + 1, packed.stored)"
            " FROM carray(?1) AS one CROSS JOIN object ON object.id = one.value"
            " LEFT JOIN block ON block.object = object.id"
            " LEFT JOIN packed ON packed.object = object.id LEFT JOIN pack ON pack.id = packed.pack",
            (statements.ids(some), SMALL_BYTES),
        ).fetchall()
        found: list[tuple[Stored, int | None]] = []
        blocks: list[tuple[int, bytes, int]] = []
        for *columns, own_dictionary, own, dictionary, packed in rows:
            stored = objects.of_row(columns)
            number, data = (own_dictionary, own) if own is not None else (dictionary, packed)
            if stored.text_state == TEXT_OWN and isinstance(data, bytes) and stored.size <= SMALL_BYTES:
                assert isinstance(number, int)
                found.append((stored, len(blocks)))
                blocks.append((number, data, stored.size))
            else:
                found.append((stored, None))
        texts = codec.unpack_many(blocks)
        for stored, index in found:
            text = None if index is None else texts[index]
            if text is None and index is not None:
                with contextlib.suppress(Damaged):
                    text = codec.unpack(*blocks[index])
            yield stored, text
