"""Copies bytes between a TLS connection and a service's socket, in one thread.

The service keeps its sandbox, without network and without the keys of the connection: it has the same inherited socket
as on the kernel's machine. nng's stream over TLS has the same bytes as over a socket.

Non-blocking calls and poll(2) rather than two threads: OpenSSL does not allow one connection to be used by two threads
at once.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
from collections.abc import Callable

PIECE_BYTES = 256 * 1024


def relay(tls: ssl.SSLSocket, plain: socket.socket, log_fd: int, heard: Callable[[bytes], None]) -> None:
    """Copy until either end closes. Output that arrives on the pipe `log_fd` goes to `heard`. Closes nothing."""
    tls.setblocking(False)
    plain.setblocking(False)
    os.set_blocking(log_fd, False)
    poll = select.poll()
    poll.register(log_fd, select.POLLIN)
    poll.register(tls, 0)
    poll.register(plain, 0)
    up = down = memoryview(b"")
    while True:
        moved = False
        try:
            if not up:
                up = _received(plain)
                moved = bool(up)
            if up:
                up = up[tls.send(up) :]
                moved = True
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except (EOFError, OSError):
            return
        try:
            if not down:
                down = _received(tls)
                moved = bool(down) or moved
            if down:
                down = down[plain.send(down) :]
                moved = True
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except (EOFError, OSError):
            return
        if moved:
            continue
        poll.modify(tls, (0 if down else select.POLLIN) | (select.POLLOUT if up else 0))
        poll.modify(plain, (0 if up else select.POLLIN) | (select.POLLOUT if down else 0))
        for fd, event in poll.poll():
            if event & (select.POLLHUP | select.POLLERR) and fd == tls.fileno():
                return
            if fd == log_fd and not _log(log_fd, heard):
                poll.unregister(log_fd)


def _received(end: socket.socket) -> memoryview:
    """Raises EOFError if the other end has closed."""
    if not (data := end.recv(PIECE_BYTES)):
        raise EOFError
    return memoryview(data)


def _log(fd: int, heard: Callable[[bytes], None]) -> bool:
    """Pass on output; return whether there may be more."""
    try:
        data = os.read(fd, PIECE_BYTES)
    except BlockingIOError:
        return True
    heard(data)
    return bool(data)


def rest_of(fd: int, heard: Callable[[bytes], None]) -> None:
    """Pass on the output that is left on a pipe, without waiting for more."""
    try:
        while data := os.read(fd, PIECE_BYTES):
            heard(data)
    except BlockingIOError:
        return
