"""Read the text of contents, whole or in windows, whether the content is text itself or its text was extracted."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

import apsw

from proto.ops.decode import MAX_SOURCE_BYTES
from services.documents.store import objects, tables
from services.documents.store.compress import DamagedContent
from services.documents.store.objects import Stored
from services.documents.store.tables import TEXT_EXTRACTED, TEXT_OWN
from services.shared.text.charsets import charset_of

WHOLE_BYTES = 16 * 1024 * 1024
"""Longer texts are not indexed, and are searched in windows."""
WINDOW_BYTES = 4 * 1024 * 1024
MAX_LINE_BYTES = 32 * 1024 * 1024
FEWEST, MOST = 4, 32
"""Number of contents to read ahead: few at first, because the reader may stop at any time."""
AHEAD_BYTES = 256 * 1024
"""Longer contents are not read ahead, as that is held in memory.  There are few of them."""


def has_text(stored: Stored | None) -> TypeGuard[Stored]:
    return stored is not None and stored.text_state in (TEXT_OWN, TEXT_EXTRACTED)


def is_own(stored: Stored | None) -> TypeGuard[Stored]:
    """Return whether a content is text itself, even if another text was extracted from it."""
    return stored is not None and stored.is_text


def pieces(db: apsw.Connection, stored: Stored) -> Iterator[bytes]:
    """Yield the text in pieces.  It is UTF-8 if the original is valid.  Raises DamagedContent.

    Block checksums are verified but hashes are not, because one query may read thousands of texts.
    """
    if stored.text_state == TEXT_OWN:
        yield from objects.stream(db, stored, hashed=False)
    elif stored.text_state == TEXT_EXTRACTED:
        name = f"the text of content {stored.hash.hex()}"
        with objects.isolating_damage(name):
            row = db.execute("SELECT unpacked(0, data, size, NULL, ?) FROM text WHERE object=?", (name, stored.id)).get
        if row is None:
            raise DamagedContent(f"the extracted text of content {stored.hash.hex()} is missing")
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
    """Yield contents in the given order with their text, read with few queries.  Contents that are gone are skipped.

    The text is None if it is long, extracted or damaged; `windows` then reads it or reports the damage. `damaged` is
    called with a message for each content whose row cannot be read.
    """
    count = FEWEST
    while some := list(itertools.islice(ids, count)):
        try:
            yield from [(Stored(*row), text) for text, *row in db.execute(_AHEAD, (tables.ids(some),))]
        except (apsw.CorruptError, DamagedContent):
            # Find the damaged one.
            for id_ in some:
                try:
                    if (stored := objects.by_id(db, id_)) is not None:
                        yield stored, None
                except DamagedContent as error:
                    damaged(str(error))
        count = min(2 * count, MOST)


def beginning(db: apsw.Connection, object_: int, limit: int) -> tuple[str, str]:
    """Return about `limit` bytes of a content's text ('' if it has none) and its MIME type.

    Both are '' if the content cannot be read; `get` reports the damage.
    """
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
    """Whole lines of a text: `start` to `end` is the window itself, the rest is context around it."""

    data: bytes
    start: int
    end: int
    line: int = 1
    """Number of the line that begins at `start`, counted from 1."""


def window(data: bytes) -> Window:
    # Searching for one byte is many times as fast as for two.
    if b"\r" in data and b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    return Window(data, 0, len(data))


def windows(db: apsw.Connection, stored: Stored, context: int) -> Iterator[Window]:
    """Yield the text in windows with `context` lines around them.  Raises DamagedContent."""
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


def own_windows(db: apsw.Connection, stored: Stored, context: int) -> Iterator[Window]:
    """Yield the content itself in windows, in UTF-8 unless it is too large to be decoded.  Raises DamagedContent."""
    source = dataclasses.replace(stored, text_state=TEXT_OWN)
    if stored.text_state == TEXT_OWN or stored.size > MAX_SOURCE_BYTES:
        yield from windows(db, source, context)
    else:
        data = b"".join(pieces(db, source))
        yield window(charset_of(data).decode(data).encode("utf-8", "replace"))


def _bodies(stream: Iterator[bytes]) -> Iterator[bytes]:
    held = bytearray()
    end = 0
    for piece in stream:
        # Search only the new piece, since a line may be as long as the whole text.
        last = piece.rfind(b"\n") + 1
        end = len(held) + last if last else end
        held += piece
        if len(held) >= WINDOW_BYTES:
            if not end and len(held) >= MAX_LINE_BYTES:
                # Nobody reads a line this long: cut it anywhere.
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
