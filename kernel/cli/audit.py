"""`linckia audit`: who changed what, and what was refused. Reads the files, including rotated ones, without a
kernel."""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import fnmatch
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kernel.chronicle.audit import AuditEntry, entries, files_of, now, path_of
from kernel.cli.logs import POLL_S, Followed
from kernel.configure.config import seconds
from proto.control.commands import Failed, Usage
from proto.control.terminal import escaped, say
from proto.vocabulary import current_name

DEFAULT_COUNT = 50


def audit(arguments: argparse.Namespace) -> int:
    """Print the last matching lines; with `--follow`, until interrupted. Raises Failed, Usage."""
    data_dir: Path = arguments.data_dir
    since = None if arguments.since is None else when(arguments.since)
    count = arguments.count if arguments.count is not None or since is not None else DEFAULT_COUNT
    if count is not None and count < 0:
        raise Usage(f"-n is {count}; it must be a number of lines, 0 or more")
    fits = _filter(arguments, since)
    show = (lambda entry: msgspec.json.encode(entry).decode()) if arguments.json else in_words
    paths, current = files_of(data_dir), path_of(data_dir)
    if not paths and not arguments.follow:
        raise Failed(f"nothing has been recorded in {current.parent} yet; see [audit] in the settings")
    with contextlib.ExitStack() as opened:
        followed = opened.enter_context(_followed(current)) if arguments.follow and current in paths else None
        read = [_read(path) if followed is None or path != current else _entries(followed.written()) for path in paths]
        found = filter(fits, itertools.chain.from_iterable(read))
        for entry in found if count is None else collections.deque(found, maxlen=count):
            say(show(entry))
        if arguments.follow:
            say(flush=True)
            followed = followed or opened.enter_context(_followed(current))
            for entry in filter(fits, _entries(followed.new())):
                say(show(entry), flush=True)
    return 0


def when(text: str) -> datetime.datetime:
    """Parse an instant: a time span before now, or a date or time (local unless it names a zone). Raises Usage."""
    if (ago := seconds(text)) is not None:
        return now() - datetime.timedelta(seconds=ago)
    try:
        return datetime.datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise Usage(f"--since is {text!r}; write 90s, 10min, 1h, 2d, or a date such as 2026-11-23T14:00") from None


def _filter(arguments: argparse.Namespace, since: datetime.datetime | None) -> Callable[[AuditEntry], bool]:
    def fits(entry: AuditEntry) -> bool:
        return (
            (since is None or entry.at >= since)
            and arguments.who in (None, entry.who)
            and (arguments.operation is None or fnmatch.fnmatchcase(current_name(entry.operation), arguments.operation))
            and not (arguments.failed and entry.outcome == "ok")
        )

    return fits


def _read(path: Path) -> Iterator[AuditEntry]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        # It has just been rotated away.
        return
    with file:
        yield from entries(file)


def _entries(lines: Iterator[str]) -> Iterator[AuditEntry]:
    return entries(line.encode() for line in lines)


def _followed(path: Path) -> Followed:
    """Open the current file as soon as it exists."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return Followed(path)
        time.sleep(POLL_S)


def in_words(entry: AuditEntry) -> str:
    """Return a line for people, without characters that control a terminal."""
    at = entry.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    times = f" ({entry.count} times)" if entry.count > 1 else ""
    took = "" if entry.duration_ms is None else f" ({entry.duration_ms:.0f} ms)"
    maybe = ", may have been executed" if entry.executed == "maybe" else ""
    peer = f" from {entry.peer}" if entry.peer not in ("", entry.who) else ""
    message = f": {entry.message}" if entry.message else ""
    source = f" by {entry.source}" if entry.source else ""
    held = "" if entry.held_ms is None else f" ({entry.held_ms / 1000:.0f} s for approval {entry.approval})"
    # The message of a call that was denied says by whom.
    decided = f" (approved by {entry.decided_by})" if entry.decided_by and entry.outcome != "forbidden" else ""
    line = (
        f"{at} {entry.who}{peer}{source} {entry.operation} {entry.target} -> {entry.outcome}{maybe}{message}"
        f"{times}{took}{held}{decided}"
    )
    return escaped(line)
