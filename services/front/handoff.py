"""What the kernel hands to a front: listening sockets, local clients with the memory of their sessions, and connections
over HTTP that the front before has left, as this one leaves them to the next."""

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

from linckia.proto.front import (
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
    from linckia.services.front.transport.http_server import Relay

Serve = Callable[[int, int, str, int | None], Awaitable[bool]]
"""Serve MCP on a client's input and output, with the tools of a surface; the last is its session's memory.  Answers
whether the client has left.  The descriptors stay the caller's."""

KERNEL_READS_S = 1.0
"""It takes a millisecond; a kernel that does not is about to end this process."""

_log = logging.getLogger("linckia.front")
_decoder: msgspec.msgpack.Decoder[ToFront] = msgspec.msgpack.Decoder(ToFront)


class Handoff:
    """The front's end; `services.front.transport.http_server.Relay`.

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
        self._left = trio.Event()

    async def run(self) -> None:
        """Take what is handed over, until cancelled; sessions end with it, and go on in the next front."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(self._end)
                packet, fds, _flags, _address = socket.recv_fds(
                    self._end, MAX_PACKET_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
                if not packet:
                    # The kernel is gone, which the link tells as well.
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
                # It came from another front, which may have been taken over.
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
                except Exception:  # noqa: BLE001  # one client's session must not end the others'
                    _log.exception("a local client's session failed")
                if left:
                    self._tell(Detached(client.id))
        finally:
            del self._sessions[client.id]
            self._changed()
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
            self._changed()

    def _changed(self) -> None:
        self._left.set()
        self._left = trio.Event()

    async def drained(self) -> None:
        """Until no client is served, local or over HTTP."""
        while self._sessions or self._listening:
            await self._left.wait()

    async def receive(self) -> socket.socket:
        return await self._between.receive()

    def pass_on(self, connection: int) -> bool:
        return self._tell(Between(), (connection,))

    def _tell(self, message: FromFront, descriptors: Sequence[int] = ()) -> bool:
        writable = select.poll()
        writable.register(self._end, select.POLLOUT)
        writable.poll(KERNEL_READS_S * 1000)
        try:
            socket.send_fds(self._end, [msgspec.msgpack.encode(message)], descriptors)
        except OSError:
            return False
        return True
