"""Spreadsheets, by calamine: XLSX, XLSB, XLS and ODS.

It ends the process where cells lie so far apart, or damage says so, that their grid does not fit into memory.
"""

from __future__ import annotations

import datetime
import io

from services.decode.results import NotDecoded
from services.decode.text.writer import Writer


def sheets(data: bytes, out: Writer) -> None:
    """Each sheet under its name, its rows as `a | b | c`; empty rows and cells at the end of a row are left out."""
    import python_calamine

    try:
        book = python_calamine.load_workbook(io.BytesIO(data))
        for number, name in enumerate(book.sheet_names):
            out.block(f"# {name}")
            for row in book.get_sheet_by_index(number).iter_rows():
                cells = [_cell(value) for value in row]
                if line := " | ".join(cells).rstrip("| "):
                    out.write(f"{line}\n")
            out.write("\n")
            out.place = f"sheet {number + 1} of {len(book.sheet_names)}"
    except python_calamine.PasswordError:
        raise NotDecoded("it is locked by a password") from None
    except BaseException as error:
        # A panic in Rust, which is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise NotDecoded(f"it is damaged: {error}") from None


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    return " ".join(str(value).split())
