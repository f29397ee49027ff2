"""The text of a PDF: its pages, with the values of form fields and annotations."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import pypdfium2 as pdfium  # type: ignore[import-untyped]  # it has no types
from pypdfium2 import raw

from proto.ops.decode import MAX_TEXT_CHARACTERS
from services.decode.results import NotDecoded, Writer
from services.decode.text.hyphenation import Words, joined

_NOT_NOTES: Final = frozenset({raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP, raw.FPDF_ANNOT_WIDGET})
_CHOICES: Final = (raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX)
_BOXES: Final = (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON)
_MAX_BYTES: Final = 1 << 20
"""Longest value that is read."""
_MAX_OPTIONS: Final = 10_000


def pdf(data: bytes, out: Writer) -> None:
    """Write the text, extracted with pdfium (built without JavaScript), with a form feed line between pages. Raises
    NotDecoded."""
    pages: list[str] = []
    try:
        with contextlib.closing(pdfium.PdfDocument(data)) as document:
            document.init_forms()
            _read(document, pages, out)
            if not any(page.strip() for page in pages):
                raise NotDecoded(f"its {len(document)} pages are images without text, which is not recognised (OCR)")
    except pdfium.PdfiumError as error:
        if "assword" in str(error):
            raise NotDecoded("it is password-protected") from None
        raise NotDecoded(f"not a readable PDF: {error}") from None
    finally:
        # A later page may show how a divided word is spelled.
        words = Words("\n".join(pages))
        out.write("\n\f\n".join(joined(*two, words) for two in itertools.pairwise([*pages, ""])))


def _read(document: Any, pages: list[str], out: Writer) -> None:
    """Read the pages. Raises Enough."""
    left = MAX_TEXT_CHARACTERS
    for number, page in enumerate(document, 1):
        with contextlib.closing(page), contextlib.closing(page.get_textpage()) as text:
            said = text.get_text_bounded().replace("\r\n", "\n").replace("\r", "\n")
            filled = "\n".join(_filled(page, document.formenv, out))
        pages.append(f"{said}\n\n{filled}" if said and filled else said or filled)
        out.place = f"page {number} of {len(document)}"
        out.check()
        left -= len(pages[-1])
        if left <= 0:
            return


def _filled(page: Any, form: Any, out: Writer) -> Iterator[str]:
    """Yield the values of a page's form fields and its annotations, one line each."""
    for index in range(raw.FPDFPage_GetAnnotCount(page)):
        out.check()
        note = raw.FPDFPage_GetAnnot(page, index)
        if not note:
            continue
        try:
            kind = raw.FPDFAnnot_GetSubtype(note)
            if kind == raw.FPDF_ANNOT_WIDGET:
                line = _field(form, note)
            elif kind not in _NOT_NOTES and (text := _value(note, b"Contents")):
                author = _value(note, b"T")
                line = f"Note ({author}): {text}" if author else f"Note: {text}"
            else:
                line = ""
        finally:
            raw.FPDFPage_CloseAnnot(note)
        if line:
            yield line


def _field(form: Any, note: Any) -> str:
    """Return a field's name and value; empty if it has none, or is a button or a password."""
    if form is None:
        # The document has fields but no form.
        return _named(_value(note, b"TU") or _value(note, b"T"), _value(note, b"V"))
    kind = raw.FPDFAnnot_GetFormFieldType(form, note)

    def of_form(read: Callable[..., int], *more: int) -> str:
        return _string(lambda buffer, size: read(form, note, *more, buffer, size))

    name = of_form(raw.FPDFAnnot_GetFormFieldAlternateName) or of_form(raw.FPDFAnnot_GetFormFieldName)
    if kind in _BOXES:
        is_checked = raw.FPDFAnnot_IsChecked(form, note)
        if not is_checked and kind == raw.FPDF_FORMFIELD_RADIOBUTTON:
            return ""
        value = of_form(raw.FPDFAnnot_GetFormFieldExportValue)
        return f"[{'x' if is_checked else ' '}] {_named(name, value) or name}"
    if kind in _CHOICES:
        count = min(raw.FPDFAnnot_GetOptionCount(form, note), _MAX_OPTIONS)
        chosen = [
            of_form(raw.FPDFAnnot_GetOptionLabel, index)
            for index in range(count)
            if raw.FPDFAnnot_IsOptionSelected(form, note, index)
        ]
        return _named(name, ", ".join(chosen) or of_form(raw.FPDFAnnot_GetFormFieldValue))
    is_secret = raw.FPDFAnnot_GetFormFieldFlags(form, note) & raw.FPDF_FORMFLAG_TEXT_PASSWORD
    if kind != raw.FPDF_FORMFIELD_TEXTFIELD or is_secret:
        return ""
    return _named(name, of_form(raw.FPDFAnnot_GetFormFieldValue))


def _named(name: str, value: str) -> str:
    return f"{name}: {value}" if name and value else value


def _value(note: Any, key: bytes) -> str:
    return _string(lambda buffer, size: raw.FPDFAnnot_GetStringValue(note, key, buffer, size))


def _string(read: Callable[[Any, int], int]) -> str:
    """Return a string that pdfium writes into a buffer; `read` returns its size in bytes."""
    size = min(read(None, 0), _MAX_BYTES)
    if size <= 2:
        return ""
    buffer = (ctypes.c_ushort * (size // 2))()
    if read(buffer, size) > size:
        return ""
    return bytes(buffer).decode("utf-16-le", "ignore").rstrip("\0").replace("\r\n", "\n").replace("\r", "\n").strip()
