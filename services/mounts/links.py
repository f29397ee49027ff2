"""Links to servers: how messages get there and back. This file has the interface, and the link over pipes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import trio

from linckia.services.mounts import messages
from linckia.services.mounts.child import Child, write_log
from linckia.services.mounts.messages import Message, NotJson

READ_BYTES = 1024 * 1024
GARBAGE_CHARS = 2000
"""How much of a line on stdout that is not JSON goes to the log."""

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

    async def send(self, message: bytes, begun: Begun) -> None:
        try:
            await self._waiting.send((message, begun))
        except trio.BrokenResourceError:
            raise LinkEnded("the server does not read its stdin any more") from None

    async def run_writer(self) -> None:
        """Write whole lines: a sender that is cancelled must not leave half of one."""
        with self._queue:
            async for message, begun in self._queue:
                begun(True)
                try:
                    await self._child.stdin.send_all(message + b"\n")
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    begun(False)
                    self.is_deaf.set()
                    return

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
            try:
                data = await self._child.stdout.receive_some(READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                raise LinkEnded("the server closed its stdout")
            buffer += data
        line = bytes(memoryview(buffer)[:end])
        del buffer[: end + 1]
        self._searched = 0
        return line

    def negotiated(self, version: str) -> None:
        """Lines carry no revision."""
