"""Links to servers: how messages get there and back. This file has the interface, and the link over pipes."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from typing import Protocol

import trio

from linckia.services.mounts import messages
from linckia.services.mounts.child import Child, write_log
from linckia.services.mounts.messages import Message, NotJson

READ_BYTES = 1024 * 1024
GARBAGE_CHARS = 2000
"""How much of a line on stdout that is not JSON goes to the log."""

NOT_READ = "the server closed its stdin"

LAST_READ_S = 0.5
"""How long a server may go on writing after it has closed its stdin."""

QUEUE = 64
"""Messages that wait for a server to read them; then their senders wait."""

_log = logging.getLogger("linckia.mount")


class LinkEnded(Exception):
    """The link is gone; the message is the cause."""


Begun = Callable[[bool], None]
"""Called with True once the server may have received some of a message; with False if it has certainly not acted."""


class Link(Protocol):
    """A connection to one server."""

    async def send(self, message: bytes, begun: Begun) -> None:
        """Send a message. Raises LinkEnded."""

    async def receive(self) -> list[Message]:
        """Return the next messages. Raises LinkEnded."""

    def negotiated(self, version: str) -> None:
        """Note the revision that both sides speak."""


class PipeLink:
    """The link to a server by its stdin and stdout. `run_writer` must run.

    Attributes:
        is_deaf: set once the server does not read its stdin any more, although it may live on.
    """

    def __init__(self, child: Child, redact: Callable[[str], str]) -> None:
        self._child = child
        self._redact = redact
        self._buffer = bytearray()
        self._searched = 0
        self.is_deaf = trio.Event()
        self._waiting, self._queue = trio.open_memory_channel[tuple[bytes, Begun]](QUEUE)
        self._to_write = 0
        self._reading = trio.CancelScope()
        self._read_until = math.inf

    async def send(self, message: bytes, begun: Begun) -> None:
        rest = message + b"\n"
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
            if not rest:
                return
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
            raise

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

    def _broken(self, begun: Begun) -> None:
        """End the link soon. Replies that are still in the other pipe arrive, and mostly the end of the process."""
        begun(False)
        self._waiting.close()
        if self._read_until == math.inf:
            self._read_until = self._reading.deadline = trio.current_time() + LAST_READ_S

    async def receive(self) -> list[Message]:
        while True:
            line = await self._line()
            if not line.strip():
                continue
            try:
                return messages.parse(line)
            except NotJson:
                text = line[:GARBAGE_CHARS].decode("utf-8", "replace")
                await write_log(f"stdout: {self._redact(text)}\n")

    async def _line(self) -> bytes:
        buffer = self._buffer
        while (end := buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(buffer)
            if len(buffer) > messages.MAX_BYTES:
                raise LinkEnded(f"the server sent a message of more than {messages.MAX_BYTES >> 20} MiB")
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
            buffer += data
        line = bytes(memoryview(buffer)[:end])
        del buffer[: end + 1]
        self._searched = 0
        return line

    def negotiated(self, version: str) -> None:
        """Lines carry no revision."""
