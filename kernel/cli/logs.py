"""`linckia logs`: the end of a log, and new lines. Reads the files, so that it works when nothing else does."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from proto.control.address import last_lines, log_dir, tail_of
from proto.control.commands import Failed, Usage
from proto.control.terminal import escaped, say
from proto.host.log_lines import parsed
from proto.suggestions import nearest

POLL_S = 0.2
"""How often a followed file is checked. inotify would need a dependency, for people who only read along."""

BLOCK_BYTES = 1 << 20


def logs(arguments: argparse.Namespace) -> int:
    """Print the last lines; with `--follow`, until interrupted.  Raises Failed, Usage."""
    if arguments.lines < 0:
        raise Usage(f"--lines is {arguments.lines}; it must be 0 or more")
    folder = log_dir(arguments.data_dir)
    path = folder / f"{arguments.service}.log"
    there = sorted(entry.stem for entry in folder.glob("*.log"))
    if arguments.service not in there:
        raise Failed(f"no log of {arguments.service!r} in {folder}{nearest(arguments.service, there or ['none yet'])}")
    # Programs get the lines unchanged; on a terminal, JSON lines are formatted for people.
    show = as_json if arguments.json else in_words if sys.stdout.isatty() else str
    if not arguments.follow:
        for line in last_lines(path, arguments.lines):
            say(*show(line).split("\n"))
        return 0
    with Followed(path) as followed:
        for line in itertools.chain(followed.last(arguments.lines), followed.new()):
            say(*show(line).split("\n"), flush=True)
    return 0


def as_json(line: str) -> str:
    """Return a logged line unchanged, and other output as an object with its `message`."""
    return line if parsed(line) is not None else json.dumps({"message": line}, ensure_ascii=False)


def in_words(line: str) -> str:
    """Format a logged line for people; return other output unchanged."""
    entry = parsed(line)
    if entry is None:
        return line
    # A logged message may have several lines, and a traceback follows it. They are indented, so that nobody can forge a
    # line of another log.
    first, *more = f"{entry['message']}\n{entry.get('error', '')}".rstrip("\n").split("\n")
    words = f"{entry['time']} {entry['level']:<8}{str(entry.get('logger', '')).removeprefix('linckia.')}: {first}"
    return "\n".join([escaped(words), *(f"    {escaped(line)}" for line in more)])


class Followed:
    """A log that is read while it is written, across rotations. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._begun = b""
        """The part of the last line that has been read, if it was incomplete."""

    def __enter__(self) -> Followed:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def last(self, count: int) -> list[str]:
        """Skip to the end; return the last `count` complete lines."""
        lines = list(self._complete(tail_of(self._file, count)))
        return lines[-count:] if count else []

    def written(self) -> Iterator[str]:
        """Yield complete lines up to the present end."""
        while data := self._file.read(BLOCK_BYTES):
            yield from self._complete(data)

    def new(self) -> Iterator[str]:
        """Yield complete lines as they are written; never ends."""
        while True:
            yield from self.written()
            if not _is_rotated(self._file, self._path):
                time.sleep(POLL_S)
                continue
            # Lines may have been written since, before the rotation.
            yield from self.written()
            self._file.close()
            self._file = self._path.open("rb")

    def _complete(self, data: bytes) -> Iterator[str]:
        *lines, self._begun = (self._begun + data).split(b"\n")
        return (line.decode(errors="replace") for line in lines)


def _is_rotated(file: BinaryIO, path: Path) -> bool:
    """Return whether `path` is now another file, or has been truncated."""
    try:
        now = path.stat()
    except FileNotFoundError:
        # A rotation is in progress.
        return False
    then = os.fstat(file.fileno())
    return now.st_ino != then.st_ino or now.st_size < file.tell()
