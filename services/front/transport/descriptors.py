"""Reading and writing a client's descriptors without ever blocking the kernel.

They come from other processes and may be anything: pipes, sockets, terminals, regular files, `/dev/null`.  What epoll
refuses is read in a thread.  Both are put into non-blocking mode, which belongs to the open file and so to everyone who
shares it, and are given back as they were found.
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
"""What Linux lets anyone's pipe hold; 64 KB, as it comes, make a long answer of many short turns of two processes."""

BACKLOG_BYTES = 8 * 1024 * 1024
"""Unsent output at which no further input is read: a client that does not listen is not served more."""

_threads = trio.CapacityLimiter(8)


@contextlib.contextmanager
def non_blocking(*fds: int) -> Iterator[None]:
    """Put the descriptors into non-blocking mode, and back at the end."""
    before = [(fd, fcntl.fcntl(fd, fcntl.F_GETFL)) for fd in fds]
    try:
        for fd, flags in before:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        yield
    finally:
        for fd, flags in before:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def can_wait(fd: int) -> bool:
    """Whether epoll takes the descriptor; regular files and `/dev/null` it does not."""
    with select.epoll() as probe:
        try:
            probe.register(fd, select.EPOLLIN)
        except PermissionError:
            return False
    return True


class Input:
    """Bytes from a descriptor, which `read` takes from it without waiting."""

    def __init__(self, fd: int, read: Callable[[int], bytes] = lambda fd: os.read(fd, READ_BYTES)) -> None:
        self._fd = fd
        self._read = read
        self._waits = can_wait(fd)

    async def receive(self) -> bytes:
        """Some bytes; none at the end of the input, or where the other side is gone."""
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
                # A terminal whose other side is gone answers EIO, a socket ECONNRESET.
                if error.errno in (errno.EIO, errno.ECONNRESET):
                    return b""
                raise
            else:
                if not waited:
                    # A client that never stops sending must not keep the other tasks from running.
                    await trio.lowlevel.checkpoint()
                return data


class Output:
    """Messages to a descriptor, whole and in order.

    `post` never blocks: it writes what the descriptor takes at once and leaves the rest to `run`, which must run in a
    nursery.  `broken` is set when the reader has gone.  `cut` tells whether a part of a message is written, and not
    all of it; `changed` is called after each change of it, and when a message is written whole.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waits = can_wait(fd)
        self._widened = False
        self._queue: collections.deque[memoryview] = collections.deque()
        self._bytes = 0
        self._moved = trio.Event()
        self.broken = trio.Event()
        self.cut = False
        self.changed: Callable[[], None] = lambda: None
        self.posted = 0
        """Messages so far."""

    @property
    def written(self) -> int:
        """How many of those are written whole."""
        return self.posted - len(self._queue)

    @property
    def empty(self) -> bool:
        """Whether everything that was posted is written."""
        return not self._queue

    def post(self, message: bytes) -> None:
        """Send `message`; dropped where the reader has gone."""
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
            self.cut = self.cut or len(rest) < len(message)
            self._queue.append(rest)
            self._bytes += len(rest)
            self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()
        self.changed()

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            # The client cannot be told: its own descriptor failed.
            self._queue.clear()
            self._bytes = 0
            self.broken.set()
            self._moved.set()
            return 0

    async def run(self) -> None:
        """Send what did not go at once.  Returns when the reader has gone."""
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
            self.cut = self.cut or sent > 0
            if not self._queue[0]:
                self._queue.popleft()
                self.cut = False
            self._move()

    async def room(self) -> None:
        """Until the backlog is small enough to take on more work."""
        while self._bytes > BACKLOG_BYTES:
            await self._moved.wait()

    async def flush(self) -> None:
        """Until everything posted is written, or the reader has gone."""
        while self._queue:
            await self._moved.wait()

    def abandoned(self) -> bool:
        """Whether the reading side is known to be gone, without writing to it."""
        poll = select.poll()
        poll.register(self._fd, 0)
        return self.broken.is_set() or any(
            event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0)
        )


def _widen(fd: int) -> None:
    """Let a pipe hold more, once an answer did not fit: memory is taken for its content only."""
    # No pipe, or the user's share of memory for pipes is spent: it stays as wide as it is.
    with contextlib.suppress(OSError):
        if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < PIPE_BYTES:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
