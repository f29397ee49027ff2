"""A peer-to-peer link: complete messages of bytes, in order, between two processes.

Services have a link over nng (`proto.wire.nng_link`). `SocketLink`, over a SEQPACKET `socketpair`, is only for the
front, which also receives descriptors, which nng cannot pass."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ClassVar

import trio

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
