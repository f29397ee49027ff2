"""The text of PDF files, by pdfium (built without JavaScript)."""

from __future__ import annotations

import contextlib
import time

import pypdfium2 as pdfium  # type: ignore[import-untyped]  # it has no types

from proto.ops.decode import MAX_TEXT_CHARACTERS, DecodedText


def text_of_pdf(data: bytes, limit_s: float) -> DecodedText:
    """The text of the pages that can be read in so many seconds; blocks.  A page that cannot be read has none."""
    until = time.monotonic() + limit_s
    pages: list[str] = []
    left = MAX_TEXT_CHARACTERS
    problem = None
    try:
        with contextlib.closing(pdfium.PdfDocument(data)) as pdf:
            for page in pdf:
                with contextlib.closing(page), contextlib.closing(page.get_textpage()) as text:
                    pages.append(text.get_text_bounded().replace("\r\n", "\n").replace("\r", "\n")[:left])
                left -= len(pages[-1])
                if left <= 0 or time.monotonic() > until:
                    problem = f"its text is cut after page {len(pages)} of {len(pdf)}"
                    break
    except pdfium.PdfiumError as error:
        return DecodedText(text=None, problem=f"not a PDF that can be read: {error}")
    return DecodedText(text="\n\f\n".join(pages), problem=problem)
