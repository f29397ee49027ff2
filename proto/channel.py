"""Frames over a link: coding, cutting large frames into parts, and sending fairly.

Small frames go ahead of the remaining parts of large ones, so that a ping or a small call never waits behind a large
result; frames of one call keep their order whatever their size.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator

import msgspec
import trio

from proto import frames
from proto.frames import AnyFrame, Call, Cancel, Fault, Part, Progress, Return
from proto.link import Link, LinkClosed

_CALL_FRAMES = (Call, Return, Fault, Progress, Cancel)
"""Those of one id keep their order."""


class ProtocolViolation(Exception):
    """The other end sent an invalid frame, or parts that make none."""


class Channel:
    """Both directions of one link.

    `post` never blocks; `run_sender` must run in a nursery as long as the channel is used; one task calls `receive`.
    Closing the link ends both.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._small: collections.deque[bytes] = collections.deque()
        self._large: collections.OrderedDict[int, collections.deque[Iterator[bytes]]] = collections.OrderedDict()
        self._parts: dict[int, bytearray] = {}
        self._streams = itertools.count(1)
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._closed = False

    def post(self, frame: AnyFrame) -> None:
        """Send `frame` as soon as the link has room.  Raises LinkClosed."""
        message = frames.encode(frame)
        lane = frame.id if isinstance(frame, _CALL_FRAMES) else 0
        if len(message) > frames.PART_BYTES or (lane and lane in self._large):
            pieces = self._cut(message) if len(message) > frames.PART_BYTES else iter((message,))
            self._large.setdefault(lane, collections.deque()).append(pieces)
        elif self._small or not self._link.try_send(message):
            self._small.append(message)
        else:
            return
        if self._idle.is_set():
            self._idle = trio.Event()
        self._wake.set()

    def _cut(self, message: bytes) -> Iterator[bytes]:
        stream = next(self._streams)
        for start in range(0, len(message), frames.PART_BYTES):
            last = start + frames.PART_BYTES >= len(message)
            yield frames.encode(Part(stream, last, message[start : start + frames.PART_BYTES]))

    def _next_large(self) -> bytes | None:
        while self._large:
            lane, queue = next(iter(self._large.items()))
            if (message := next(queue[0], None)) is not None:
                # Round-robin among calls with large frames.
                self._large.move_to_end(lane)
                return message
            queue.popleft()
            if not queue:
                del self._large[lane]
        return None

    async def run_sender(self) -> None:
        """Send what was posted and did not go at once.  Returns when the link is closed."""
        try:
            while not self._closed:
                if self._small:
                    await self._link.send(self._small[0])
                    self._small.popleft()
                elif (message := self._next_large()) is not None:
                    await self._link.send(message)
                else:
                    self._idle.set()
                    self._wake = trio.Event()
                    await self._wake.wait()
        except LinkClosed:
            self._end()

    def _end(self) -> None:
        """The link is closed: what could not be sent never will be, and no task may wait for it."""
        self._closed = True
        self._small.clear()
        self._large.clear()
        self._idle.set()
        self._wake.set()

    async def flush(self) -> None:
        """Until everything posted has been handed to the link (or the link is closed)."""
        while self._small or self._large:
            await self._idle.wait()
            await trio.lowlevel.checkpoint()

    def try_receive(self) -> AnyFrame | None:
        """The next whole frame if one has arrived.  Raises LinkClosed, ProtocolViolation."""
        try:
            while (message := self._link.try_receive()) is not None:
                if (frame := self._accept(message)) is not None:
                    return frame
        except LinkClosed:
            self._end()
            raise
        return None

    async def receive(self) -> AnyFrame:
        """The next whole frame.  Raises LinkClosed, ProtocolViolation."""
        try:
            while (frame := self._accept(await self._link.receive())) is None:
                continue
        except LinkClosed:
            self._end()
            raise
        return frame

    def _accept(self, message: bytes) -> AnyFrame | None:
        """The frame that is whole with this message."""
        try:
            frame = frames.decode(message)
            if not isinstance(frame, Part):
                return frame
            gathered = self._parts.setdefault(frame.stream, bytearray())
            gathered += frame.data
            if len(gathered) > frames.MAX_MESSAGE_BYTES:
                raise ProtocolViolation(f"a frame of more than {frames.MAX_MESSAGE_BYTES} bytes")
            return frames.decode(bytes(self._parts.pop(frame.stream))) if frame.last else None
        except msgspec.DecodeError as error:
            raise ProtocolViolation(str(error)) from error

    def close(self) -> None:
        """Close the link; idempotent.  What was posted and not sent is dropped: `flush` first where it matters."""
        self._link.close()
        self._end()
