"""The kernel's store of client connections that fronts serve: listening sockets, and local clients' descriptors.

A front may die like any service. The next generation gets the same sockets, whose queues hold clients that connected
meanwhile, and the same local clients, whose sessions continue from the memory file that each brought along. A front
that ends in order hands back HTTP connections that wait for their next request, and they are passed on too. If a front
shuts down its listening socket, the socket is replaced and the front ended. State that fronts record for HTTP sessions
is kept here as text that the kernel never reads.
"""

from __future__ import annotations

import array
import collections
import contextlib
import itertools
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import trio

from kernel.chronicle.isolation import keep_running, run_isolated
from proto.wire import frames
from proto.wire.channel import passed, rights
from proto.wire.front import (
    MAX_BETWEEN,
    MAX_PACKET_BYTES,
    Attach,
    Between,
    Detach,
    Detached,
    FromFront,
    Listen,
    ToFront,
)  # fmt: skip

LOOK_S = 1.0
"""Interval between checks of the listening sockets; each check takes a microsecond."""

_SO_LOCK_FILTER = 44
"""Constant from socket(7) that Python does not define."""

BACKLOG = 1024
"""Maximum number of connections waiting to be accepted, for example while a front starts."""

SESSION_BYTES = 4 * 1024 * 1024
"""Total size of the states of HTTP sessions. The least recently used is dropped first; that session continues with
default settings."""

EACH_BYTES = 128
"""Overhead counted for each session in addition to its text."""

_ONE = socket.CMSG_SPACE(array.array("i").itemsize)

_log = logging.getLogger("linckia.kernel")
_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], FromFront] = frames.reader(FromFront)


@dataclass(eq=False)
class _Client:
    """A local client; `front` is the process that serves it, if any."""

    id: int
    surface: str
    descriptors: tuple[int, ...]
    ended: trio.Event = field(default_factory=trio.Event)
    front: _Front | None = None


@dataclass(eq=False)
class _Front:
    """One generation of a front, and the kernel's socket to it."""

    name: str
    end: trio.socket.SocketType
    condemn: Callable[[str], None]
    clients: int = 0
    sending: trio.Lock = field(default_factory=trio.Lock)

    async def send(self, message: ToFront, descriptors: Sequence[int] = ()) -> None:
        """Send a message. If the front is dead, that is handled elsewhere, and its successor gets the clients."""
        async with self.sending:
            try:
                await self.end.sendmsg([_encode(message)], rights(descriptors))
            except OSError as error:
                _log.debug("%s could not be notified: %s", self.name, error)


class SessionStates:
    """States of HTTP sessions, by session name."""

    def __init__(self, max_bytes: int = SESSION_BYTES) -> None:
        self._states: collections.OrderedDict[str, str] = collections.OrderedDict()
        self._room = max_bytes

    def keep(self, name: str, state: str) -> None:
        self._drop(name)
        self._states[name] = state
        self._room -= len(state) + EACH_BYTES
        while self._room < 0:
            self._drop(next(iter(self._states)))

    def get(self, name: str) -> str | None:
        if name in self._states:
            self._states.move_to_end(name)
        return self._states.get(name)

    def _drop(self, name: str) -> None:
        if (state := self._states.pop(name, None)) is not None:
            self._room += len(state) + EACH_BYTES


