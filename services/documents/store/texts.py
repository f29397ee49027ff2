"""The text of a content, whole or window by window, whether it is text itself or was extracted; or of many contents."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

import apsw

from linckia.services.documents.store import objects, schema
from linckia.services.documents.store.compress import DamagedContent
from linckia.services.documents.store.objects import Stored
from linckia.services.documents.store.schema import TEXT_EXTRACTED, TEXT_OWN

WHOLE_BYTES = 16 * 1024 * 1024
"""Longer texts are searched window by window, and are not indexed."""
WINDOW_BYTES = 4 * 1024 * 1024
MAX_LINE_BYTES = 32 * 1024 * 1024
FEWEST, MOST = 4, 32
"""Contents that are read ahead; a reader may stop at any time, so there are few at first."""
AHEAD_BYTES = 256 * 1024
"""Longer ones are left to be read by themselves: there are few, and what is read ahead is held in memory."""


def has_text(stored: Stored | None) -> TypeGuard[Stored]:
    return stored is not None and stored.text_state in (TEXT_OWN, TEXT_EXTRACTED)


def pieces(db: apsw.Connection, stored: Stored) -> Iterator[bytes]:
    """The text in UTF-8 (as far as its owner wrote it so), in pieces.  Raises DamagedContent.

    The checksum of each block is verified, its hash is not: thousands may be looked through for one answer.
    """
    if stored.text_state == TEXT_OWN:
        yield from objects.stream(db, stored, hashed=False)
    elif stored.text_state == TEXT_EXTRACTED:
        name = f"the text of content {stored.hash.hex()}"
        with objects.legible(name):
            row = db.execute("SELECT unpacked(0, data, size, NULL, ?) FROM text WHERE object=?", (name, stored.id)).get
        if row is None:
            raise DamagedContent(f"content {stored.hash.hex()} has lost its text")
        yield row


_SHORT = f"object.size <= {AHEAD_BYTES} AND object.text_state = {TEXT_OWN}"
_AHEAD = (
    "SELECT unpacked(coalesce(block.dictionary, packed.dictionary),"
    "  coalesce(block.data, substr(pack.data, start + 1, packed.stored)), object.size, NULL, ''),"
    f" {objects.COLUMNS}"
    " FROM carray(?) AS one CROSS JOIN object ON object.id = one.value"
    f" LEFT JOIN block ON block.object = object.id AND {_SHORT}"
    f" LEFT JOIN packed ON packed.object = object.id AND {_SHORT} LEFT JOIN pack ON pack.id = packed.pack"
)


def ahead(
    db: apsw.Connection, ids: Iterator[int], damaged: Callable[[str], None]
) -> Iterator[tuple[Stored, bytes | None]]:
    """The contents in the order given, without those that are gone, and their text, read by few questions.

    None for a text that is long, extracted or damaged: `windows` reads it, or says so.  `damaged` is told of contents
    whose row cannot be read.
    """
    count = FEWEST
    while some := list(itertools.islice(ids, count)):
        try:
            yield from [(Stored(*row), text) for text, *row in db.execute(_AHEAD, (schema.ids(some),))]
        except (apsw.CorruptError, DamagedContent):
            # One of them.
            for id_ in some:
                try:
                    if (stored := objects.by_id(db, id_)) is not None:
                        yield stored, None
                except DamagedContent as error:
                    damaged(str(error))
        count = min(2 * count, MOST)


def beginning(db: apsw.Connection, object_: int, limit: int) -> tuple[str, str]:
    """About so many bytes of a content's text, '' where it has none; and its MIME type.  Both are '' where it cannot be
    read, which `get` tells."""
    found = bytearray()
    with contextlib.suppress(DamagedContent):
        if (stored := objects.by_id(db, object_)) is not None:
            for piece in pieces(db, stored):
                found += piece
                if len(found) >= limit:
                    break
            return found.decode("utf-8", "replace").replace("\r\n", "\n"), stored.mime
    return "", ""


@dataclass(frozen=True, slots=True)
class Window:
    """Whole lines of a text: those from `start` to `end` are this window's own, the others their nearest neighbours."""

    data: bytes
    start: int
    end: int
    line: int = 1
    """Number, from 1, of the line that begins at `start`."""


def window(data: bytes) -> Window:
    # One byte is looked for many times as fast as two.
    if b"\r" in data and b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    return Window(data, 0, len(data))


def windows(db: apsw.Connection, stored: Stored, context: int) -> Iterator[Window]:
    """The text in windows that have `context` lines of their neighbours.  Raises DamagedContent."""
    if stored.size <= WINDOW_BYTES or stored.text_state == TEXT_EXTRACTED:
        yield window(b"".join(pieces(db, stored)))
        return
    line = 1
    before = b""
    body: bytes | None = None
    for following in _bodies(pieces(db, stored)):
        if body is not None:
            data = before + body + _head(following, context)
            yield Window(data, len(before), len(before) + len(body), line)
            line += body.count(b"\n")
            before = _tail(body, context)
        body = following
    if body is not None:
        yield Window(before + body, len(before), len(before) + len(body), line)


def _bodies(stream: Iterator[bytes]) -> Iterator[bytes]:
    held = bytearray()
    end = 0
    for piece in stream:
        # Only in what is new: a line may be as long as the whole text.
        last = piece.rfind(b"\n") + 1
        end = len(held) + last if last else end
        held += piece
        if len(held) >= WINDOW_BYTES:
            if not end and len(held) >= MAX_LINE_BYTES:
                # No line that anyone reads: cut it somewhere.
                end = len(held)
            if end:
                yield bytes(held[:end]).replace(b"\r\n", b"\n")
                del held[:end]
                end = 0
    if held:
        yield bytes(held).replace(b"\r\n", b"\n")


def _head(data: bytes, lines: int) -> bytes:
    end = 0
    for _ in range(lines):
        end = data.find(b"\n", end) + 1
        if not end:
            return data
    return data[:end]


def _tail(data: bytes, lines: int) -> bytes:
    start = len(data)
    for _ in range(lines + 1):
        start = data.rfind(b"\n", 0, start)
        if start < 0:
            return data if lines else b""
    return data[start + 1 :]
