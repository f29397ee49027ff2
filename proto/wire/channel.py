"""A link between two processes, and frames over it: encoding, splitting large bodies into parts, and fair sending.

A link carries complete messages of bytes, in order. Services have one over nng (`proto.wire.nng_link`). `SocketLink`,
over a SEQPACKET `socketpair`, is only for the front, which also receives descriptors, which nng cannot pass.

Small frames overtake the remaining parts of large ones, so a ping or a small call never waits behind a large result.
Frames of one call keep their order whatever their size. Two things are bounded: what the other end can make this one
hold in memory, and how much this end decodes at a time. Large bodies are passed on undecoded.
"""

from __future__ import annotations

import collections
import itertools
import math
import socket
from abc import ABC, abstractmethod
from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple

import msgspec
import trio

from proto.wire import frames
from proto.wire.frames import AnyFrame, Call, Cancel, Event, Fault, Log, Part, Pieces, Progress, Return

SEND_BUFFER_BYTES = 4 * 1024 * 1024


class LinkClosed(Exception):
    """The other end is gone, or this end was closed. Everything that had arrived before has been received."""


class Link(ABC):
    """Messages are never reordered, and lost only if the other end dies.

    One task may receive and one may send at a time. Cancellation loses nothing.
    """

    @abstractmethod
    def try_send(self, message: bytes) -> bool:
        """Send now if there is room. Raises LinkClosed."""

    @abstractmethod
    def try_receive(self) -> bytes | None:
        """Return the next message if one has arrived. Raises LinkClosed once everything that arrived was received."""

    @abstractmethod
    async def send(self, message: bytes) -> None:
        """Send, waiting for room. Raises LinkClosed."""

    joins: ClassVar[bool] = False
    """Whether it is cheaper to send several messages together."""

    async def send_together(self, messages: Sequence[bytes]) -> None:
        """Send several messages in order, waiting for room. On cancellation, the rest is not sent. Raises
        LinkClosed."""
        for message in messages:
            await self.send(message)

    @abstractmethod
    async def receive(self) -> bytes:
        """Return the next message. Raises LinkClosed."""

    @abstractmethod
    def close(self) -> None:
        """Close this end; idempotent. Tasks that wait at either end get LinkClosed."""


