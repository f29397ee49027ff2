"""The front's end of the handoff: receives descriptors from the kernel.

They are listening sockets, local clients with the memory of their sessions, and idle HTTP connections that the previous
front passed on.  When this front stops, it passes on its own.
"""

from __future__ import annotations

import logging
import math
import os
import select
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import trio

from proto.wire.front import (
    MAX_DESCRIPTORS,
    MAX_PACKET_BYTES,
    Attach,
    Between,
    Detach,
    Detached,
    FromFront,
    Listen,
    ToFront,
)

if TYPE_CHECKING:
    from services.front.transport.http_server import Relay

Serve = Callable[[int, int, str, int | None], Awaitable[bool]]
"""Serves MCP to one local client: takes its input, its output, the name of a surface and the session's memory, if any.

Returns True if the client has left.  The caller keeps and closes the descriptors.
"""

KERNEL_READS_S = 1.0
"""How long to wait for the kernel to read; it takes a millisecond unless the kernel is about to end this process."""

_log = logging.getLogger("linckia.front")
_decoder: msgspec.msgpack.Decoder[ToFront] = msgspec.msgpack.Decoder(ToFront)


class Handoff:
    """Serves the clients that the kernel hands over; implements `services.front.transport.http_server.Relay`.

    Args:
        serve: serves one local client.
        listen: serves HTTP on a socket.
    """

    def __init__(
        self, end: socket.socket, serve: Serve, listen: Callable[[socket.socket, Relay], Awaitable[None]]
    ) -> None:
        end.setblocking(False)
        self._end = end
        self._serve = serve
        self._listen = listen
        self._sessions: dict[int, trio.CancelScope] = {}
        self._listening = 0
        self._taken_over, self._between = trio.open_memory_channel[socket.socket](math.inf)
        self._finished = trio.Event()

    async def run(self) -> None:
        """Serve whatever the kernel hands over, until cancelled; the next front resumes the sessions."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(self._end)
                packet, fds, _flags, _address = socket.recv_fds(
                    self._end, MAX_PACKET_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
                if not packet:
                    # The kernel is gone; the link reports that too.
                    return
                self._accept(_decoder.decode(packet), fds, nursery)

    def _accept(self, message: ToFront, fds: list[int], nursery: trio.Nursery) -> None:
        match message:
            case Listen():
                nursery.start_soon(self._serve_http, socket.socket(fileno=fds[0]))
            case Attach():
                nursery.start_soon(self._attach, message, fds)
            case Between():
                connection = socket.socket(fileno=fds[0])
                # It comes from another front, which may be compromised, so check that it is a TCP connection.
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                    self._taken_over.send_nowait(connection)
                else:
                    connection.close()
            case Detach(id=number):
                if (scope := self._sessions.get(number)) is not None:
                    scope.cancel()

    async def _attach(self, client: Attach, fds: list[int]) -> None:
        fd_in, fd_out, *memory = fds
        scope = self._sessions[client.id] = trio.CancelScope()
        left = True
        try:
            with scope:
                try:
                    left = await self._serve(fd_in, fd_out, client.surface, memory[0] if memory else None)
                except Exception:  # noqa: BLE001  # a failing session must not end the others
                    _log.exception("a local client's session failed")
                if left:
                    self._send(Detached(client.id))
        finally:
            del self._sessions[client.id]
            self._wake()
            for fd in fds:
                os.close(fd)

    async def _serve_http(self, listening: socket.socket) -> None:
        self._listening += 1
        try:
            await self._listen(listening, self)
        finally:
            while self._between.statistics().current_buffer_used:
                with self._between.receive_nowait() as connection:
                    self.pass_on(connection.fileno())
            self._listening -= 1
            self._wake()

    def _wake(self) -> None:
        self._finished.set()
        self._finished = trio.Event()

    async def drained(self) -> None:
        """Wait until no local or HTTP client is being served."""
        while self._sessions or self._listening:
            await self._finished.wait()

    async def receive(self) -> socket.socket:
        return await self._between.receive()

    def pass_on(self, connection: int) -> bool:
        return self._send(Between(), (connection,))

    def _send(self, message: FromFront, descriptors: Sequence[int] = ()) -> bool:
        writable = select.poll()
        writable.register(self._end, select.POLLOUT)
        writable.poll(KERNEL_READS_S * 1000)
        try:
            socket.send_fds(self._end, [msgspec.msgpack.encode(message)], descriptors)
        except OSError:
            return False
        return True
