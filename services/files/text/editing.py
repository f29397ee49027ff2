"""Parts of a text by their lines, and edits of it."""

from __future__ import annotations

from collections.abc import Sequence

from proto.errors import InvalidParams, OperationError
from proto.near import did_you_mean
from proto.ops.files.text import FileEdit, FileText
from services.files.text.texts import Text
from services.runtime.rewrite import content_hash
from services.runtime.text.lines import span

MAX_LINES = 2_000
"""Lines that are answered where none are asked for."""
MAX_CHARACTERS = 400_000
MAX_LINE_CHARACTERS = 2_000


def total_lines(text: str) -> int:
    """How many lines a text has; the last one need not end in a line feed."""
    return text.count("\n") + (not text.endswith("\n") and text != "")


def at_line(text: str, line: int) -> int:
    """Where a line begins, counted from 1; the end of the text where there are not so many."""
    position = 0
    for _ in range(line - 1):
        position = text.find("\n", position) + 1
        if not position:
            return len(text)
    return position


def part(data: bytes, text: Text, lines: str) -> FileText:
    """The lines of a file that were asked for, as many as an answer holds.

    Raises:
        InvalidParams: `lines` is no range, or begins past the end.
    """
    total = total_lines(text.text)
    first, last = span(lines, 1, total) if lines else (1, MAX_LINES)
    last = min(last, total)
    if (first > last or not first) and (lines or total):
        raise InvalidParams(f"`lines`: lines {lines} are not there; the file has {total}", field="lines")
    start = at_line(text.text, first)
    shown = text.text[start : at_line(text.text[start:], last - first + 2) + start]
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
        text="".join(kept), lines=f"{first}-{end}" if kept else "", total_lines=total, bytes=len(data),
        encoding=text.encoding, encoding_from=text.reason, hash=content_hash(data), line_ends=text.line_ends,
        cut_lines=cut,
        next_lines=f"{end + 1}-" if end < total and (end < last or not lines) else "",
    )  # fmt: skip


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]


def edited(text: str, edits: Sequence[FileEdit]) -> tuple[str, int]:
    """A text after edits, each of which sees what those before it left; and how many places they changed.

    Raises:
        OperationError: the text of one is not there, or in several places.
        InvalidParams: the lines of one are not there.
    """
    places = 0
    for number, edit in enumerate(edits):
        field = f"edits[{number}]"
        if edit.lines:
            text = _with_lines(text, edit, f"{field}.lines")
            places += 1
            continue
        count = text.count(edit.old)
        if not count or (count > 1 and not edit.all):
            raise OperationError(
                f"`{field}.old` {_where(text, edit.old, count)}; none of the edits was made", field=f"{field}.old"
            )
        text = text.replace(edit.old, edit.new)
        places += count
    return text, places


def _where(text: str, old: str, count: int) -> str:
    if not count:
        first = old.strip().partition("\n")[0].strip()
        near = did_you_mean(first, [line.strip() for line in text[: 1 << 20].split("\n") if line.strip()])
        return f"is not in the file{near}"
    lines, position = [], -1
    for _ in range(min(count, 10)):
        position = text.find(old, position + 1)
        lines.append(str(text.count("\n", 0, position) + 1))
    return f"is in the file {count} times, in lines {', '.join(lines)}: give more of what is around it, or `all`"


def _with_lines(text: str, edit: FileEdit, field: str) -> str:
    total = total_lines(text)
    first, last = span(edit.lines, 1, total, field)
    if not 1 <= first <= last <= total:
        raise InvalidParams(f"`{field}`: lines {edit.lines} are not there; the file has {total}", field=field)
    start = at_line(text, first)
    end = start + at_line(text[start:], last - first + 2)
    new = edit.new
    # The line feed that ends the last of them is not theirs to lose, nor to gain.
    if new and text[start:end].endswith("\n"):
        new = new if new.endswith("\n") else f"{new}\n"
    elif new:
        new = new.removesuffix("\n")
    return text[:start] + new + text[end:]
