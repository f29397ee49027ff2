"""`linckia logs`: the end of a log, and what follows. Reads the files, so that it works when nothing else does."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from linckia.kernel.cli import Failed, Usage
from linckia.kernel.cli.terminal import escaped, say
from linckia.proto.control.address import last_lines, log_dir
from linckia.proto.near import nearest

POLL_S = 0.2
"""How often a followed file is looked at; inotify would need a dependency for the sake of eyes."""


def logs(arguments: argparse.Namespace) -> int:
    """Print the last lines; with `--follow`, until interrupted.  Raises Failed, Usage."""
    if arguments.lines < 0:
        raise Usage(f"--lines is {arguments.lines}; it is a number of lines")
    folder = log_dir(arguments.data_dir)
    path = folder / f"{arguments.service}.log"
    there = sorted(entry.stem for entry in folder.glob("*.log"))
    if arguments.service not in there:
        raise Failed(f"no log of {arguments.service!r} in {folder}{nearest(arguments.service, there or ['none yet'])}")
    # Unchanged for programs; on a terminal, JSON lines are put in words.
    show = in_words if sys.stdout.isatty() else str
    for line in last_lines(path, arguments.lines):
        say(*show(line).split("\n"))
    if arguments.follow:
        for line in follow(path):
            say(*show(line).split("\n"), flush=True)
    return 0


def in_words(line: str) -> str:
    """A line of the kernel's log for people; any other line as it is."""
    try:
        entry = json.loads(line)
        words = f"{entry['time']} {entry['level']:<8}{entry['logger'].removeprefix('linckia.')}: {entry['message']}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return line
    return escaped(words) + (f"\n{entry['error']}" if "error" in entry else "")


def follow(path: Path) -> Iterator[str]:
    """Whole lines that are written from now on, through rotations; never ends."""
    file = path.open("rb")
    begun = b""
    try:
        file.seek(0, os.SEEK_END)
        while True:
            if data := file.read():
                *lines, begun = (begun + data).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
                continue
            if _is_rotated(file, path):
                file.close()
                file = path.open("rb")
                continue
            time.sleep(POLL_S)
    finally:
        file.close()


def _is_rotated(file: BinaryIO, path: Path) -> bool:
    """Whether `path` is another file by now, or the same one cut short."""
    try:
        now = path.stat()
    except FileNotFoundError:
        # Between the two steps of a rotation.
        return False
    then = os.fstat(file.fileno())
    return now.st_ino != then.st_ino or now.st_size < file.tell()
