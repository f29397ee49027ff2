"""What kind of document some bytes are, and its text; what cannot be read says why.

Notebooks are read here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from linckia.proto.ops.decode import DOCUMENT_TYPES, DecodedText
from linckia.services.decode.results import TOO_LARGE, Enough, NotDecoded, Writer
from linckia.services.decode.text import mail, office, sheets
from linckia.services.decode.text.pdf import pdf
from linckia.services.runtime.text.html import plain

_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""Of office programs before 2007, and of what those after it encrypt."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")

Lines = str | list[str]
_log = logging.getLogger("linckia.decode")


def text_of(data: bytes, limit_s: float) -> DecodedText:
    """The text that can be had in so many seconds; blocks.  Of what is damaged, what comes before that."""
    out = Writer(limit_s)
    problem: str | None = None
    try:
        _read(data, out)
        problem = None if out.text.strip() else "it is empty, or has pictures alone"
    except (Enough, NotDecoded) as error:
        problem = str(error)
    except MemoryError:
        return DecodedText(text=None, problem=TOO_LARGE)
    except Exception as error:  # noqa: BLE001  # libraries raise anything at broken files
        _log.info("a document cannot be read: %s", error, exc_info=True)
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
    raise NotDecoded("it is no document of a kind that is read, or damaged")


def _before_2007(data: bytes, out: Writer) -> Callable[[], None]:
    if "EncryptedPackage".encode("utf-16-le") in data:
        raise NotDecoded("it is locked by a password")
    if any(name.encode("utf-16-le") in data for name in ("Workbook", "Book")):
        return partial(sheets.other, data, out)
    raise NotDecoded("it is of Word or PowerPoint before 2007, which are not read: save it as .docx or .pptx")


def _attached(data: bytes, name: str, depth: int, out: Writer) -> None:
    """An attachment of a kind that is known by its name; what cannot be read says so among the text."""
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
    """Of code, until version 3 of the format."""
    # Programs that write notebooks have outputs of their own forms.
    outputs: list[dict[str, Any]] = []
    level: int = 1


class _Sheet(msgspec.Struct):
    cells: list[_Cell] = []


class _Notebook(msgspec.Struct):
    cells: list[_Cell] = []
    worksheets: list[_Sheet] = []
    # As above; only the language is read of it.
    metadata: dict[str, Any] = {}


def notebook(data: bytes, out: Writer) -> None:
    """A notebook of Jupyter: cells of Markdown and code, and the text of what the code put out.  Raises NotDecoded
    where it is none, whose text is what it says as it is."""
    try:
        book = msgspec.json.decode(data, type=_Notebook)
    except (msgspec.DecodeError, RecursionError) as error:
        out.write(data.decode("utf-8", "replace"))
        raise NotDecoded(f"it is no notebook that can be read: {error}") from None
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
