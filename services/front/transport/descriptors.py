"""Reads and writes a client's descriptors without blocking the event loop.

They come from other processes and may be anything: pipes, sockets, terminals, regular files, `/dev/null`.  Those that
epoll does not accept are read in a thread.  Both are put into non-blocking mode, which is a property of the open file
and so affects every process that shares it; the previous mode is restored at the end.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import os
import select
from collections.abc import Callable, Iterator

import trio

READ_BYTES = 256 * 1024

PIPE_BYTES = 1024 * 1024
"""Largest pipe capacity for unprivileged users; at the default of 64 KB, long answers take many context switches."""

BACKLOG_BYTES = 8 * 1024 * 1024
"""Unsent output above which no further input is read, because the client does not read its answers."""

_threads = trio.CapacityLimiter(8)


@contextlib.contextmanager
def non_blocking(*fds: int) -> Iterator[None]:
    """Put the descriptors into non-blocking mode and restore their mode at the end."""
    before = [(fd, fcntl.fcntl(fd, fcntl.F_GETFL)) for fd in fds]
    try:
        for fd, flags in before:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        yield
    finally:
        for fd, flags in before:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def can_wait(fd: int) -> bool:
    """Whether epoll accepts the descriptor; it rejects regular files and `/dev/null`."""
    with select.epoll() as probe:
        try:
            probe.register(fd, select.EPOLLIN)
        except PermissionError:
            return False
    return True


class Input:
    """Receives bytes from a descriptor; `read` must not block."""

    def __init__(self, fd: int, read: Callable[[int], bytes] = lambda fd: os.read(fd, READ_BYTES)) -> None:
        self._fd = fd
        self._read = read
        self._waits = can_wait(fd)

    async def receive(self) -> bytes:
        """Return some bytes; none at the end of the input, or if the other side is gone."""
        if not self._waits:
            return await trio.to_thread.run_sync(os.read, self._fd, READ_BYTES, limiter=_threads)
        waited = False
        while True:
            try:
                data = self._read(self._fd)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._fd)
                waited = True
            except OSError as error:
                # A terminal whose other side is gone fails with EIO, a socket with ECONNRESET.
                if error.errno in (errno.EIO, errno.ECONNRESET):
                    return b""
                raise
            else:
                if not waited:
                    # A client that never stops sending must not starve the other tasks.
                    await trio.lowlevel.checkpoint()
                return data


class Output:
    """Sends messages to a descriptor, whole and in order.

    `post` never blocks: it writes what the descriptor accepts at once and leaves the rest to `run`, which must run in a
    nursery.  `broken` is set when the reader has gone.  `mid_message` says whether a message is written only in part.
    `on_progress` is called when `mid_message` changes and when a message is completely written.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waits = can_wait(fd)
        self._widened = False
        self._queue: collections.deque[memoryview] = collections.deque()
        self._bytes = 0
        self._moved = trio.Event()
        self.broken = trio.Event()
        self.mid_message = False
        self.on_progress: Callable[[], None] = lambda: None
        self.posted = 0
        """Number of messages posted."""

    @property
    def written(self) -> int:
        """Number of messages completely written."""
        return self.posted - len(self._queue)

    @property
    def empty(self) -> bool:
        """Whether all posted messages are written."""
        return not self._queue

    def post(self, message: bytes) -> None:
        """Send `message`; dropped if the reader has gone."""
        if self.broken.is_set():
            return
        self.posted += 1
        rest = memoryview(message)
        if not self._queue:
            rest = rest[self._write(rest) :]
        if rest and not self._widened and not self.broken.is_set():
            self._widened = True
            _widen(self._fd)
            rest = rest if self._queue else rest[self._write(rest) :]
        if rest and not self.broken.is_set():
            self.mid_message = self.mid_message or len(rest) < len(message)
            self._queue.append(rest)
            self._bytes += len(rest)
            self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()
        self.on_progress()

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            # The error cannot be reported to the client, because its own descriptor failed.
            self._queue.clear()
            self._bytes = 0
            self.broken.set()
            self._moved.set()
            return 0

    async def run(self) -> None:
        """Send what `post` could not write at once.  Returns when the reader has gone."""
        while not self.broken.is_set():
            if not self._queue:
                await self._moved.wait()
                continue
            if self._waits:
                await trio.lowlevel.wait_writable(self._fd)
            else:
                await trio.lowlevel.checkpoint()
            sent = self._write(self._queue[0])
            if not self._queue:
                continue
            self._bytes -= sent
            self._queue[0] = self._queue[0][sent:]
            self.mid_message = self.mid_message or sent > 0
            if not self._queue[0]:
                self._queue.popleft()
                self.mid_message = False
            self._move()

    async def room(self) -> None:
        """Wait while the backlog exceeds `BACKLOG_BYTES`."""
        while self._bytes > BACKLOG_BYTES:
            await self._moved.wait()

    async def flush(self) -> None:
        """Wait until all posted messages are written, or the reader has gone."""
        while self._queue:
            await self._moved.wait()

    def abandoned(self) -> bool:
        """Whether the reader is known to be gone; does not write to find out."""
        poll = select.poll()
        poll.register(self._fd, 0)
        return self.broken.is_set() or any(
            event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0)
        )


def _widen(fd: int) -> None:
    """Enlarge a pipe once a message did not fit; it takes memory only for its content."""
    # Fails if the descriptor is not a pipe, or the user's limit of memory for pipes is reached.
    with contextlib.suppress(OSError):
        if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < PIPE_BYTES:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
