"""The text of PDF pages, by pdfium (built without JavaScript)."""

from __future__ import annotations

import contextlib

import pypdfium2 as pdfium  # type: ignore[import-untyped]  # it has no types

from services.decode.results import NotDecoded
from services.decode.text.writer import Writer


def pdf(data: bytes, out: Writer) -> None:
    """Page by page, a line with a form feed between them.  Raises NotDecoded."""
    try:
        with contextlib.closing(pdfium.PdfDocument(data)) as document:
            for number, page in enumerate(document, 1):
                with contextlib.closing(page), contextlib.closing(page.get_textpage()) as text:
                    said = text.get_text_bounded().replace("\r\n", "\n").replace("\r", "\n")
                out.place = f"page {number} of {len(document)}"
                out.write(said if number == 1 else f"\n\f\n{said}")
            if not out.text.strip():
                raise NotDecoded(f"its {len(document)} pages are pictures without text, which are not recognised (OCR)")
    except pdfium.PdfiumError as error:
        if "assword" in str(error):
            raise NotDecoded("it is locked by a password") from None
        raise NotDecoded(f"not a PDF that can be read: {error}") from None
