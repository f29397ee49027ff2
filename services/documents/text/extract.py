"""Text of contents that are none themselves: the pages of PDFs, and texts in UTF-16.

Every attempt is on disk before it begins.  A content whose extraction killed the process twice is not tried a third
time: it stays stored, without text, and the status says so.
"""

from __future__ import annotations

import codecs
import logging
import time

import apsw
import pypdfium2  # type: ignore[import-untyped]  # it ships no types; used in this module alone

from services.documents.store import objects
from services.documents.store.compress import Codec, DamagedContent
from services.documents.store.objects import Stored
from services.documents.store.schema import TEXT_EXTRACTED, TEXT_NONE, TEXT_QUARANTINED, TEXT_WAITING

MAX_ATTEMPTS = 2
MAX_SOURCE_BYTES = 64 * 1024 * 1024
MAX_TEXT_BYTES = 16 * 1024 * 1024
TIME_LIMIT_S = 60.0

_log = logging.getLogger("linckia.documents")


class Unreadable(Exception):
    """The content has no text that could be had; the message says why."""


def claim(db: apsw.Connection, begun: int | None) -> Stored | None:
    """The next content to extract, its attempt counted; those that have used theirs up are quarantined.

    Args:
        begun: a content whose attempt was counted by this process, which has not died of it.
    """
    db.execute(
        "UPDATE object SET text_state=?, problem='the process died twice while its text was extracted'"
        " WHERE text_state=? AND attempts >= ? AND id IS NOT ?",
        (TEXT_QUARANTINED, TEXT_WAITING, MAX_ATTEMPTS, begun),
    )
    id_ = db.execute("SELECT id FROM object WHERE text_state=? ORDER BY id LIMIT 1", (TEXT_WAITING,)).get
    if not isinstance(id_, int):
        return None
    if id_ != begun:
        db.execute("UPDATE object SET attempts=attempts+1 WHERE id=?", (id_,))
    return objects.by_id(db, id_)


def settle(db: apsw.Connection, codec: Codec, id_: int, text: str | None, problem: str | None) -> None:
    """Store what an attempt has come to."""
    if text is None:
        db.execute("UPDATE object SET text_state=?, problem=? WHERE id=?", (TEXT_QUARANTINED, problem, id_))
        return
    data = text.encode("utf-8", "replace")
    if not data.strip():
        db.execute("UPDATE object SET text_state=?, problem=NULL WHERE id=?", (TEXT_NONE, id_))
        return
    db.execute(
        "INSERT OR REPLACE INTO text(object, size, data) VALUES(?, ?, ?)", (id_, len(data), codec.pack_plain(data))
    )
    db.execute("UPDATE object SET text_state=?, problem=NULL WHERE id=?", (TEXT_EXTRACTED, id_))


def extract(db: apsw.Connection, codec: Codec, stored: Stored) -> str:
    """The text; blocks.  Raises Unreadable."""
    if stored.size > MAX_SOURCE_BYTES:
        raise Unreadable(f"{stored.size} bytes, more than the {MAX_SOURCE_BYTES} that text is extracted from")
    try:
        data = objects.read(db, codec, stored)
    except DamagedContent as error:
        raise Unreadable(str(error)) from None
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    return _of_pdf(data)


def _of_pdf(data: bytes) -> str:
    give_up = time.monotonic() + TIME_LIMIT_S
    try:
        pdf = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        raise Unreadable(f"not a PDF that can be read: {error}") from None
    try:
        pages: list[str] = []
        size = 0
        for index in range(len(pdf)):
            page = pdf[index]
            try:
                text_page = page.get_textpage()
                try:
                    pages.append(text_page.get_text_bounded().replace("\r\n", "\n").replace("\r", "\n"))
                finally:
                    text_page.close()
            finally:
                page.close()
            size += len(pages[-1])
            if size > MAX_TEXT_BYTES or time.monotonic() > give_up:
                _log.warning("text of a PDF cut after page %d of %d", index + 1, len(pdf))
                break
        return "\n\f\n".join(pages)
    except pypdfium2.PdfiumError as error:
        raise Unreadable(f"not a PDF that can be read: {error}") from None
    finally:
        pdf.close()
