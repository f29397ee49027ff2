"""`linckia index`, `du`, `changes` and `undo`: the index of the file system and the changes of files, for people at a
terminal."""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from proto.control.client import Client
from proto.control.commands import AddCommand, Failed, Group, Usage, add_json
from proto.control.terminal import (
    Bars,
    Cell,
    complain,
    connect,
    counted,
    escaped,
    params_of,
    patiently,
    say,
    show_answer,
    show_json,
    show_table,
    size,
)

if TYPE_CHECKING:
    from services.files.operations.index import IndexResult
    from services.files.operations.undo import ListedChange, ShownChange, UndoChanges, UndoResult

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

CHANGES_EPILOG = """\
examples:
  linckia changes --since '1 hour ago'
  linckia changes --path ~/notes --limit 5
  linckia changes --show k7wq2mfa3x
"""

UNDO_EPILOG = """\
examples:
  linckia undo --last
  linckia undo --last ~/notes/plan.md
  linckia undo --since '1 hour ago' ~/notes --dry-run
  linckia undo --id k7wq2mfa3x

A file that was changed again since is skipped, and the exit status is 1. With --merge, the later changes stay if they
are to other lines. An undo is a change too, so it can itself be undone by its id.
"""

PAGE = 100

GROUP = Group.FILES


def add(command: AddCommand) -> None:
    """Declare `index`, `du`, `changes` and `undo`."""
    index = command("index", run_index, "update the index of files to match the disk, and wait", INDEX_EPILOG)
    index.add_argument("paths", metavar="PATH", nargs="+", help="at or below a root of the kernel")
    add_json(index, help="the results of `index`, a list, as JSON")

    du = command("du", run_du, "show disk usage: a directory as a tree with bars, largest first", DU_EPILOG)
    du.add_argument("path", metavar="PATH", nargs="?", default=".", help="at or below a root (default: this folder)")
    du.add_argument("--depth", metavar="N", type=int, default=2, help="levels of directories (default: 2)")
    du.add_argument("--limit", metavar="N", type=int, default=10, help="entries per directory (default: 10)")
    du.add_argument("--fresh", action="store_true", help="scan even if the last scan is less than an hour old")
    add_json(du, help="as JSON")

    changes = command("changes", run_changes, "list what clients changed in files, the latest first", CHANGES_EPILOG)
    changes.add_argument("--path", metavar="PATH", help="only this file, or what is below this folder")
    changes.add_argument("--limit", metavar="N", type=int, default=20, help="changes at most (default: 20)")
    changes.add_argument("--show", metavar="ID", help="show what this change did, as unified diffs")

    undo = command("undo", run_undo, "undo what clients changed in files", UNDO_EPILOG)
    undo.add_argument("path", metavar="PATH", nargs="?", help="only this file, or what is below this folder")
    one = undo.add_mutually_exclusive_group()
    one.add_argument("--last", action="store_true", help="the latest change (of those that match)")
    one.add_argument("--id", metavar="ID", default="", help="this change; `linckia changes` lists them")
    undo.add_argument("--dry-run", action="store_true", help="only report what would be undone")
    undo.add_argument("--merge", action="store_true", help="keep what was changed since in other lines of a file")
    for each in (changes, undo):
        each.add_argument("--session", metavar="ID", default="", help="only changes of this session of a client")
        each.add_argument("--task", metavar="TASK", default="", help="only changes of this task, plan or timer")
        each.add_argument("--since", metavar="WHEN", help="only from then on: '2 hours ago', a date, or RFC 3339")
    add_json(changes, undo)


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


def run_changes(arguments: argparse.Namespace) -> int:
    """List changes, or show one with its diffs. Raises ControlError, Usage."""
    from services.files.operations.undo import ListChanges, ShowChange

    if not 1 <= arguments.limit <= 1000:
        raise Usage(f"--limit is {arguments.limit}; it must be 1 to 1000")
    path = None if arguments.path is None else absolute(arguments.path)
    with connect(arguments) as client:
        if arguments.show is not None:
            shown = patiently(client, ShowChange(id=arguments.show, path=path))
            if arguments.json:
                show_json(shown)
            else:
                say(*_diffs(shown))
            return 0
        answer = patiently(client, params_of(ListChanges, arguments, path=path))
    rows = [row for change in answer.changes for row in _rows(change)]
    headers = ("CHANGE", "AT", "CLIENT", "SESSION", "TASK", "OPERATION", "KIND", "STATE", "PATH")
    show_answer(arguments.json, answer, headers, rows, drop=("SESSION", "TASK", "OPERATION", "CLIENT"))
    _warn(answer.degraded)
    return 0