class Handoff:
    """Passes client connections to the fronts; `run` must be running in a nursery.

    Args:
        names: names of the fronts, which share the work.
        pause: waits between two checks of the listening sockets.
    """

    def __init__(self, names: Sequence[str], pause: Callable[[float], Awaitable[None]] = trio.sleep) -> None:
        self._pause = pause
        self.session_states = SessionStates()
        self._names = tuple(names)
        self._listening: dict[str, socket.socket] = {}
        self._address: tuple[str, int] = ("", 0)
        self._fronts: dict[str, _Front] = {}
        self._between: dict[str, collections.deque[int]] = {name: collections.deque() for name in self._names}
        """Connections that wait for the next generation of a front."""
        self._clients: dict[int, _Client] = {}
        self._ids = itertools.count(1)
        self._nursery: trio.Nursery | None = None

    @property
    def clients(self) -> int:
        """Number of local clients that are attached now."""
        return len(self._clients)

    def listen(self, host: str, port: int) -> str:
        """Listen for HTTP, with a socket for each front; return the URL. Raises OSError."""
        self._address = host, port
        if len(self._names) > 1:
            # Sockets that share a port would also share it with those of another kernel.
            self._listen(shared=False).close()
        for name in self._names:
            self._listening[name] = self._listen()
            # The others use the port that the first one was given.
            self._address = host, self._listening[name].getsockname()[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{self._address[1]}"

    def _listen(self, *, shared: bool = True) -> socket.socket:
        """Return a socket that listens at the address. Raises OSError."""
        listening = socket.socket(socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # A compromised front could install a filter that drops connections, even those of later fronts.
            listening.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)
            if shared and len(self._names) > 1:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listening.bind(self._address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        return listening

    def _listens(self, listening: socket.socket) -> bool:
        """Return whether the socket still listens on our port: after a shutdown, it may listen on another one."""
        accepts = listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return bool(accepts) and listening.getsockname()[1] == self._address[1]

    def _replace_shut(self) -> None:
        """Replace sockets that fronts have shut down, and end these fronts."""
        for name, listening in self._listening.items():
            if self._listens(listening):
                continue
            if (front := self._fronts.get(name)) is not None:
                front.condemn("shut down the socket on which it serves HTTP")
            try:
                self._listening[name] = self._listen()
            except OSError as error:
                # The next check tries again.
                _log.error("HTTP cannot listen again for %s: %s", name, error)
            else:
                _log.warning("%s had shut down its socket: HTTP listens on a new one", name)
                listening.close()

    def close(self) -> None:
        """Stop listening."""
        while self._listening:
            self._listening.popitem()[1].close()
        for waiting in self._between.values():
            while waiting:
                os.close(waiting.popleft())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(keep_running, "the check of listening sockets", self._look)
            task_status.started()
            await trio.sleep_forever()

    async def _look(self) -> None:
        while True:
            await self._pause(LOOK_S)
            self._replace_shut()

    def ready(self, name: str, end: socket.socket, condemn: Callable[[str], None]) -> None:
        """Note that a generation of a front is READY. `end` is the socket to it, which the caller closes.

        Args:
            condemn: ends the generation, for the given reason.
        """
        if self._nursery is not None:
            front = _Front(name, trio.socket.from_stdlib_socket(end.dup()), condemn)
            self._nursery.start_soon(run_isolated, f"the clients of {name}", self._serve, front)

    async def attach(self, fd_in: int, fd_out: int, surface: str, memory: int | None = None) -> None:
        """Have a front serve a local client until it has left and its requests are answered.

        The caller closes the descriptors. Cancellation ends the session at once.

        Args:
            memory: memory file of the session, which outlives the front and this kernel.
        """
        descriptors = (fd_in, fd_out) if memory is None else (fd_in, fd_out, memory)
        client = _Client(next(self._ids), surface, descriptors)
        self._clients[client.id] = client
        try:
            if self._fronts:
                await self._hand_over(client)
            await client.ended.wait()
        finally:
            del self._clients[client.id]
            front = client.front
            if front is not None:
                front.clients -= 1
                if not client.ended.is_set():
                    with trio.CancelScope(shield=True):
                        await front.send(Detach(client.id))

    async def _hand_over(self, client: _Client) -> None:
        """Pass the client to the front that serves the fewest."""
        front = client.front = min(self._fronts.values(), key=lambda each: each.clients)
        front.clients += 1
        await front.send(Attach(client.id, client.surface), client.descriptors)

    async def _serve(self, front: _Front) -> None:
        """Serve clients with one generation of a front, until it is dead."""
        # This front is not to blame for what its predecessor did.
        self._fronts.pop(front.name, None)
        self._replace_shut()
        self._fronts[front.name] = front
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, front, nursery.cancel_scope)
                if (listening := self._listening.get(front.name)) is not None:
                    # The previous front may have changed the length of the queue.
                    listening.listen(BACKLOG)
                    await front.send(Listen(), (listening.fileno(),))
                for client in list(self._clients.values()):
                    if client.front is None:
                        await self._hand_over(client)
                await self._hand_on(front)
        finally:
            front.end.close()
            if self._fronts.get(front.name) is front:
                del self._fronts[front.name]
        orphans = [client for client in self._clients.values() if client.front is front]
        for client in orphans:
            client.front = None
        # If there is no other front, they wait for the next generation.
        for client in orphans:
            if self._fronts and client.front is None:
                await self._hand_over(client)

    async def _hand_on(self, front: _Front) -> None:
        """Pass on the connections that the previous front left."""
        waiting = self._between[front.name]
        while waiting:
            connection = waiting.popleft()
            try:
                await front.send(Between(), (connection,))
            finally:
                os.close(connection)

    async def _read(self, front: _Front, scope: trio.CancelScope) -> None:
        try:
            while True:
                packet, ancillary, _, _ = await front.end.recvmsg(MAX_PACKET_BYTES, _ONE, socket.MSG_CMSG_CLOEXEC)
                if not packet:
                    break
                with contextlib.ExitStack() as unwanted:
                    for descriptor in (descriptors := passed(ancillary)):
                        unwanted.callback(os.close, descriptor)
                    match _decode(packet):
                        case Between() if len(self._between[front.name]) < MAX_BETWEEN:
                            self._between[front.name].extend(descriptors)
                            unwanted.pop_all()
                        case Detached(id=number) if (client := self._clients.get(number)) and client.front is front:
                            client.ended.set()
                if (following := self._fronts.get(front.name, front)) is not front:
                    await self._hand_on(following)
        except OSError as error:
            # A front that dies with messages unread resets the connection.
            _log.debug("%s closed its socket: %s", front.name, error)
        except msgspec.DecodeError as error:
            front.condemn(f"its message about clients cannot be read: {error}")
        scope.cancel()
