"""Notebooks of Jupyter: cells of Markdown and code, and the text of what the code put out."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from services.decode.results import NotDecoded, Writer
from services.runtime.text.html import plain

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")

Lines = str | list[str]


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
    """Raises NotDecoded where it is none, whose text is what it says as it is."""
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
