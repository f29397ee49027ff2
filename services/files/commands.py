"""`linckia index` and `linckia du`: the index of the file system for people at a terminal."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from proto.control.client import Client
from proto.control.commands import AddCommand, Usage, add_json
from proto.control.terminal import Bars, Cell, complain, connect, counted, escaped, say, show_json, size

if TYPE_CHECKING:
    from services.files.operations.index import IndexResult

BAR_CELLS = 20
EIGHTHS = " ▏▎▍▌▋▊▉█"

_NOT_UTF_8 = 0x10FE00 - 0xDC00
"""Distance between Python's surrogate for a byte that is not UTF-8 and the character that services accept for it."""

INDEX_EPILOG = """\
Unchanged directories are skipped quickly. An interrupted scan keeps what it has indexed.
"""

DU_EPILOG = """\
examples:
  linckia du
  linckia du ~/notes --depth 1 --fresh
"""


def add(command: AddCommand) -> None:
    """Declare `index` and `du`."""
    index = command("index", run_index, "update the index of files to match the disk, and wait", INDEX_EPILOG)
    index.add_argument("paths", metavar="PATH", nargs="+", help="at or below a root of the kernel")
    add_json(index, help="the results of `index`, a list, as JSON")

    du = command("du", run_du, "show disk usage: a directory as a tree with bars, largest first", DU_EPILOG)
    du.add_argument("path", metavar="PATH", nargs="?", default=".", help="at or below a root (default: this folder)")
    du.add_argument("--depth", metavar="N", type=int, default=2, help="levels of directories (default: 2)")
    du.add_argument("--limit", metavar="N", type=int, default=10, help="entries per directory (default: 10)")
    du.add_argument("--fresh", action="store_true", help="scan even if the last scan is less than an hour old")
    add_json(du, help="as JSON")


def run_index(arguments: argparse.Namespace) -> int:
    """Update the index to match the disk. Exit code 1 if something was unreadable. Raises ControlError."""
    problems = 0
    answers: list[IndexResult] = []
    with connect(arguments) as client:
        for path in arguments.paths:
            answers.append(answer := _indexed(client, absolute(path), 0))
            if not arguments.json:
                took_s = (answer.duration_ms or 0) / 1000
                directories = counted(answer.directories or 0, "directory", "directories")
                say(
                    f"{answer.root}: {counted(answer.files or 0, 'file')}, {directories},"
                    f" {size(answer.total_size or 0)} in {took_s:.1f} s"
                )
            for problem in answer.problems:
                complain(problem)
            problems += answer.problem_count
    if arguments.json:
        show_json(answers)
    return 1 if problems else 0


def run_du(arguments: argparse.Namespace) -> int:
    """Print a directory's disk usage as a tree with bars, largest first. Raises ControlError, Usage."""
    import msgspec

    from services.files.operations.reading import Inspect

    if not 0 <= arguments.depth <= 100:
        raise Usage(f"--depth is {arguments.depth}; it must be 0 to 100")
    if not 1 <= arguments.limit <= 10_000:
        raise Usage(f"--limit is {arguments.limit}; it must be 1 to 10000")
    with connect(arguments) as client:
        path = absolute(arguments.path)
        _indexed(client, path, 0 if arguments.fresh else 3600)
        top = client.call(Inspect(path=path))
        lines = [Line(top.path, top.size, "", top.kind == "directory")]
        if top.kind == "directory":
            lines += _tree(client, top.path, arguments.depth, arguments.limit, "")
    if arguments.json:
        show_json({**msgspec.to_builtins(top), "tree": [line._asdict() for line in lines[1:]]})
        return 0
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1000
    for line in lines:
        say(drawn(line, top.size, width))
    return 0


class Line(NamedTuple):
    """A line of the tree."""

    name: str
    size: int
    branch: str
    """Branch characters in front of the name."""
    is_folder: bool


def _tree(client: Client, path: str, depth: int, limit: int, branch: str) -> Iterator[Line]:
    from services.files.operations.reading import Navigate

    if not depth:
        return
    page = client.call(Navigate(path=path, sort="size", desc=True, limit=limit))
    entries, more = page.entries, page.total - len(page.entries)
    for number, entry in enumerate(entries, 1):
        last = number == len(entries) and not more
        folder = entry.kind == "directory"
        yield Line(entry.name, entry.size, f"{branch}{'└─ ' if last else '├─ '}", folder)
        if folder:
            yield from _tree(client, entry.path, depth - 1, limit, f"{branch}{'   ' if last else '│  '}")
    if more:
        yield Line(f"… {more:,} more", 0, f"{branch}└─ ", False)


def drawn(line: Line, whole: int, width: int) -> list[Cell]:
    """Return size, share, bar and name, truncated to the width of the terminal."""
    if line.name.startswith("… ") and not line.size:
        return [f"{'':{9 + 2 + 5 + 2 + BAR_CELLS + 2}}{line.branch}{line.name}"[:width]]
    share = min(1.0, line.size / whole) if whole else 0.0
    eighths = round(share * BAR_CELLS * 8)
    bar = (EIGHTHS[8] * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")).ljust(BAR_CELLS)
    name = f"{escaped(line.name)}{'/' if line.is_folder and not line.name.endswith('/') else ''}"
    before = f"{size(line.size):>9}  {share * 100:4.0f}%  "
    room = max(0, width - len(before) - BAR_CELLS - 2)
    text = f"{line.branch}{name}"
    if len(text) > room:
        text = f"{text[: max(0, room - 1)]}…"
    return [before, (bar, "green"), f"  {text}"]


def absolute(path: str) -> str:
    """Return the absolute path as services accept it, with bytes that are not UTF-8 as private-use characters."""
    whole = os.path.abspath(os.path.expanduser(path))
    return "".join(chr(ord(char) + _NOT_UTF_8) if "\udc80" <= char <= "\udcff" else char for char in whole)


def _indexed(client: Client, path: str, max_age_s: int) -> IndexResult:
    from services.files.operations.index import Index

    with Bars("indexing") as show:
        return client.call(Index(root=path, async_=False, max_age=max_age_s), on_progress=show)
