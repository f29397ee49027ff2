"""Links to servers: how messages get there and back. This file has the interface, and the link over pipes."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import termios
from array import array
from collections.abc import Callable
from typing import Protocol

import trio

from services.mounts.link import messages
from services.mounts.link.messages import NotJson, Received, Unreadable
from services.mounts.process.child import Child, write_log

READ_BYTES = 1024 * 1024
GARBAGE_CHARS = 2000
"""How much of a line on stdout that is not JSON goes to the log."""

NOT_READ = "the server closed its stdin"

LAST_READ_S = 0.5
"""How long a server may go on writing after it has closed its stdin."""

DROPPED_FACTOR = 4
"""A line that is so many times longer than a message may be ends the link."""

QUEUE = 64
"""Messages that wait for a server to read them; then their senders wait."""

_TOO_LONG = f"it has more than {messages.MAX_BYTES >> 20} MiB"

_log = logging.getLogger("linckia.mount")


class LinkEnded(Exception):
    """The link is gone; the message is the cause."""


Begun = Callable[[bool], None]
"""Called with True once the server may have received some of a message; with False if it has certainly not acted."""


class Link(Protocol):
    """A connection to one server."""

    async def send(self, message: bytes, begun: Begun) -> int:
        """Send a message; return where it ends in all that was sent, for `is_unread`. Raises LinkEnded."""

    def is_unread(self, position: int) -> bool:
        """Whether the server has certainly not read a message that ends here; False if this is unknown."""

    async def receive(self) -> list[Received]:
        """Return the next messages. Raises LinkEnded."""

    def negotiated(self, version: str) -> None:
        """Note the revision that both sides speak."""


class PipeLink:
    """The link to a server by its stdin and stdout. `run_writer` must run.

    Attributes:
        heard_at: when the server last wrote anything to its stdout.
        is_deaf: set once the server does not read its stdin any more, although it may live on.
    """

    def __init__(self, child: Child, redact: Callable[[str], str]) -> None:
        self._child = child
        self._redact = redact
        self._buffer = bytearray()
        self._searched = 0
        self._dropped = 0
        """Bytes of the current line that were dropped, because it is too long."""
        self.heard_at = trio.current_time()
        self.is_deaf = trio.Event()
        self._waiting, self._queue = trio.open_memory_channel[tuple[bytes, Begun]](QUEUE)
        self._to_write = 0
        self._sent = self._written = 0
        """Bytes of messages that were given to `send`, and of those that were written, or never will be."""
        self._reading = trio.CancelScope()
        self._read_until = math.inf

    async def send(self, message: bytes, begun: Begun) -> int:
        rest = message + b"\n"
        length = len(rest)
        self._sent += length
        position = self._sent
        if not self._to_write:
            # Most messages fit into the pipe: this saves a switch to the writer.
            begun(True)
            try:
                rest = rest[os.write(self._child.stdin.fileno(), rest) :]
            except BlockingIOError:
                pass
            except OSError:
                self._broken(begun)
                raise LinkEnded(NOT_READ) from None
            self._written += length - len(rest)
            if not rest:
                return position
        is_first, self._to_write = not self._to_write, self._to_write + 1
        try:
            if is_first:
                # The channel is empty, and half a line may be written: no cancellation here.
                self._waiting.send_nowait((rest, begun))
            else:
                await self._waiting.send((rest, begun))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise LinkEnded(NOT_READ) from None
        except trio.Cancelled:
            self._to_write -= 1
            self._written += length
            raise
        return position

    def is_unread(self, position: int) -> bool:
        if self._to_write:
            # A line may be written in part, so it is unknown what has been read.
            return False
        unread = array("i", [0])
        try:
            fcntl.ioctl(self._child.stdin.fileno(), termios.FIONREAD, unread)
        except (OSError, trio.ClosedResourceError):
            return False
        return position > self._written - unread[0]

    async def run_writer(self) -> None:
        """Write whole lines: a sender that is cancelled must not leave half of one."""
        with self._queue:
            async for line, begun in self._queue:
                begun(True)
                try:
                    await self._child.stdin.send_all(line)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self._broken(begun)
                    return
                self._to_write -= 1
                self._written += len(line)
                # It may be large, and the next one may come in an hour.
                del line, begun

    def _broken(self, begun: Begun) -> None:
        """End the link soon. Replies that are still in the other pipe arrive, and mostly the end of the process."""
        begun(False)
        self._waiting.close()
        if self._read_until == math.inf:
            self._read_until = self._reading.deadline = trio.current_time() + LAST_READ_S

    async def receive(self) -> list[Received]:
        while True:
            line, is_whole = await self._line()
            if not line.strip():
                continue
            found: list[Received]
            try:
                found = messages.parse(line) if is_whole else [messages.unreadable(line, _TOO_LONG)]
            except NotJson:
                found = []
            if is_whole and (not found or isinstance(found[0], Unreadable)):
                text, reply = messages.behind_text(line) or (line, None)
                if reply is not None or not found:
                    await self._log_garbage(text)
                found = found if reply is None else [reply]
            if found:
                return found

    async def _log_garbage(self, line: bytes) -> None:
        text = line[:GARBAGE_CHARS].decode("utf-8", "replace")
        await write_log(f"stdout: {self._redact(text)}\n")

    async def _line(self) -> tuple[bytes, bool]:
        """Return the next line, and whether it is whole: only the beginning of a line that is too long is returned."""
        if self._dropped:
            await self._drop()
        buffer = self._buffer
        while (end := buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(buffer)
            if len(buffer) > messages.MAX_BYTES:
                return await self._cut(), False
            buffer += await self._read()
        line = bytes(memoryview(buffer)[:end])
        del buffer[: end + 1]
        self._searched = 0
        return line, True

    async def _cut(self) -> bytes:
        """Return what names the request of a line that is too long; the rest of the line is dropped."""
        head = bytes(memoryview(self._buffer)[: messages.HEAD_BYTES])
        self._dropped = 1
        self._searched = 0
        with contextlib.suppress(NotJson):
            messages.unreadable(head, _TOO_LONG)
            return head
        return head + await self._drop()

    async def _drop(self) -> bytes:
        """Drop the rest of a line that is too long; return its end. Raises LinkEnded if it has none."""
        buffer = self._buffer
        tail = b""
        while (end := buffer.find(b"\n")) < 0:
            self._dropped += len(buffer)
            tail = (tail + buffer[-messages.TAIL_BYTES :])[-messages.TAIL_BYTES :]
            buffer.clear()
            if self._dropped > DROPPED_FACTOR * messages.MAX_BYTES:
                raise LinkEnded(f"the server sent a line of more than {self._dropped >> 20} MiB")
            buffer += await self._read()
        tail = (tail + buffer[:end])[-messages.TAIL_BYTES :]
        del buffer[: end + 1]
        self._dropped = 0
        return tail

    async def _read(self) -> bytes:
        data = b""
        try:
            with trio.CancelScope(deadline=self._read_until) as self._reading:
                data = await self._child.stdout.receive_some(READ_BYTES)
            if self._reading.cancelled_caught:
                self.is_deaf.set()
                raise LinkEnded(NOT_READ)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        if not data:
            raise LinkEnded("the server closed its stdout")
        self.heard_at = trio.current_time()
        return data

    def negotiated(self, version: str) -> None:
        """Lines carry no revision."""
