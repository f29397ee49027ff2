"""PDF files, by pdfium (built without JavaScript)."""

from __future__ import annotations

from typing import BinaryIO

import pypdfium2 as pdfium  # type: ignore[import-untyped]  # it has no types

from proto.ops.media import THUMBNAIL
from services.decode.results import SIDE, NotDecoded, Result, picture, plain


def pdf(file: BinaryIO) -> Result:
    """How many pages, what the file says of itself, and the first page."""
    result = Result()
    try:
        document = pdfium.PdfDocument(file, autoclose=False)
    except pdfium.PdfiumError as error:
        reason = "it is locked by a password" if "assword" in str(error) else f"it is no PDF that can be read: {error}"
        raise NotDecoded(reason) from None
    try:
        result.metadata["pages"] = len(document)
        told = {name: plain(value) for name, value in document.get_metadata_dict(skip_empty=True).items()}
        if told:
            result.metadata["document"] = told
        if not len(document):
            raise NotDecoded("it has no pages")
        try:
            page = document[0]
            width, height = page.get_size()
            result.metadata.update(page_width=round(width, 2), page_height=round(height, 2), page_unit="pt")
            if not (0 < width < 1e6 and 0 < height < 1e6):
                raise NotDecoded("its first page has no size")
            bitmap = page.render(scale=2 * SIDE / max(width, height))
            result.pictures.append(picture("thumb.jpg", THUMBNAIL, bitmap.to_pil(), page=1))
        except pdfium.PdfiumError as error:
            result.problem = f"its first page cannot be drawn: {error}"
        except NotDecoded as error:
            result.problem = str(error)
    finally:
        document.close()
    return result
