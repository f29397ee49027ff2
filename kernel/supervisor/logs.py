"""The log of one service: what it writes to stdout and stderr, in one file that cannot fill the disk.

The file is rotated to `NAME.log.1` when a generation starts, and copied there and cut while one runs, since the process
holds its descriptor; lines written between copy and cut are lost, which only happens at the limit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

import trio

LAST_WORDS_BYTES = 4096
LAST_WORDS_CHARACTERS = 300


class ServiceLog:
    """Open for appending by one generation; `fd` is what the process gets as stdout and stderr."""

    def __init__(self, folder: Path, name: str, max_bytes: int) -> None:
        self.path = folder / f"{name}.log"
        self._older = folder / f"{name}.log.1"
        self._max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.path.exists() and self.path.stat().st_size >= max_bytes:
            self.path.replace(self._older)
        # Append mode, so that writers never overwrite each other and go on at the start of a file that was cut.
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._start = os.fstat(self.fd).st_size

    def note(self, text: str) -> None:
        """A line of the supervisor's own.  A full disk must not stop it from supervising."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError):
            os.write(self.fd, f"{stamp} supervisor: {text}\n".encode())
        # The supervisor's own lines are not the last words of a process.
        self._start = os.fstat(self.fd).st_size

    async def tend(self) -> None:
        """Cut the file if it has grown past its limit."""
        if os.fstat(self.fd).st_size > self._max_bytes:
            await trio.to_thread.run_sync(self._cut)

    def _cut(self) -> None:
        shutil.copyfile(self.path, self._older)
        os.ftruncate(self.fd, 0)
        self._start = 0

    def last_words(self) -> str:
        """The last line with words in it that this generation wrote, shortened; for the cause of its death."""
        size = os.fstat(self.fd).st_size
        start = max(self._start, size - LAST_WORDS_BYTES)
        if start >= size:
            return ""
        text = os.pread(self.fd, size - start, start).decode("utf-8", "replace")
        # A group of exceptions is written in a frame, which ends below all that it says.
        lines = [line.strip("| \t") for line in text.splitlines() if any(map(str.isalnum, line))]
        return lines[-1][-LAST_WORDS_CHARACTERS:] if lines else ""

    def close(self) -> None:
        os.close(self.fd)
