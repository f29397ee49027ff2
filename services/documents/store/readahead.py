"""Texts of many contents, read ahead: several by one question to the database, and unpacked on all cores.

The reader may stop at any time, so little is read at first, and more each time.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import apsw

from services.documents.store import objects, statements
from services.documents.store.compress import Codec, DamagedContent
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
        except (apsw.SQLError, apsw.AbortError, apsw.CorruptError, ValueError):
            # One that could not be opened again is of no more use.
            self.close()
            return None

    def close(self) -> None:
        if self._blob is not None:
            self._blob.close(True)
            self._blob = None


def read(
    db: apsw.Connection, codec: Codec, ids: Iterator[int], enough: Callable[[], float], damaged: Callable[[str], None]
) -> Iterator[tuple[Stored, bytes | None]]:
    """The contents in the order given, without those that are gone; and their text.

    None for a text that is long, or not the content itself: `texts.windows` reads it.  So it does where one is damaged,
    and says which.

    Args:
        enough: how many more will probably be looked at, as far as one can tell by now.
        damaged: told of each content that cannot be read at all.
    """
    count = FIRST
    with contextlib.closing(_Packs(db)) as packs:
        while some := list(itertools.islice(ids, count)):
            try:
                read = _blocks(db, some, packs)
            except apsw.CorruptError:
                # One of them; the others are had one by one.
                read = list(_alone(db, some, damaged))
            blocks = [block for _, block in read if block is not None]
            unpacked = iter(codec.unpack_many(blocks))
            for stored, block in read:
                text = None if block is None else next(unpacked)
                if text is None and block is not None:
                    with contextlib.suppress(DamagedContent):
                        text = codec.unpack(*block)
                yield stored, text
            # Half of what will probably be needed: what is read in vain costs more than another question.
            count = max(FEWEST, min(MOST, 2 * count, math.ceil(min(2 * MOST, enough()) / 2)))


_Block = tuple[int, bytes, int]
"""The number of the dictionary, the packed bytes, and the size once unpacked."""


def _blocks(db: apsw.Connection, ids: Sequence[int], packs: _Packs) -> list[tuple[Stored, _Block | None]]:
    """Those that are text themselves and short, with their block."""
    rows = db.execute(
        f"SELECT {objects.COLUMNS}, block.dictionary, CASE WHEN object.size <= ?2 THEN block.data END,"
        " packed.dictionary, packed.pack, packed.start, packed.stored"
        " FROM carray(?1) AS one CROSS JOIN object ON object.id = one.value"
        " LEFT JOIN block ON block.object = object.id LEFT JOIN packed ON packed.object = object.id",
        (statements.ids(ids), SMALL_BYTES),
    )
    found: list[tuple[Stored, _Block | None]] = []
    for *columns, own_dictionary, own, dictionary, pack, start, length in rows:
        stored = objects.of_row(columns)
        number, data = (own_dictionary, own) if own is not None else (dictionary, None)
        if data is None and pack is not None and stored.size <= SMALL_BYTES:
            data = packs.frame(pack, start, length)
        is_short_text = stored.text_state == TEXT_OWN and stored.size <= SMALL_BYTES
        block = (number, data, stored.size) if is_short_text and isinstance(data, bytes) else None
        found.append((stored, block))
    return found


def _alone(
    db: apsw.Connection, ids: Sequence[int], damaged: Callable[[str], None]
) -> Iterator[tuple[Stored, _Block | None]]:
    for id_ in ids:
        try:
            stored = objects.by_id(db, id_)
        except DamagedContent as error:
            damaged(str(error))
        else:
            if stored is not None:
                yield stored, None
