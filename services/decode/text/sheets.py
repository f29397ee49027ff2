"""Spreadsheets as text: each sheet under its name, rows as `a | b | c`, comments below.

XLSX is read here, with numbers exactly as the file writes them, and the formulas of cells that were never calculated.
Other formats are read with calamine, which returns numbers as floating point and no comments; those of ODS are added.
"""

from __future__ import annotations

import datetime
import io
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Final

from services.decode.results import NotDecoded, Writer
from services.decode.text.markup import Attributes, elements, events
from services.decode.text.office import Archive, relations

_REFERENCE: Final = re.compile(r"([A-Z]{1,3})\d{1,7}")
_FORMAT_TEXT: Final = re.compile(r'"[^"]*"|\\.|_.|\*.')
"""Literal text in a number format."""
_ELAPSED: Final = re.compile(r"\[(?:h+|m+|s+)\]", re.IGNORECASE)
_IN_BRACKETS: Final = re.compile(r"\[[^\]]*\]")
_AS_SHOWN: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*[1-9])?")
_SHORT: Final = 16
"""Length up to which a number has no more digits than are shown."""
_ISO_DURATION: Final = re.compile(r"(-?)PT(\d{1,7})H(\d{1,2})M(\d{1,2})(?:[.,]\d+)?S")
_DATES: Final = frozenset({14, 15, 16, 17, 22, 27, 28, 29, 30, 31, 36, 50, 51, 52, 53, 54, 57, 58})
_TIMES: Final = frozenset({18, 19, 20, 21, 32, 33, 34, 35, 45, 47, 55, 56})
_BUILT_IN: Final = {46: "[h]:mm:ss"}
_DAY_S: Final = 86_400
_FIRST_DAY: Final = datetime.datetime(1899, 12, 30)
_FIRST_DAY_1904: Final = datetime.datetime(1904, 1, 1)
_MAX_DAYS: Final = 2_958_466


def xlsx(archive: Archive, main: str, out: Writer) -> None:
    """Write an XLSX workbook; `main` is its workbook member. Raises NotDecoded."""
    archive.check_size()
    known = relations(archive, main)
    members = {kind: member for kind, member in known.values()}
    book = _Book(archive, main, members)
    sheets = elements(archive.pieces(main), "sheet")
    for number, (_, given) in enumerate(sheets, 1):
        out.block(f"# {given.get('name', '')}")
        kind, member = known.get(given.get(":id", ""), ("", ""))
        if kind == "worksheet":
            _Sheet(book, out).read(archive, member)
            out.write("\n")
            _comments(archive, member, book.persons, out)
        out.place = f"sheet {number} of {len(sheets)}"


class _Book:
    """Data shared by the sheets of a workbook."""

    def __init__(self, archive: Archive, main: str, members: Mapping[str, str]) -> None:
        self.texts = list(_texts(archive, members.get("sharedStrings", ""), "si"))
        about = elements(archive.pieces(main), "workbookPr")
        is_1904 = any(given.get("date1904", "0") in ("1", "true") for _, given in about)
        self.first_day = _FIRST_DAY_1904 if is_1904 else _FIRST_DAY
        self.formats = _formats(archive, members.get("styles", ""))
        persons = elements(archive.pieces(members.get("person", "")), "person")
        self.persons = {given.get("id", ""): given.get("displayName", "") for _, given in persons}


def _texts(archive: Archive, member: str, name: str) -> Iterator[str]:
    """Return the text of each element with a name, without phonetic guides."""
    found: list[list[str]] = []
    depth = 0

    def start(element: str, attributes: Attributes) -> None:
        nonlocal depth
        if element == name:
            found.append([])
        depth += element == "t"
        depth -= 1000 * (element == "rPh")

    def end(element: str) -> None:
        nonlocal depth
        depth -= element == "t"
        depth += 1000 * (element == "rPh")

    def characters(text: str) -> None:
        if depth > 0 and found:
            found[-1].append(text)

    if member in archive:
        events(archive.pieces(member), start, end, characters)
    return ("".join(parts) for parts in found)


def _formats(archive: Archive, styles: str) -> list[str]:
    """Return, by cell style number: date, time, elapsed, elapsed seconds, or empty."""
    own: dict[str, str] = {}
    found: list[str] = []
    is_cell = False

    def start(name: str, given: Attributes) -> None:
        nonlocal is_cell
        if name == "numFmt":
            own[given.get("numFmtId", "")] = given.get("formatCode", "")
        elif name in ("cellXfs", "cellStyleXfs", "dxfs"):
            is_cell = name == "cellXfs"
        elif name == "xf" and is_cell:
            found.append(_kind_of(given.get("numFmtId", "0"), own))

    def end(name: str) -> None:
        nonlocal is_cell
        is_cell &= name != "cellXfs"

    if styles in archive:
        events(archive.pieces(styles), start, end)
    return found


