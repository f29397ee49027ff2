"""Shared by the commands: calls of operations, and terminal output (tables, progress, sizes, durations).

All output of commands passes through here. A terminal obeys the text printed on it, while strangers choose file names,
file contents, log lines and service info. On a terminal, characters that would control it are shown as escapes
(`\\x1b`, `\\u202e`), and so are newlines within a line. A pipe gets everything unchanged, as with `ls` and `git`. JSON
stays valid in both cases.
"""

from __future__ import annotations

import argparse
import codecs
import itertools
import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, TextIO, TypeVar

from proto.control.client import CallFailed, Client
from proto.json_types import JsonObject

if TYPE_CHECKING:
    from rich.progress import TaskID

    from proto.operation import Params

P = TypeVar("P")
R = TypeVar("R")

OnProgress = Callable[[JsonObject], None]

Cell = str | tuple[str, str]
"""Text, or text with its style on a terminal."""

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

_UNSAFE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except the tab, characters that change text direction, line separators, and lone surrogates."""

_HALVES = re.compile("[\ud800-\udfff]")
"""Lone surrogates, which cannot be encoded."""

_COLOURS = {
    "green": "\x1b[32m", "magenta": "\x1b[35m", "yellow": "\x1b[33m", "red": "\x1b[31m", "bold red": "\x1b[1;31m",
    "dim": "\x1b[2m", "bold": "\x1b[1m",
}  # fmt: skip

MIN_LAST = 16
"""The last column of a table is not made narrower than this; other columns are left out instead."""

program: ContextVar[str] = ContextVar("program", default="linckia")
"""The command that runs, for the beginning of its messages."""


def escaped(text: str, unsafe: re.Pattern[str] = _UNSAFE) -> str:
    """Return one line without characters that control a terminal."""
    return unsafe.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def say(*lines: Cell | Sequence[Cell], to: TextIO | None = None, flush: bool = False) -> None:
    """Print lines, each a text or a sequence of texts that may have colours, to stdout or another stream."""
    stream = sys.stdout if to is None else to
    on_terminal = stream.isatty()
    colours = _COLOURS if on_terminal and not os.environ.get("NO_COLOR") else {}
    for line in lines:
        cells = [line] if isinstance(line, str) else [line] if _is_styled(line) else line
        written = ""
        for cell in cells:
            text, style = (cell, "") if isinstance(cell, str) else (str(cell[0]), str(cell[1]))
            shown = escaped(text, _UNSAFE if on_terminal else _HALVES)
            colour = colours.get(style, "")
            written += f"{colour}{shown}\x1b[0m" if colour and shown else shown
        stream.write(f"{written}\n")
    if flush:
        stream.flush()


def _is_styled(line: Cell | Sequence[Cell]) -> bool:
    return isinstance(line, tuple)


def pour(pieces: Iterable[bytes]) -> None:
    """Write bytes to stdout: unchanged, or as text if it is a terminal."""
    if not sys.stdout.isatty():
        sys.stdout.flush()
        sys.stdout.buffer.writelines(pieces)
        sys.stdout.buffer.flush()
        return
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    for piece, final in itertools.chain(((piece, False) for piece in pieces), [(b"", True)]):
        text = decoder.decode(piece, final)
        sys.stdout.write("\n".join(map(escaped, text.replace("\r\n", "\n").split("\n"))))
    sys.stdout.flush()


def connect(arguments: argparse.Namespace) -> Client:
    """Connect to the kernel of the given data directory. Raises ControlError."""
    return Client(arguments.data_dir)


def params_of(kind: Callable[..., P], arguments: argparse.Namespace, **own: object) -> P:
    """Return parameters of an operation: `own`, and the given options that are named like its parameters."""
    names: Sequence[str] = getattr(kind, "__struct_fields__")  # noqa: B009  # of a Struct
    given = {name: value for name in names if (value := getattr(arguments, name, None)) is not None}
    return kind(**{**given, **own})


def patiently(
    client: Client, params: Params[R], on_progress: OnProgress | None = None, *, patience_s: float = 60.0
) -> R:
    """Call a repeatable operation, retrying until its service has started. Raises CallFailed."""
    return repeated(lambda: client.call(params, on_progress=on_progress), patience_s)


def repeated(call: Callable[[], R], patience_s: float = 60.0) -> R:
    """Return the result of a call, repeated while its service starts. Raises CallFailed."""
    give_up_at = time.monotonic() + patience_s
    while True:
        try:
            return call()
        except CallFailed as error:
            wait_ms = error.failure.get("retry_after_ms")
            passing = error.failure.get("kind") in ("unavailable", "overloaded")
            if not passing or wait_ms is None or time.monotonic() > give_up_at:
                raise
            time.sleep(wait_ms / 1000)


def show_json(answer: object) -> None:
    """Print JSON, indented on a terminal, otherwise on one line. The results of typed calls may be anywhere in it."""
    on_terminal = sys.stdout.isatty()
    text = json.dumps(answer, default=_plain_data, ensure_ascii=False, indent=2 if on_terminal else None)
    # Within JSON strings, each of these characters can be escaped; outside of strings there are only newlines.
    unsafe = _UNSAFE if on_terminal else _HALVES
    say(*(unsafe.sub(lambda found: f"\\u{ord(found[0]):04x}", line) for line in text.split("\n")))


def _plain_data(result: object) -> object:
    import msgspec

    return msgspec.to_builtins(result)


def complain(text: object) -> None:
    """Print a message on stderr, after the name of the command."""
    say(*f"{program.get()}: {text}".split("\n"), to=sys.stderr)


def confirmed(question: str) -> bool:
    """Ask on the terminal; return whether the answer is yes."""
    say(question, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def counted(count: int, one: str, many: str = "") -> str:
    """Return `1 file`, `2 files`: a number and its noun."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def size(count: float) -> str:
    """Format bytes in a suitable unit."""
    for unit in UNITS:
        if count < 1024 or unit == UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


