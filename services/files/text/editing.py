"""Extracts ranges of lines from a text, and applies edits to it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import msgspec
from msgspec import structs

from proto.errors import InvalidParams, OperationError
from services.files.operations.text import FileEdit, FileText
from services.files.text.nearly import difference
from services.runtime.rewrite import content_hash
from services.shared.text.lines import span
from services.shared.text.nearest import nearest_line
from services.shared.text.texts import Text

MAX_LINES = 2_000
"""Number of lines returned if no range is given."""
MAX_CHARACTERS = 400_000
MAX_LINE_CHARACTERS = 2_000


def total_lines(text: str) -> int:
    """Return the number of lines in a text; the last one need not end in a line feed."""
    return text.count("\n") + (not text.endswith("\n") and text != "")


def at_line(text: str, line: int) -> int:
    """Return the offset at which a line (counted from 1) begins, or the end of the text if it has fewer lines."""
    position = 0
    for _ in range(line - 1):
        position = text.find("\n", position) + 1
        if not position:
            return len(text)
    return position


def part(data: bytes, text: Text, lines: str) -> FileText:
    """Return the requested lines of a file, as many as fit into an answer.

    Raises:
        InvalidParams: `lines` is not a range, or begins past the end.
    """
    total = total_lines(text.text)
    first, last = span(lines, 1, total) if lines else (1, MAX_LINES)
    last = min(last, total)
    if (first > last or not first) and (lines or total):
        raise InvalidParams(f"`lines`: no lines {lines}; the file has {total}", field="lines")
    start = at_line(text.text, first)
    shown = text.text[start : at_line(text.text[start:], last - first + 2) + start]
    return structs.replace(
        answered(shown, first, last, total, is_range=bool(lines)), bytes=len(data), encoding=text.encoding,
        encoding_from=text.reason, hash=content_hash(data), line_ends=text.line_ends,
    )  # fmt: skip


def answered(shown: str, first: int, last: int, total: int, *, is_range: bool) -> FileText:
    """Return as many of the lines from `first` to `last` as fit into an answer; nothing else of the file is filled
    in."""
    most = MAX_LINE_CHARACTERS if last > first else MAX_CHARACTERS
    kept: list[str] = []
    room, cut = MAX_CHARACTERS, 0
    for line in _lines(shown):
        if room <= 0:
            break
        whole = line.removesuffix("\n")
        beyond = len(whole) - most
        cut += beyond > 0
        kept.append(f"{whole[:most]}… {beyond} more characters{line[len(whole) :]}" if beyond > 0 else line)
        room -= len(kept[-1])
    end = first + len(kept) - 1
    return FileText(
        text="".join(kept), lines=f"{first}-{end}" if kept else "", total_lines=total, bytes=0, encoding="", hash="",
        cut_lines=cut, next_lines=f"{end + 1}-" if end < total and (end < last or not is_range) else "",
    )  # fmt: skip


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]


class _Lines(msgspec.Struct):
    """An edit of whole lines, and the place of these lines in the text at present."""

    edit: FileEdit
    number: int
    start: int
    end: int


def edited(text: str, edits: Sequence[FileEdit]) -> tuple[str, int]:
    """Apply edits, and return the text with the number of places changed.

    Lines are numbered as in `text`, whatever the other edits do. Each `old` is looked for in the result of the edits of
    this kind before it, and not in new lines.

    Raises:
        OperationError: the text to replace is missing, or occurs in several places.
        InvalidParams: the lines to replace do not exist, or are edited twice.
    """
    ranges = sorted(
        (_lines_of(text, edit, number) for number, edit in enumerate(edits) if edit.lines), key=lambda each: each.start
    )
    for one, other in itertools.pairwise(ranges):
        if other.start < one.end:
            raise _overlap(*sorted((one, other), key=lambda each: each.number))
    places = len(ranges)
    for number, edit in enumerate(edits):
        if edit.lines:
            continue
        field = f"edits[{number}].old"
        spans = _spans(text, edit.old)
        if not spans or (len(spans) > 1 and not edit.all):
            raise OperationError(f"`{field}` {_where(text, edit.old, spans)}; no edits were made", field=field)
        news = _replacements(text, edit, spans)
        _move(ranges, spans, news, number)
        text = _with_spans(text, spans, news)
        places += len(spans)
    for each in reversed(ranges):
        text = text[: each.start] + _new_lines(text, each) + text[each.end :]
    return text, places


def _lines_of(text: str, edit: FileEdit, number: int) -> _Lines:
    field = f"edits[{number}].lines"
    total = total_lines(text)
    first, last = span(edit.lines, 1, total, field)
    if not 1 <= first <= last <= total:
        raise InvalidParams(f"`{field}`: no lines {edit.lines}; the file has {total}", field=field)
    start = at_line(text, first)
    return _Lines(edit, number, start, start + at_line(text[start:], last - first + 2))


def _move(ranges: Sequence[_Lines], spans: Sequence[tuple[int, int]], news: Sequence[str], number: int) -> None:
    """Note that the spans are replaced. Raises InvalidParams if one of them is in lines that another edit replaces."""
    shift, at = 0, 0
    for each in ranges:
        while at < len(spans) and spans[at][1] <= each.start:
            shift += len(news[at]) - (spans[at][1] - spans[at][0])
            at += 1
        if at < len(spans) and spans[at][0] < each.end:
            field = f"edits[{number}].old"
            raise InvalidParams(
                f"`{field}` is in lines {each.edit.lines}, which `edits[{each.number}].lines` replaces; edits may not"
                " overlap, and none were made",
                field=field,
            )
        each.start += shift
        each.end += shift


def _overlap(one: _Lines, other: _Lines) -> InvalidParams:
    field = f"edits[{other.number}].lines"
    return InvalidParams(
        f"`{field}`: {other.edit.lines} overlaps lines {one.edit.lines} of `edits[{one.number}]`; all line numbers are"
        " those of the file before the edits, and none were made",
        field=field,
    )


def _spans(text: str, old: str) -> list[tuple[int, int]]:
    """Find all occurrences of `old`. If its line ends match nowhere, any line ends match."""
    found = [(match.start(), match.end()) for match in re.finditer(re.escape(old), text)]
    if not found and "\n" in old and "\r\n" in text + old:
        parts = map(re.escape, old.replace("\r\n", "\n").split("\n"))
        found = [(match.start(), match.end()) for match in re.finditer("\r?\n".join(parts), text)]
    return found


def _replacements(text: str, edit: FileEdit, spans: Sequence[tuple[int, int]]) -> list[str]:
    # An edit that changes only line ends keeps those in its new text.
    is_of_ends = edit.old.replace("\r\n", "\n") == edit.new.replace("\r\n", "\n")
    return [edit.new if is_of_ends else _ended(text, start, end, edit.new) for start, end in spans]


def _with_spans(text: str, spans: Sequence[tuple[int, int]], news: Sequence[str]) -> str:
    parts: list[str] = []
    at = 0
    for (start, end), new in zip(spans, news, strict=True):
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])


def _ended(text: str, start: int, end: int, new: str) -> str:
    """Give the new text for a span the line ends of the lines around it; if those differ, the file's most common
    ones."""
    if "\n" not in new:
        return new
    before, after = text.rfind("\n", 0, start), text.find("\n", max(end - 1, start))
    around = {text[at - 1 : at] == "\r" for at in (before, after) if at >= 0}
    if not around:
        return new
    pairs = text.count("\r\n")
    is_pair = around.pop() if len(around) == 1 else 2 * pairs > text.count("\n")
    return new.replace("\r\n", "\n").replace("\n", "\r\n" if is_pair else "\n")


def _where(text: str, old: str, spans: Sequence[tuple[int, int]]) -> str:
    if not spans:
        if differs := difference(text[: 1 << 22], old):
            return f"was not found in the file: {differs}"
        return f"was not found in the file{nearest_line(text, old)}"
    lines = ", ".join(str(text.count("\n", 0, start) + 1) for start, _ in spans[:10])
    return f"occurs {len(spans)} times, in lines {lines}: include more of the surrounding text, or set `all`"


def _new_lines(text: str, lines: _Lines) -> str:
    # The end of the last line is preserved: neither added nor removed.
    new = lines.edit.new
    kept = next((one for one in ("\r\n", "\n") if text[lines.start : lines.end].endswith(one)), "")
    return _ended(text, lines.start, lines.end, new.removesuffix("\n").removesuffix("\r")) + kept if new else ""