def _kind_of(id_: str, own: Mapping[str, str]) -> str:
    number = int(id_) if id_.isdecimal() and len(id_) < 9 else 0
    code = own.get(id_) or _BUILT_IN.get(number, "")
    if not code:
        return "date" if number in _DATES else "time" if number in _TIMES else ""
    shown = _FORMAT_TEXT.sub("", code.partition(";")[0]).lower()
    if _ELAPSED.search(shown):
        return "elapsed seconds" if "s" in shown else "elapsed"
    plain = _IN_BRACKETS.sub("", shown)
    if "general" in plain or re.search(r"[0#?]", plain.replace(".000", "").replace(".00", "").replace(".0", "")):
        return ""
    return "date" if re.search("[yd]", plain) else "time" if re.search("[hs]", plain) else "date" * ("m" in plain)


class _Sheet:
    """Writes the rows of a sheet."""

    def __init__(self, book: _Book, out: Writer) -> None:
        self._book = book
        self._out = out
        self._cells: dict[int, str] = {}
        self._column = 0
        self._type = ""
        self._style = ""
        self._value: list[str] = []
        self._formula: list[str] = []
        self._is_value = self._is_formula = False
        self._silent = 0

    def read(self, archive: Archive, member: str) -> None:
        events(archive.pieces(member), self._start, self._end, self._characters)

    def _start(self, name: str, given: Attributes) -> None:
        if name == "c":
            match = _REFERENCE.fullmatch(given.get("r", ""))
            self._column = _number(match[1]) if match else self._column + 1
            self._type, self._style = given.get("t", "n"), given.get("s", "")
            self._value, self._formula = [], []
        elif name == "f":
            self._is_formula = True
        elif name in ("v", "t"):
            self._is_value = not self._silent
        elif name == "rPh":
            self._silent += 1
        elif name == "row":
            self._cells, self._column = {}, 0
            self._out.check()

    def _characters(self, text: str) -> None:
        if self._is_value:
            self._value.append(text)
        elif self._is_formula:
            self._formula.append(text)

    def _end(self, name: str) -> None:
        if name in ("v", "t"):
            self._is_value = False
        elif name == "rPh":
            self._silent -= 1
        elif name == "f":
            self._is_formula = False
        elif name == "c" and self._formula and not self._value:
            self._cells[self._column] = "=" + " ".join("".join(self._formula).split())
        elif name == "c" and self._value:
            if text := " ".join(self._shown("".join(self._value)).split()):
                self._cells[self._column] = text
        elif name == "row" and self._cells:
            columns = range(1, max(self._cells) + 1)
            line = " | ".join(self._cells.get(column, "") for column in columns)
            self._out.write(f"{line}\n")

    def _shown(self, raw: str) -> str:
        if self._type == "s":
            index = int(raw) if raw.isdecimal() and len(raw) < 10 else -1
            return self._book.texts[index] if 0 <= index < len(self._book.texts) else ""
        if self._type == "b":
            return "TRUE" if raw.strip() == "1" else "FALSE"
        if self._type != "n":
            # The name of an error, `#N/A`, or an ISO date.
            return raw
        style = int(self._style) if self._style.isdecimal() and len(self._style) < 9 else -1
        kind = self._book.formats[style] if 0 <= style < len(self._book.formats) else ""
        return _moment(raw, kind, self._book.first_day) if kind else number(raw)


def _number(letters: str) -> int:
    """Return the number of a column, from 1."""
    value = 0
    for letter in letters:
        value = 26 * value + ord(letter) - 64
    return value


def number(raw: str) -> str:
    """Format a number as in a sufficiently wide cell: all digits of an integer, 15 of a fraction."""
    if len(raw) <= _SHORT and _AS_SHOWN.fullmatch(raw):
        return raw
    try:
        exact = Decimal(raw.strip())
    except InvalidOperation:
        return raw
    if not exact.is_finite() or exact.adjusted() > 30:
        return raw
    if exact == exact.to_integral_value():
        return f"{int(exact)}"
    return f"{float(exact):.15g}"


