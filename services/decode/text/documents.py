"""Detects the type of a document and extracts its text, or the reason why it cannot be read.

Notebooks are read here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from proto.ops.decode import DOCUMENT_TYPES, DecodedText
from services.decode.results import TOO_LARGE, Enough, NotDecoded, Writer
from services.decode.text import mail, office, sheets
from services.decode.text.pdf import pdf
from services.shared.text.html import plain

_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""Magic number of office documents before 2007, and of encrypted later ones."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")

Lines = str | list[str]
_log = logging.getLogger("linckia.decode")


def text_of(data: bytes, limit_s: float) -> DecodedText:
    """Extract text for up to `limit_s` seconds; blocks. A damaged document yields the text before the damage."""
    out = Writer(limit_s)
    problem: str | None = None
    try:
        _read(data, out)
        problem = None if out.text.strip() else "it is empty, or contains only pictures"
    except (Enough, NotDecoded) as error:
        problem = str(error)
    except MemoryError:
        return DecodedText(text=None, problem=TOO_LARGE)
    except Exception as error:  # noqa: BLE001  # libraries raise anything at broken files
        _log.info("cannot read a document: %s", error, exc_info=True)
        problem = f"it is damaged: {str(error)[:300] or type(error).__name__}"
    text = out.text
    return DecodedText(text=text if text.strip() else None, problem=problem)


def _read(data: bytes, out: Writer, depth: int = 0) -> None:
    reader: Callable[[], None]
    if data.startswith(b"%PDF-"):
        reader = partial(pdf, data, out)
    elif data.startswith(b"PK"):
        reader = _zipped(data, out)
    elif data.startswith(_OLE):
        reader = _before_2007(data, out)
    elif data.lstrip()[:1] == b"{":
        reader = partial(notebook, data, out)
    elif data.startswith(b"From "):
        reader = partial(mail.mbox, data, out, _attached)
    else:
        reader = partial(mail.mail, data, out, _attached, depth)
    reader()


def _zipped(data: bytes, out: Writer) -> Callable[[], None]:
    archive = office.Archive(data)
    main = next((member for kind, member in office.relations(archive, "").values() if kind == "officeDocument"), "")
    folder = main.partition("/")[0]
    if folder == "word":
        return partial(office.docx, archive, main, out)
    if folder == "ppt":
        return partial(office.pptx, archive, main, out)
    if folder == "xl" and main.endswith(".xml"):
        return partial(sheets.xlsx, archive, main, out)
    if folder == "xl":
        archive.check_size()
        return partial(sheets.other, data, out)
    if b"spreadsheet" in archive.read("mimetype"):
        return partial(sheets.ods, archive, data, out)
    if "META-INF/container.xml" in archive:
        return partial(office.epub, archive, out)
    if "content.xml" in archive:
        return partial(office.open_document, archive, out)
    raise NotDecoded("not a supported type of document, or damaged")


def _before_2007(data: bytes, out: Writer) -> Callable[[], None]:
    if "EncryptedPackage".encode("utf-16-le") in data:
        raise NotDecoded("it is password-protected")
    if any(name.encode("utf-16-le") in data for name in ("Workbook", "Book")):
        return partial(sheets.other, data, out)
    raise NotDecoded("Word and PowerPoint files from before 2007 are not supported: save it as .docx or .pptx")


def _attached(data: bytes, name: str, depth: int, out: Writer) -> None:
    """Write an attachment whose type is known by its name; if it cannot be read, the text says so."""
    if f".{name.rpartition('.')[2].lower()}" not in DOCUMENT_TYPES and not data.startswith(b"%PDF-"):
        return
    try:
        _read(data, out, depth)
    except (Enough, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  # as in `text_of`
        out.block(f"(not read: {error})")


class _Cell(msgspec.Struct):
    cell_type: str = ""
    source: Lines = ""
    input: Lines = ""
    """The source of code cells up to version 3 of the format."""
    # The form of outputs depends on the program that wrote them.
    outputs: list[dict[str, Any]] = []
    level: int = 1


class _Sheet(msgspec.Struct):
    cells: list[_Cell] = []


class _Notebook(msgspec.Struct):
    cells: list[_Cell] = []
    worksheets: list[_Sheet] = []
    # As above; only the language is read.
    metadata: dict[str, Any] = {}


def notebook(data: bytes, out: Writer) -> None:
    """Write a Jupyter notebook: cells of Markdown and code, and the text output of the code. If it is not a notebook,
    its content is written as is and NotDecoded raised."""
    try:
        book = msgspec.json.decode(data, type=_Notebook)
    except (msgspec.DecodeError, RecursionError) as error:
        out.write(data.decode("utf-8", "replace"))
        raise NotDecoded(f"not a readable notebook: {error}") from None
    language = book.metadata.get("language_info", {})
    named = str(language.get("name", "")) if isinstance(language, dict) else ""
    for cell in [*book.cells, *(cell for sheet in book.worksheets for cell in sheet.cells)]:
        source = _joined(cell.source or cell.input)
        if cell.cell_type == "code":
            out.block(f"```{named}\n{source}\n```" if source.strip() else "")
            for output in cell.outputs:
                text = _output(output).strip()
                out.block(f"```\n{text}\n```" if text else "")
        else:
            out.block(f"{'#' * cell.level} {source}" if cell.cell_type == "heading" else source)


def _output(output: dict[str, Any]) -> str:
    if "ename" in output:
        return _COLOUR.sub("", f"{output['ename']}: {output.get('evalue', '')}")
    data = output.get("data", output)
    kinds = data if isinstance(data, dict) else {}
    if html := "" if "text/plain" in kinds else _joined(kinds.get("text/html")):
        return plain(html)
    return _COLOUR.sub("", _joined(kinds.get("text/plain") or kinds.get("text/markdown") or output.get("text")))


def _joined(lines: object) -> str:
    if isinstance(lines, str):
        return lines
    return "".join(line for line in lines if isinstance(line, str)) if isinstance(lines, list) else ""
