"""The log of a service or a zygote: what its processes write, in files that cannot fill the disk."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import trio

PIECE_BYTES, PIECE_PAUSE_S = 65_536, 0.005
"""What is taken of a log at once, and the time between two pieces: a service that floods its log waits for itself."""
PIECES_AT_ONCE = 16
"""The most that a pipe holds: a mebibyte, unless root allows more."""

LAST_WORDS_BYTES = 4096
LAST_WORDS_CHARACTERS = 300


class ServiceLog:
    """What a service writes, in a file that cannot fill the disk; `fd` is its stdout and stderr, a pipe to here.

    What it writes faster than `run` takes waits in the pipe, and the writer with it. The file is renamed to
    `NAME.log.1` before it gets past its limit. It is the log of one generation after the other.
    """

    def __init__(self, folder: Path, name: str, max_bytes: int, pipe: tuple[int, int] | None = None) -> None:
        self.path = folder / f"{name}.log"
        self._older = folder / f"{name}.log.1"
        self._max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._pipe, self.fd = pipe or os.pipe()
        os.set_blocking(self._pipe, False)
        self._tail = b""
        self._open()

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size

    async def run(self) -> None:
        """Take what is written, piece by piece, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._pipe)
            self._take()
            await trio.sleep(PIECE_PAUSE_S)

    def _take(self) -> bool:
        try:
            data = os.read(self._pipe, PIECE_BYTES)
        except OSError:
            # Nothing is there, or it is closed.
            return False
        # The supervisor's own lines are not the last words of a process.
        self._tail = (self._tail + data)[-LAST_WORDS_BYTES:]
        self._write(data)
        return True

    def _take_all(self) -> None:
        # A process that writes on and on is not waited for.
        for _ in range(PIECES_AT_ONCE):
            if not self._take():
                return

    def _write(self, data: bytes) -> None:
        # A full disk must not stop the supervisor from supervising.
        with contextlib.suppress(OSError):
            if self._size and self._size + len(data) > self._max_bytes:
                with contextlib.suppress(FileNotFoundError):
                    self.path.replace(self._older)
                full = self._file
                self._open()
                os.close(full)
            self._size += os.write(self._file, data)

    def note(self, text: str) -> None:
        """A line of the supervisor's own."""
        self._take_all()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self._write(f"{stamp} supervisor: {text}\n".encode())

    def last_words(self) -> str:
        """The last line with words in it that was written since this was last asked, shortened: asked at the death of a
        generation, for its cause."""
        self._take_all()
        # From memory: on a full disk they are not in the file.
        text, self._tail = self._tail.decode("utf-8", "replace"), b""
        # A group of exceptions is written in a frame, which ends below all that it says.
        lines = [line.strip("| \t") for line in text.splitlines() if any(map(str.isalnum, line))]
        return lines[-1][-LAST_WORDS_CHARACTERS:] if lines else ""

    def close(self) -> None:
        self._take_all()
        for fd in (self._pipe, self.fd, self._file):
            os.close(fd)
        self._pipe = self._file = -1
