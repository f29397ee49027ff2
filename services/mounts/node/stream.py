"""The stream between a server's stand-in and its host: pieces of its input and output, and signs of life.

Each piece has its kind (one byte), its length (four bytes, big-endian), and its bytes. Both ends send a sign of life
every second. An end that hears nothing for `SILENT_S`, while it reads, takes the other for lost.
"""

from __future__ import annotations

import enum
import struct

import trio

BEAT_S = 1.0
SILENT_S = 5.0

PIECE_BYTES = 64 * 1024

_HEAD = struct.Struct("!BI")
_MAX_BYTES = 1024 * 1024


class Kind(enum.IntEnum):
    """What a piece is."""

    BEAT = 0
    STARTED = 1
    """The server runs; its pid on the node."""
    FAILED = 2
    """The server cannot be started; why."""
    INPUT = 3
    OUTPUT = 4
    LOG = 5
    """Lines of its stderr."""
    TERMINATE = 6
    """Send it SIGTERM."""
    ENDED = 7
    """Its exit code as `subprocess` has it, in decimal."""


class Lost(Exception):
    """The other end is gone, or gives no sign of life; the message says which."""


class Stream:
    """One end; several tasks may send, and one receives."""

    def __init__(self, under: trio.abc.Stream) -> None:
        self._under = under
        self._sending = trio.Lock()
        self._data = bytearray()

    async def send(self, kind: Kind, data: bytes = b"") -> None:
        """Send a piece. Raises Lost."""
        async with self._sending:
            try:
                await self._under.send_all(_HEAD.pack(kind, len(data)) + data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise Lost("the connection broke") from None

    async def receive(self) -> tuple[Kind, bytes]:
        """Return the next piece that is no sign of life. Raises Lost."""
        while True:
            with trio.move_on_after(SILENT_S) as patience:
                kind, data = await self._piece()
            if patience.cancelled_caught:
                raise Lost(f"no sign of life for {SILENT_S:g} s")
            if kind is not Kind.BEAT:
                return kind, data

    async def _piece(self) -> tuple[Kind, bytes]:
        kind, size = _HEAD.unpack(await self._bytes(_HEAD.size))
        if size > _MAX_BYTES:
            raise Lost("the other end sent something else")
        return Kind(kind), await self._bytes(size)

    async def _bytes(self, size: int) -> bytes:
        while len(self._data) < size:
            try:
                more = await self._under.receive_some(PIECE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise Lost("the connection broke") from None
            if not more:
                raise Lost("the connection was closed")
            self._data += more
        found = bytes(self._data[:size])
        del self._data[:size]
        return found

    async def beat(self) -> None:
        """Send signs of life, until cancelled. Raises Lost."""
        while True:
            await self.send(Kind.BEAT)
            await trio.sleep(BEAT_S)
