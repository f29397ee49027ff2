"""The link over nng's Pair1: the same messages over whatever nng has a transport for, as between machines (tls+tcp).

It is driven by nng's readiness descriptors under trio, never by pynng's asynchronous calls (a cancelled `asend` leaks
its message). All private names of pynng stay in this file. On one machine `proto.link.SocketLink` costs half.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from typing import Any

import pynng
import trio

from proto.link import Link, LinkClosed

NNG_THREADS = {
    "NNG_INIT_NUM_TASK_THREADS": 2, "NNG_INIT_MAX_TASK_THREADS": 2, "NNG_INIT_NUM_EXPIRE_THREADS": 1,
    "NNG_INIT_MAX_EXPIRE_THREADS": 1, "NNG_INIT_NUM_POLLER_THREADS": 1, "NNG_INIT_MAX_POLLER_THREADS": 1,
    "NNG_INIT_NUM_RESOLVER_THREADS": 1,
}  # fmt: skip
"""nng's defaults are meant for servers with thousands of pipes; 13 threads a process become 7."""

_PIPE_QUEUE = 128
"""Messages of at most 64 KB that nng holds in each direction: 8 MB at the worst."""


def stream_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected stream sockets, one for each end."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


@functools.cache
def _limit_threads() -> None:
    """Once a process, since nng reads its limits at first use only."""
    for name, n in NNG_THREADS.items():
        if (parameter := getattr(pynng.lib, name, None)) is not None:
            pynng.lib.nng_init_set_parameter(parameter, n)


class NngLink(Link):
    """One end of an nng Pair1 over an inherited descriptor, which nng owns from then on.  Must be made inside trio."""

    def __init__(self, fd: int, *, max_message_bytes: int) -> None:
        _limit_threads()
        # The default of 0 is unlimited; a message beyond the limit drops the pipe.  pynng has no types.
        self._socket: Any = pynng.Pair1(
            recv_max_size=max_message_bytes, recv_buffer_size=_PIPE_QUEUE, send_buffer_size=_PIPE_QUEUE
        )
        self._closed = False
        self._peer_gone = False
        self._scopes: set[trio.CancelScope] = set()
        token = trio.lowlevel.current_trio_token()

        def on_pipe_removed(_pipe: object) -> None:
            # Called on a thread of nng's, about 2 ms after the peer's death; where the loop ended first, no task waits.
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(self._on_peer_gone)

        self._socket.add_post_pipe_remove_cb(on_pipe_removed)
        listener = pynng.ffi.new("nng_listener *")
        pynng.check_err(pynng.lib.nng_listener_create(listener, self._socket.socket, b"socket://"))
        pynng.check_err(pynng.lib.nng_listener_start(listener[0], 0))
        pynng.check_err(pynng.lib.nng_listener_set_int(listener[0], b"socket:fd", fd))
        self._recv_fd: int = self._socket.recv_fd
        self._send_fd: int = self._socket.send_fd

    def _on_peer_gone(self) -> None:
        self._peer_gone = True
        for scope in self._scopes:
            scope.cancel()

    def try_send(self, message: bytes) -> bool:
        if self._closed or self._peer_gone:
            raise LinkClosed
        try:
            self._socket.send(message, block=False)
        except pynng.TryAgain:
            return False
        except pynng.Closed:
            raise LinkClosed from None
        return True

    def try_receive(self) -> bytes | None:
        if self._closed:
            raise LinkClosed
        try:
            message: bytes = self._socket.recv(block=False)
        except pynng.TryAgain:
            if self._peer_gone:
                raise LinkClosed from None
            return None
        except pynng.Closed:
            raise LinkClosed from None
        except RuntimeError:
            # pynng cannot unpack a message of no bytes.
            return b""
        return message

    async def send(self, message: bytes) -> None:
        while not self.try_send(message):
            await self._wait(self._send_fd)

    async def receive(self) -> bytes:
        while (message := self.try_receive()) is None:
            await self._wait(self._recv_fd)
        return message

    async def _wait(self, fd: int) -> None:
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                await trio.lowlevel.wait_readable(fd)
            finally:
                self._scopes.discard(scope)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for scope in self._scopes:
            scope.cancel()
        # Waiters must have left epoll before the descriptors go, or their numbers may be reused under them.
        for fd in (self._recv_fd, self._send_fd):
            trio.lowlevel.notify_closing(fd)
        self._socket.close()
