"""One peer-to-peer link: whole messages of bytes, in order, between two processes.

Services have one over nng (`proto.nng_link`). `SocketLink`, over a SEQPACKET `socketpair`, is the front's alone: beside
its messages it is passed descriptors, which nng cannot do.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ClassVar

import trio

SEND_BUFFER_BYTES = 4 * 1024 * 1024


class LinkClosed(Exception):
    """The other end is gone, or this end was closed.  What had arrived before has been received."""


class Link(ABC):
    """Messages are never reordered; they are lost only when the other end dies.

    One task may receive and one may send at a time. Cancellation loses nothing.
    """

    @abstractmethod
    def try_send(self, message: bytes) -> bool:
        """Send now if there is room.  Raises LinkClosed."""

    @abstractmethod
    def try_receive(self) -> bytes | None:
        """The next message if one has arrived.  Raises LinkClosed once all that had arrived was received."""

    @abstractmethod
    async def send(self, message: bytes) -> None:
        """Send, waiting for room.  Raises LinkClosed."""

    joins: ClassVar[bool] = False
    """Whether messages that are sent together cost less."""

    async def send_together(self, messages: Sequence[bytes]) -> None:
        """Send several in order, waiting for room; a cancellation leaves the rest unsent.  Raises LinkClosed."""
        for message in messages:
            await self.send(message)

    @abstractmethod
    async def receive(self) -> bytes:
        """The next message.  Raises LinkClosed."""

    @abstractmethod
    def close(self) -> None:
        """Close this end; idempotent.  Tasks that wait at either end get LinkClosed."""


def rights(descriptors: Sequence[int]) -> list[tuple[int, int, array[int]]]:
    """Descriptors beside a message, as sendmsg(2) takes them."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []


def passed(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came beside a message, as recvmsg(2) gives them: the caller's to close."""
    found = array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets, one for each process of a link."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class SocketLink(Link):
    """One end of a `socket_pair`, whose descriptor is this object's from then on.  Must be made inside trio."""

    def __init__(self, fd: int, *, max_message_bytes: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        # As much as the system allows: a burst of calls is to find room.
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
                # The other end was closed with messages unread.  Linux reports that once, ahead of what it had sent.
                continue
            except OSError:
                raise LinkClosed from None
            # Nothing is the end; what is longer than may be was cut, and is not ours.
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
