"""Text of contents that are none themselves: the pages of PDFs, and texts in UTF-16.

Every attempt is on disk before it begins.  A content whose extraction killed the process twice is not tried a third
time: it stays stored, without text, and the status says so.
"""

from __future__ import annotations

import codecs
import contextlib
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
    if id_ is None:
        return None
    if id_ != begun:
        db.execute("UPDATE object SET attempts=attempts+1 WHERE id=?", (id_,))
    return objects.by_id(db, id_)


def settle(db: apsw.Connection, codec: Codec, id_: int, text: str | None, problem: str | None) -> None:
    """Store what an attempt has come to."""
    data = b"" if text is None else text.encode("utf-8", "replace")
    state = TEXT_QUARANTINED if text is None else TEXT_EXTRACTED if data.strip() else TEXT_NONE
    if state == TEXT_EXTRACTED:
        row = (id_, len(data), codec.pack_plain(data))
        db.execute("INSERT OR REPLACE INTO text(object, size, data) VALUES(?, ?, ?)", row)
    db.execute("UPDATE object SET text_state=?, problem=? WHERE id=?", (state, problem, id_))


def extract(db: apsw.Connection, codec: Codec, stored: Stored) -> tuple[str | None, str | None]:
    """The text, or why there is none; blocks."""
    if stored.size > MAX_SOURCE_BYTES:
        return None, f"{stored.size} bytes, more than the {MAX_SOURCE_BYTES} that text is extracted from"
    try:
        data = objects.read(db, codec, stored)
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return data.decode("utf-16", "replace"), None
        return _of_pdf(data), None
    except DamagedContent as error:
        return None, str(error)
    except pypdfium2.PdfiumError as error:
        return None, f"not a PDF that can be read: {error}"


def _of_pdf(data: bytes) -> str:
    """Raises PdfiumError."""
    give_up = time.monotonic() + TIME_LIMIT_S
    pages: list[str] = []
    size = 0
    with contextlib.closing(pypdfium2.PdfDocument(data)) as pdf:
        for page in pdf:
            with contextlib.closing(page), contextlib.closing(page.get_textpage()) as text:
                pages.append(text.get_text_bounded().replace("\r\n", "\n").replace("\r", "\n"))
            size += len(pages[-1])
            if size > MAX_TEXT_BYTES or time.monotonic() > give_up:
                _log.warning("text of a PDF cut after page %d of %d", len(pages), len(pdf))
                break
    return "\n\f\n".join(pages)