def duration(seconds: float) -> str:
    """Format a duration in its largest suitable unit: `12 s`, `3 min`, `5 h`, `2 d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def plain(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Format a table: columns padded to their widest cell, two spaces apart, without trailing spaces."""
    lines = [list(headers), *([cell if isinstance(cell, str) else cell[0] for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def columns_that_fit(
    headers: Sequence[str], rows: Sequence[Sequence[Cell]], width: int, drop: Sequence[str]
) -> tuple[list[int], int]:
    """Return the columns that fit, and the room for the last one."""
    kept = list(range(len(headers)))
    for header in (None, *drop):
        if header is not None:
            kept.remove(list(headers).index(header))
        widths = {column: max(len(_text(line[column])) for line in (headers, *rows)) for column in kept}
        spare = width - sum(widths.values()) - 2 * (len(kept) - 1)
        last = kept[-1]
        if spare >= 0 or (last and widths[last] + spare >= min(MIN_LAST, widths[last])):
            break
    return kept, widths[last] + min(0, spare) if last else max(width, widths[last])


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def cut(cell: Cell, room: int) -> Cell:
    text = _text(cell)
    if len(text) <= room:
        return cell
    shortened = f"{text[: max(0, room - 1)]}…"
    return shortened if isinstance(cell, str) else (shortened, cell[1])


def show_answer(
    as_json: bool, answer: object, headers: Sequence[str], rows: Sequence[Sequence[Cell]], drop: Sequence[str] = ()
) -> None:
    """Print the whole answer as JSON, or its rows as a table."""
    if as_json:
        show_json(answer)
    else:
        show_table(headers, rows, drop)


def show_table(
    headers: Sequence[str], rows: Sequence[Sequence[Cell]], drop: Sequence[str] = (), *, one_line: bool = False
) -> None:
    """Print a table, on a terminal fitted to its width: columns in `drop` are left out if they do not fit.

    Long text in the last column is wrapped at spaces, or with `one_line` shortened.
    """
    if not sys.stdout.isatty():
        say(*plain(headers, rows).split("\n"))
        return
    rows = [[_styled(escaped(_text(cell)), cell) for cell in row] for row in rows]
    kept, room = columns_that_fit(headers, rows, shutil.get_terminal_size().columns, drop)
    shown: list[list[Cell]] = []
    for row in rows:
        *cells, last = (row[column] for column in kept)
        if one_line:
            shown.append([*cells, cut(last, room)])
            continue
        pieces = textwrap.wrap(_text(last), max(room, 1), break_long_words=False, break_on_hyphens=False) or [""]
        shown.append([*cells, _styled(pieces[0], last)])
        shown += [[*([""] * len(cells)), _styled(piece, last)] for piece in pieces[1:]]
    say(*styled_lines([(headers[column], "dim") for column in kept], shown))


def styled_lines(headers: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> list[list[Cell]]:
    """Return the lines of a table, padded, as cells for `say`."""
    lines = [headers, *rows]
    widths = [max(len(_text(line[column])) for line in lines) for column in range(len(headers))]
    return [
        [
            _styled(_text(cell).ljust(width + 2 if number < len(widths) else 0), cell)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True), 1)
        ]
        for line in lines
    ]


def _styled(text: str, cell: Cell) -> Cell:
    return text if isinstance(cell, str) else (text, cell[1])


class Bars:
    """Shows progress on stderr as bars with rate and time left, if stderr is a terminal.

    With a `label` there is one bar; otherwise one for each item that the messages name (`notes: waits for the disk`).
    """

    def __init__(self, label: str = "", *, of_bytes: bool = False, shown: bool | None = None) -> None:
        self._label = label
        self._of_bytes = of_bytes
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._tasks: dict[str, tuple[TaskID, float, float]] = {}
        """For each item: its bar, and the time and count at its first report."""

    def __enter__(self) -> OnProgress | None:
        """Return a function that shows a report from the kernel: `done`, `total` and `message`."""
        if not self._shown:
            return None
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as TimeLeft

        count = DownloadColumn() if self._of_bytes else MofNCompleteColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), count, TextColumn("{task.fields[rate]}"), TimeLeft())
        said = TextColumn("{task.fields[said]}")
        self.progress = Progress(*columns, said, console=Console(stderr=True), transient=True)
        self.progress.start()
        return self.show

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self.progress.stop()

    def show(self, report: JsonObject) -> None:
        """Draw one report."""
        message, done = escaped(str(report["message"] or "")), report["done"]
        what, _, said = message.partition(": ") if not self._label else (self._label, "", message)
        if what not in self._tasks:
            self._tasks[what] = self.progress.add_task(what, rate="", said=""), time.monotonic(), done
        task, since, before = self._tasks[what]
        passed, gained = time.monotonic() - since, done - before
        per_s = size(gained / passed) if self._of_bytes and passed else f"{gained / (passed or 1):.0f}"
        rate = f"{per_s}/s" if passed > 0.5 else ""
        self.progress.update(task, completed=done, total=report["total"], rate=rate, said=said)