def elapsed(seconds: float, *, with_seconds: bool = True) -> str:
    """Format a duration in hours, however many."""
    whole = round(abs(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    sign = "-" if seconds < 0 else ""
    return f"{sign}{hours}:{minutes:02}" + (f":{left:02}" if with_seconds or left else "")


def _moment(raw: str, kind: str, first_day: datetime.datetime) -> str:
    try:
        days = float(raw)
    except ValueError:
        return raw
    if kind.startswith("elapsed") and abs(days) < _MAX_DAYS:
        return elapsed(days * _DAY_S, with_seconds=kind != "elapsed")
    if not 0 <= days < _MAX_DAYS:
        return number(raw)
    moment = first_day + datetime.timedelta(seconds=round(days * _DAY_S))
    return shown(moment.time() if days < 1 and kind == "time" else moment)


def shown(value: object) -> str:
    """Format a cell's value."""
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case float() | int():
            return number(repr(value))
        case datetime.timedelta():
            return elapsed(value.total_seconds())
        case datetime.datetime():
            return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ")
        case _:
            return " ".join(str(value).split())


def _comments(archive: Archive, sheet: str, persons: Mapping[str, str], out: Writer) -> None:
    """Write a sheet's notes and comment threads, without the notes that duplicate threads for older programs."""
    threads: list[tuple[str, str, str]] = []
    notes: list[tuple[str, str, str]] = []
    for kind, member in relations(archive, sheet).values():
        if kind == "threadedComment":
            given = [each for _, each in elements(archive.pieces(member), "threadedComment")]
            said = _texts_of(archive, member, "threadedComment", "text")
            threads += [
                (each.get("ref", ""), persons.get(each.get("personId", ""), ""), text)
                for each, text in zip(given, said, strict=False)
            ]
        elif kind == "comments":
            authors = list(_texts_of(archive, member, "author", "author"))
            given = [each for _, each in elements(archive.pieces(member), "comment")]
            for each, text in zip(given, _texts(archive, member, "comment"), strict=False):
                index = each.get("authorId", "")
                is_known = index.isdecimal() and len(index) < 9 and int(index) < len(authors)
                notes.append((each.get("ref", ""), authors[int(index)] if is_known else "", text))
    threaded = {place for place, _, _ in threads}
    comments = [note for note in notes if note[0] not in threaded] + threads
    lines = [f"- {place}{f' ({by})' if by and not by.startswith('tc=') else ''}: {' '.join(text.split())}"
             for place, by, text in comments if text.strip()]  # fmt: skip
    if lines:
        out.block("Comments:\n\n" + "\n".join(lines))


def _texts_of(archive: Archive, member: str, name: str, inner: str) -> Iterator[str]:
    """Return the characters of the elements `inner` within each element with a name."""
    found: list[list[str]] = []
    depth = 0

    def start(element: str, _: Attributes) -> None:
        nonlocal depth
        if element == name:
            found.append([])
        depth += element == inner

    def end(element: str) -> None:
        nonlocal depth
        depth -= element == inner

    def characters(text: str) -> None:
        if depth > 0 and found:
            found[-1].append(text)

    events(archive.pieces(member), start, end, characters)
    return ("".join(parts) for parts in found)


def other(data: bytes, out: Writer, notes: Mapping[str, list[str]] | None = None) -> None:
    """Write a workbook of another format; `notes` are those of each sheet by its name. Empty rows, and empty cells at
    the end of a row, are left out.

    calamine aborts the process if cells are so far apart, or damage makes them seem so, that their grid does not fit
    into memory.
    """
    import python_calamine

    try:
        book = python_calamine.load_workbook(io.BytesIO(data))
        for index, name in enumerate(book.sheet_names):
            out.block(f"# {name}")
            for row in book.get_sheet_by_index(index).iter_rows():
                values = row if notes is None else map(_lasting, row)
                if line := " | ".join(map(shown, values)).rstrip("| "):
                    out.write(f"{line}\n")
            out.write("\n")
            if lines := (notes or {}).get(name):
                out.block("Comments:\n\n" + "\n".join(f"- {line}" for line in lines))
            out.place = f"sheet {index + 1} of {len(book.sheet_names)}"
    except python_calamine.PasswordError:
        raise NotDecoded("it is password-protected") from None
    except BaseException as error:
        # A Rust panic is not derived from Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise NotDecoded(f"it is damaged: {error}") from None


def _lasting(value: object) -> object:
    """Parse a duration, which calamine returns as OpenDocument writes it."""
    match = _ISO_DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    sign, hours, minutes, seconds = match.groups()
    return datetime.timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds)) * (-1 if sign else 1)


def ods(archive: Archive, data: bytes, out: Writer) -> None:
    """Write an OpenDocument workbook with its notes."""
    archive.check_size()
    notes: dict[str, list[str]] = {}
    parts: list[str] = []
    table = ""
    depth = 0

    def start(name: str, given: Attributes) -> None:
        nonlocal table, depth
        if name == "table":
            table = given.get(":name", "")
        depth += name == "annotation"
        if depth and name == "p":
            parts.append(" ")

    def end(name: str) -> None:
        nonlocal depth
        depth -= name == "annotation"
        if depth and name in ("creator", "date"):
            parts.append(" ")
        if name == "annotation":
            notes.setdefault(table, []).append(" ".join("".join(parts).split()))
            parts.clear()

    def characters(text: str) -> None:
        if depth:
            parts.append(text)

    events(archive.pieces("content.xml"), start, end, characters)
    other(data, out, notes)
