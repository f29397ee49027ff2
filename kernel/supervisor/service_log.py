"""The log of a service or zygote: output of its processes, in files that cannot fill the disk."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import trio

from proto.host import log_lines

PIECE_BYTES, PIECE_PAUSE_S = 65_536, 0.005
"""Size of one read and the pause between reads: a service that floods its log slows down only itself."""
PIECES_AT_ONCE = 16
"""The most that a pipe holds: one mebibyte, unless root allows more."""

SUPERVISOR = "linckia.supervisor"

LAST_WORDS_BYTES = 4096
LAST_WORDS_CHARACTERS = 300


class ServiceLog:
    """A size-limited log file; `fd` is the write end of a pipe that serves as the service's stdout and stderr.

    Output that arrives faster than `run` reads it stays in the pipe and blocks the writer. The file is renamed to
    `NAME.log.1` before it exceeds its limit. All generations share the log.
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
        """Read output piece by piece, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._pipe)
            self._take()
            await trio.sleep(PIECE_PAUSE_S)

    def _take(self) -> bool:
        try:
            data = os.read(self._pipe, PIECE_BYTES)
        except OSError:
            # The pipe is empty or closed.
            return False
        # The supervisor's own lines do not count as last words of a process.
        self._tail = (self._tail + data)[-LAST_WORDS_BYTES:]
        self._write(data)
        return True

    def _take_all(self) -> None:
        # Do not wait for a process that never stops writing.
        for _ in range(PIECES_AT_ONCE):
            if not self._take():
                return

    def _write(self, data: bytes) -> None:
        # A full disk must not keep the supervisor from supervising.
        with contextlib.suppress(OSError):
            if self._size and self._size + len(data) > self._max_bytes:
                with contextlib.suppress(FileNotFoundError):
                    self.path.replace(self._older)
                full = self._file
                self._open()
                os.close(full)
            self._size += os.write(self._file, data)

    def renew(self) -> None:
        """Begin a new file if somebody has moved this one; what was written until now goes to that one."""
        self._take_all()
        self._tail = b""
        with contextlib.suppress(OSError):
            if not (self.path.exists() and os.path.samestat(self.path.stat(), os.fstat(self._file))):
                moved = self._file
                self._open()
                os.close(moved)

    def note(self, text: str) -> None:
        """Write a line of the supervisor's own."""
        self._take_all()
        self._write(log_lines.line("info", SUPERVISOR, text, time.time()).encode() + b"\n")

    def last_words(self) -> str:
        """Return the last line with text in it written since the previous call, shortened.

        Called when a generation dies, for its cause of death.
        """
        self._take_all()
        # Taken from memory, since on a full disk the file does not have them.
        text, self._tail = self._tail.decode("utf-8", "replace"), b""
        # An exception group is printed in a frame, whose lower edge comes after the text.
        lines = [line.strip("| \t") for line in text.splitlines() if any(map(str.isalnum, line))]
        if not lines:
            return ""
        logged = log_lines.parsed(lines[-1])
        last = lines[-1] if logged is None else logged["message"].strip().rpartition("\n")[2]
        return last[-LAST_WORDS_CHARACTERS:]

    def close(self) -> None:
        self._take_all()
        for fd in (self._pipe, self.fd, self._file):
            os.close(fd)
        self._pipe = self._file = -1
