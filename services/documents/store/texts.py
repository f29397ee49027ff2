"""The text of a content, whole or window by window, whether it is text itself or was extracted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import apsw

from services.documents.store import objects
from services.documents.store.compress import Codec, DamagedContent
from services.documents.store.objects import Stored
from services.documents.store.schema import TEXT_EXTRACTED, TEXT_OWN

WHOLE_BYTES = 16 * 1024 * 1024
"""Longer texts are searched window by window, and are not indexed."""
WINDOW_BYTES = 4 * 1024 * 1024
MAX_LINE_BYTES = 32 * 1024 * 1024


def has_text(stored: Stored) -> bool:
    return stored.text_state in (TEXT_OWN, TEXT_EXTRACTED)


def pieces(db: apsw.Connection, codec: Codec, stored: Stored) -> Iterator[bytes]:
    """The text in UTF-8 (as far as its owner wrote it so), in pieces.

    The checksum of each block is verified, its hash is not: thousands may be looked through for one answer.

    Raises DamagedContent.
    """
    if stored.text_state == TEXT_OWN:
        yield from objects.stream(db, codec, stored, hashed=False)
    elif stored.text_state == TEXT_EXTRACTED:
        with objects.legible(f"the text of content {stored.hash.hex()}"):
            row = db.execute("SELECT size, data FROM text WHERE object=?", (stored.id,)).fetchone()
        if row is None:
            raise DamagedContent(f"content {stored.hash.hex()} has lost its text")
        size, data = row
        assert isinstance(size, int)
        assert isinstance(data, bytes)
        yield codec.unpack(0, data, size)


def beginning(db: apsw.Connection, codec: Codec, stored: Stored, limit: int) -> bytes:
    """The first bytes of the text, at least `limit` of them where there are so many.  Raises DamagedContent."""
    found = bytearray()
    for piece in pieces(db, codec, stored):
        found += piece
        if len(found) >= limit:
            break
    return bytes(found)


def beginning_of(db: apsw.Connection, codec: Codec, object_: int, limit: int) -> tuple[Stored | None, str]:
    """A content and the beginning of its text; '' where it has none, or where it cannot be read, which `get` tells."""
    stored: Stored | None = None
    with contextlib.suppress(DamagedContent):
        stored = objects.by_id(db, object_)
        if stored is not None and has_text(stored):
            return stored, beginning(db, codec, stored, limit).decode("utf-8", "replace").replace("\r\n", "\n")
    return stored, ""


@dataclass(frozen=True, slots=True)
class Window:
    """Whole lines of a text: those of `spans` (from where to where, in order) are this window's own, what is around
    them their nearest neighbours."""

    data: bytes
    spans: tuple[tuple[int, int], ...]
    line: int = 1
    """Number, from 1, of the line that begins at `numbered`."""
    numbered: int = 0


def window(data: bytes) -> Window:
    """A whole text as one."""
    # One byte is looked for many times as fast as two.
    if b"\r" in data and b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    return Window(data, ((0, len(data)),))


def window_of(data: bytes, spans: list[tuple[int, int]]) -> Window:
    """Parts of a whole text, each of whole lines; given by where they start and end, in order."""
    whole = window(data)
    if len(whole.data) < len(data):
        spans = [(start - data.count(b"\r\n", 0, start), end - data.count(b"\r\n", 0, end)) for start, end in spans]
    return Window(whole.data, tuple(spans))


def windows(db: apsw.Connection, codec: Codec, stored: Stored, context: int) -> Iterator[Window]:
    """The text in windows that have `context` lines of their neighbours.  Raises DamagedContent."""
    if stored.size <= WINDOW_BYTES or stored.text_state == TEXT_EXTRACTED:
        yield window(b"".join(pieces(db, codec, stored)))
        return
    line = 1
    before = b""
    body: bytes | None = None
    for following in _bodies(pieces(db, codec, stored)):
        if body is not None:
            own = (len(before), len(before) + len(body))
            yield Window(before + body + _head(following, context), (own,), line, len(before))
            line += body.count(b"\n")
            before = _tail(body, context)
        body = following
    if body is not None:
        yield Window(before + body, ((len(before), len(before) + len(body)),), line, len(before))


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