def rights(descriptors: Sequence[int]) -> list[tuple[int, int, array[int]]]:
    """Return descriptors as ancillary data for sendmsg(2)."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []


def passed(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors in ancillary data from recvmsg(2); the caller must close them."""
    found = array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets, one for each process of a link."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class SocketLink(Link):
    """One end of a `socket_pair`. It owns the descriptor. Must be created inside trio."""

    def __init__(self, fd: int, *, max_message_bytes: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        # As much as the system allows, so that there is room for a burst of calls.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._buffer = memoryview(bytearray(max_message_bytes))
        self._closed = False

    def try_send(self, message: bytes) -> bool:
        if self._closed:
            raise LinkClosed
        try:
            self._socket.send(message, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:
            raise LinkClosed from None
        return True

    def try_receive(self) -> bytes | None:
        if self._closed:
            raise LinkClosed
        while True:
            try:
                length = self._socket.recv_into(self._buffer, 0, socket.MSG_TRUNC)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                # The other end closed with unread messages. Linux reports that once, before the data that it had sent.
                continue
            except OSError:
                raise LinkClosed from None
            # 0 means the end. A message that is too long was truncated, and is not ours.
            if not 0 < length <= len(self._buffer):
                raise LinkClosed
            return bytes(self._buffer[:length])

    async def send(self, message: bytes) -> None:
        while not self.try_send(message):
            await self._wait(trio.lowlevel.wait_writable)

    async def receive(self) -> bytes:
        while (message := self.try_receive()) is None:
            await self._wait(trio.lowlevel.wait_readable)
        return message

    async def _wait(self, ready: Callable[[socket.socket], Awaitable[None]]) -> None:
        try:
            await ready(self._socket)
        except trio.ClosedResourceError:
            raise LinkClosed from None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


# Frames

_CALL_FRAMES = (Call, Return, Fault, Progress, Cancel)
"""Frames that keep their order within one id."""

_WITH_BODY = (Call, Return, Event)

_FORWARD = (Call, Cancel)
"""Not counted as backlog, since the number of calls in flight limits them."""

_DISPENSABLE = (Progress, Event, Log)

AT_ONCE = 16
"""Messages read from one link before other tasks get a turn."""

SENT_AT_ONCE = 16
"""Messages sent before other tasks get a turn."""

BACKLOG_BYTES = frames.MAX_MESSAGE_BYTES + 64 * 1024 * 1024
"""Size of replies that may wait until the other end reads them: the largest allowed, and some smaller ones."""

FRAME_BYTES = 512
"""Approximate overhead of a waiting frame, in addition to its bytes."""


class ProtocolViolation(Exception):
    """The other end sent invalid data, or a frame that is not allowed at this point."""


class _Queued(NamedTuple):
    """A frame that waits to be sent, with its share of the backlog."""

    message: bytes
    body: bytes
    """Sent after `message` in parts; empty if `message` includes the body."""
    backlog: int


class _Sending:
    """A large body being sent: its number, and the number of bytes sent; None before its frame has been sent."""

    __slots__ = ("number", "sent")

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent: int | None = None


class _Gathering(NamedTuple):
    """A frame whose body arrives in parts."""

    frame: AnyFrame
    pieces: list[bytes]


class Channel:
    """Both directions of one link.

    `post` never blocks. `run_sender` must run in a nursery as long as the channel is used. Only one task may call
    `receive`. Closing the link ends both.

    Args:
        decode: decoder from `proto.wire.frames` for what the other end may send.
        at_once: messages read before other tasks get a turn.
        max_backlog_bytes: limit on replies that wait for the other end to read them. Above it, nothing is read from
            that end until it has caught up, and dispensable frames (progress, log lines, events) are dropped. Only one
            end of a link may have a limit, since two could wait for each other.
        passes_on: large bodies arrive as `frames.Pieces` rather than `bytes`.

    Attributes:
        gathered: called after each part that is not the last of its body.
    """

    def __init__(
        self,
        link: Link,
        decode: Callable[[bytes], AnyFrame] = frames.decode,
        *,
        at_once: int = AT_ONCE,
        max_backlog_bytes: float = math.inf,
        passes_on: bool = False,
    ) -> None:
        self._link = link
        self._decode = decode
        self._at_once = self._turn = at_once
        self._max_backlog = max_backlog_bytes
        self._backlog = 0
        self._room = trio.Event()
        self._small: collections.deque[_Queued] = collections.deque()
        self._sent_in_pass = False
        """Whether a frame was sent directly in this pass of the event loop; further frames in it travel together."""
        self._large: dict[int, collections.deque[_Queued]] = {}
        """Queues by call; the first frame of a queue is being sent if the call is in `_sending`."""
        self._sending: collections.OrderedDict[int, _Sending] = collections.OrderedDict()
        self._sending_bytes = 0
        self._gathering: dict[int, _Gathering] = {}
        self._passes_on = passes_on
        self.gathered: Callable[[], None] = lambda: None
        self._gathered_bytes = 0
        self._streams = itertools.count(1)
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._closed = False

    @property
    def is_behind(self) -> bool:
        """Whether the other end does not read fast enough."""
        return self._backlog > self._max_backlog

    @property
    def held_bytes(self) -> int:
        """Size of incomplete bodies, and of replies that wait for the other end to read them."""
        return self._gathered_bytes + self._backlog

    def post(self, frame: AnyFrame) -> None:
        """Send `frame` as soon as the link has room. Raises LinkClosed."""
        if self.is_behind and isinstance(frame, _DISPENSABLE):
            return
        body = frames.body_of(frame)
        if len(body) > frames.PART_BYTES:
            message = frames.encode(frames.with_body(frame, b""))
        else:
            message, body = frames.encode(frame), b""
        lane = frame.id if isinstance(frame, _CALL_FRAMES) else 0
        is_large = body or (lane and lane in self._large)
        if not is_large and not self._small and not self._sent_in_pass and self._link.try_send(message):
            if self._link.joins:
                self._sent_in_pass = True
                # The sender runs in the next pass.
                self._wake.set()
            return
        size = len(message) + len(body) + FRAME_BYTES
        queued = _Queued(message, body, 0 if isinstance(frame, _FORWARD) else size)
        self._backlog += queued.backlog
        (self._large.setdefault(lane, collections.deque()) if is_large else self._small).append(queued)
        if self._idle.is_set():
            self._idle = trio.Event()
        self._wake.set()

    def _together(self) -> list[_Queued]:
        """Return the small frames to send next, in one message if the link joins them."""
        taken: list[_Queued] = []
        size = 0
        for queued in self._small:
            size += len(queued.message)
            if taken and (not self._link.joins or size > frames.PART_BYTES):
                break
            taken.append(queued)
        return taken

    def _next_large(self) -> int | None:
        """Return the next call with a large body to send: round-robin among as many as the other end may assemble."""
        for lane, queue in self._large.items():
            if lane not in self._sending:
                size = len(queue[0].body)
                fits = self._sending_bytes + size <= frames.MAX_MESSAGE_BYTES or not self._sending
                if len(self._sending) == frames.MAX_STREAMS or not fits:
                    break
                self._sending[lane] = _Sending(next(self._streams))
                self._sending_bytes += size
        return next(iter(self._sending), None)

    def _piece(self, lane: int) -> bytes:
        queued, sending = self._large[lane][0], self._sending[lane]
        if not queued.body:
            return queued.message
        if sending.sent is None:
            return frames.encode(Part(sending.number, False, queued.message))
        end = sending.sent + frames.PART_BYTES
        body: bytes | Pieces = queued.body
        data = body.at(sending.sent) if isinstance(body, Pieces) else body[sending.sent : end]
        return frames.encode(Part(sending.number, end >= len(body), data))

    def _piece_sent(self, lane: int) -> None:
        queue, sending = self._large[lane], self._sending[lane]
        sending.sent = 0 if sending.sent is None else sending.sent + frames.PART_BYTES
        if sending.sent < len(queue[0].body):
            self._sending.move_to_end(lane)
            return
        del self._sending[lane]
        self._sending_bytes -= len(queue[0].body)
        self._sent(queue.popleft())
        if not queue:
            del self._large[lane]

    def _sent(self, queued: _Queued) -> None:
        self._backlog -= queued.backlog
        if not self.is_behind:
            self._room.set()

    async def run_sender(self) -> None:
        """Send frames that could not be sent directly. Returns when the link is closed."""
        sent = 0
        try:
            while not self._closed:
                self._sent_in_pass = False
                if (sent := sent + 1) % SENT_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                    # The link may have been closed meanwhile.
                    continue
                if self._small:
                    together = self._together()
                    await self._link.send_together([queued.message for queued in together])
                    for _ in together if self._small else ():
                        self._sent(self._small.popleft())
                elif (lane := self._next_large()) is not None:
                    await self._link.send(self._piece(lane))
                    if lane in self._sending:
                        self._piece_sent(lane)
                else:
                    self._idle.set()
                    self._wake = trio.Event()
                    await self._wake.wait()
        except LinkClosed:
            self._end()

    def _end(self) -> None:
        """Handle a closed link: drop unsent frames, and wake all waiting tasks."""
        self._closed = True
        self._small.clear()
        self._large.clear()
        self._sending.clear()
        self._gathering.clear()
        self._backlog = self._gathered_bytes = 0
        self._idle.set()
        self._wake.set()
        self._room.set()

    async def flush(self) -> None:
        """Wait until everything posted has been handed to the link, or the link is closed."""
        while not self._idle.is_set():
            await self._idle.wait()
            await trio.lowlevel.checkpoint()

    async def receive(self) -> AnyFrame:
        """Return the next complete frame. Other tasks get regular turns, however much arrives.

        Raises LinkClosed, ProtocolViolation.
        """
        try:
            while True:
                if (frame := self._accept(await self._receive())) is not None:
                    return frame
        except LinkClosed:
            self._end()
            raise

    async def _receive(self) -> bytes:
        while self.is_behind:
            self._room = trio.Event()
            await self._room.wait()
        if self._turn == 0:
            await trio.lowlevel.checkpoint()
            self._turn = self._at_once
        if (message := self._link.try_receive()) is None:
            message = await self._link.receive()
            self._turn = self._at_once
        self._turn -= 1
        return message

    def _accept(self, message: bytes) -> AnyFrame | None:
        """Return the frame that this message completes, if any."""
        frame = self._decoded(message)
        return self._gather(frame) if isinstance(frame, Part) else frame

    def _decoded(self, message: bytes) -> AnyFrame:
        try:
            return self._decode(message)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(str(error)) from error

    def _gather(self, part: Part) -> AnyFrame | None:
        """Return the frame whose body this part completes, if any."""
        if (gathering := self._gathering.get(part.stream)) is None:
            self._begin_to_gather(part)
            return None
        self._gathered_bytes += len(part.data)
        if self._gathered_bytes > frames.MAX_MESSAGE_BYTES:
            raise ProtocolViolation(f"bodies in parts of more than {frames.MAX_MESSAGE_BYTES} bytes together")
        if len(part.data) > frames.PART_BYTES or not (part.last or len(part.data) == frames.PART_BYTES):
            raise ProtocolViolation(f"a part of {len(part.data)} bytes that is not the last, or too large")
        gathering.pieces.append(part.data)
        if not part.last:
            self.gathered()
            return None
        del self._gathering[part.stream]
        body = Pieces(gathering.pieces)
        self._gathered_bytes -= len(body)
        keeps = self._passes_on and len(body) > frames.PART_BYTES
        return frames.with_body(gathering.frame, body if keeps else bytes(body))

    def _begin_to_gather(self, part: Part) -> None:
        frame = self._decoded(part.data)
        if not isinstance(frame, _WITH_BODY) or frames.body_of(frame) or part.last:
            raise ProtocolViolation(f"parts start with {type(frame).__name__}, not with a frame whose body is empty")
        if len(self._gathering) == frames.MAX_STREAMS:
            raise ProtocolViolation(f"more than {frames.MAX_STREAMS} bodies in parts at the same time")
        self._gathering[part.stream] = _Gathering(frame, [])

    def close(self) -> None:
        """Close the link; idempotent. Unsent frames are dropped: call `flush` first if they matter."""
        self._link.close()
        self._end()
