"""Texts of many contents, read ahead: several by one question to the database, and unpacked on all cores.

Whoever looks through them may stop at any time, so little is read at first, and more each time.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator

import apsw

from services.documents.store import objects, statements
from services.documents.store.compress import Codec, Damaged
from services.documents.store.objects import Stored
from services.documents.store.schema import TEXT_OWN

FIRST, FEWEST, MOST = 8, 4, 64
"""Contents at a time."""
SMALL_BYTES = 256 * 1024
"""Longer ones are left to be read by themselves: there are few, and what is read ahead is held in memory."""


class _Packs:
    """Reads parts of packs, of which SQL would read all to cut one out; to be closed."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._blob: apsw.Blob | None = None

    def frame(self, pack: object, start: object, length: object) -> bytes | None:
        """None where it is not there."""
        assert isinstance(pack, int)
        assert isinstance(start, int)
        assert isinstance(length, int)
        try:
            if self._blob is None:
                self._blob = self._db.blob_open("main", "pack", "data", pack, False)
            else:
                self._blob.reopen(pack)
            self._blob.seek(start)
            return self._blob.read(length)
        except (apsw.SQLError, apsw.AbortError, ValueError):
            # One that could not be opened again is of no more use.
            self.close()
            return None

    def close(self) -> None:
        if self._blob is not None:
            self._blob.close(True)
            self._blob = None


def read(
    db: apsw.Connection, codec: Codec, ids: Iterator[int], enough: Callable[[], float] = lambda: math.inf
) -> Iterator[tuple[Stored, bytes | None]]:
    """The contents in the order given, without those that are gone; and their text.

    None for a text that is long, or not the content itself: `texts.windows` reads it.  So it does where one is damaged,
    and says which.

    Args:
        enough: how many more will probably be looked at, as far as one can tell by now.
    """
    with contextlib.closing(_Packs(db)) as packs:
        yield from _read(db, codec, ids, enough, packs)


def _read(
    db: apsw.Connection, codec: Codec, ids: Iterator[int], enough: Callable[[], float], packs: _Packs
) -> Iterator[tuple[Stored, bytes | None]]:
    count = FIRST
    while some := list(itertools.islice(ids, count)):
        rows = db.execute(
            f"SELECT {objects.COLUMNS}, block.dictionary, CASE WHEN object.size <= ?2 THEN block.data END,"
            " packed.dictionary, packed.pack, packed.start, packed.stored"
            " FROM carray(?1) AS one CROSS JOIN object ON object.id = one.value"
            " LEFT JOIN block ON block.object = object.id LEFT JOIN packed ON packed.object = object.id",
            (statements.ids(some), SMALL_BYTES),
        ).fetchall()
        found: list[tuple[Stored, int | None]] = []
        blocks: list[tuple[int, bytes, int]] = []
        for *columns, own_dictionary, own, dictionary, pack, start, length in rows:
            stored = objects.of_row(columns)
            number, data = (own_dictionary, own) if own is not None else (dictionary, None)
            if data is None and pack is not None and stored.size <= SMALL_BYTES:
                data = packs.frame(pack, start, length)
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
        # Half of what will probably be needed: what is read in vain costs more than another question.
        count = max(FEWEST, min(MOST, 2 * count, math.ceil(min(2 * MOST, enough()) / 2)))