def _rows(change: ListedChange) -> Iterator[list[Cell]]:
    """Yield a row for each path of a change."""
    at = datetime.datetime.fromisoformat(change.at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    first: list[Cell] = [(change.id, "bold"), at, change.client, change.session, change.task, change.operation]
    for each in change.files:
        state = f"undone by {each.undone_by}" if each.undone_by else "cannot be undone" if each.lost else ""
        yield [*first, each.kind, state, f"{each.path} -> {each.to}" if each.to else each.path]
    if change.more_files:
        yield [*first, "", "", f"… {change.more_files:,} more"]


def _diffs(shown: ShownChange) -> Iterator[Cell]:
    yield f"change {shown.id} at {shown.at}: {shown.operation} by {shown.client}"
    for each in shown.files:
        yield (f"{each.kind} {each.path}{f' -> {each.to}' if each.to else ''}", "bold")
        if each.note:
            yield f"({each.note})"
        # A name may have line breaks, with which the diff's own head could look like something else.
        diff = each.diff.removeprefix(f"--- {each.path}\n+++ {each.path}\n").removesuffix("\n")
        for line in diff.split("\n") if diff else ():
            yield (line, {"+": "green", "-": "red", "@": "magenta"}.get(line[:1], ""))


def run_undo(arguments: argparse.Namespace) -> int:
    """Undo changes. Exit code 1 if something was skipped, or nothing matches. Raises ControlError, Usage, Failed."""
    from msgspec import structs

    from services.files.operations.undo import UndoChanges

    path = None if arguments.path is None else absolute(arguments.path)
    asked = params_of(UndoChanges, arguments, path=path)
    if not (arguments.last or asked.id or asked.session or asked.task or asked.since or path):
        raise Usage("give --last, --id ID, --session ID, --task TASK, --since WHEN or a PATH")
    with connect(arguments) as client:
        if arguments.last:
            asked = structs.replace(asked, id=_last(client, asked))
        with Bars("undoing") as show:
            answer = patiently(client, asked, show)
    if arguments.json:
        show_json(answer)
    else:
        show_undone(answer)
    _warn(answer.degraded)
    return 1 if answer.skipped or not answer.results else 0


def _last(client: Client, asked: UndoChanges) -> str:
    """Return the id of the latest change that is in force and not itself an undo. Raises Failed."""
    from services.files.operations.undo import ListChanges

    offset = 0
    while True:
        listed = patiently(
            client,
            ListChanges(
                session=asked.session, task=asked.task, path=asked.path, since=asked.since, limit=PAGE, offset=offset
            ),
        )
        for change in listed.changes:
            if not change.undoes and any(not each.undone_by for each in change.files):
                return change.id
        if not (listed.has_more and listed.changes):
            raise Failed("there is no change to undo; `linckia changes` lists those that are kept")
        offset += len(listed.changes)


def show_undone(answer: UndoResult) -> None:
    """Print what was undone as a table, what was skipped with its reason, and the totals."""
    if not answer.results:
        say("nothing to undo: no change matches")
        return
    rows: list[list[Cell]] = [[(each.change, "bold"), each.kind, each.status, each.path] for each in answer.results]
    show_table(("CHANGE", "KIND", "STATUS", "PATH"), rows, drop=("KIND",))
    done = "would be undone" if answer.dry_run else "undone"
    skipped = f", {answer.skipped:,} skipped" if answer.skipped else ""
    again = f"; `linckia undo --id {answer.change}` takes this back" if answer.change else ""
    say(f"{answer.undone:,} {done}{skipped}{again}")
    for each in answer.results:
        if each.status == "skipped":
            complain(each.reason if each.path in each.reason else f"{each.path}: {each.reason}")
    if more := answer.undone + answer.skipped - len(answer.results):
        complain(f"the answer has no room for {counted(more, 'more path')}; `linckia changes` lists all")


def _warn(degraded: Sequence[str]) -> None:
    if degraded:
        complain(f"the latest changes of {', '.join(degraded)} may be missing")


def _indexed(client: Client, path: str, max_age_s: int) -> IndexResult:
    from services.files.operations.index import Index

    with Bars("indexing") as show:
        return client.call(Index(root=path, async_=False, max_age=max_age_s), on_progress=show)
