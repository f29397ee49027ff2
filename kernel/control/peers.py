"""Checks who is at the other end of a control connection, and whether they may give orders.

The user who runs the kernel may, and so may root. The kernel's own descendants may not, whatever user they run as: a
service with such a connection would have the operator's rights. This covers all descendants, since the kernel, as
their subreaper, adopts those whose parent has died; and none of our processes starts a shell.

Sources: unix(7), proc(5), pidfd_open(2).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import socket
import struct
from pathlib import Path

import trio

log = logging.getLogger("linckia.control")

_SO_PEERPIDFD = 77
_CREDENTIALS = struct.Struct("3i")


def is_admitted(connection: trio.socket.SocketType) -> bool:
    """Return whether the connecting process may give orders. A refusal is logged."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(credentials)
    if uid not in (os.geteuid(), 0):
        log.warning("process %d of user %d was refused on the control socket", pid, uid)
        return False
    # 0 means a process in another PID namespace, one that contains ours.
    if pid in (0, os.getpid()):
        return True
    why = "it is gone, and may have passed its connection on"
    with contextlib.suppress(OSError):
        peer = _pidfd(connection, pid)
        try:
            ancestors = ancestry(pid)
            gone = select.poll()
            gone.register(peer, select.POLLIN)
            # While it lives, its pid is not reused.
            if not gone.poll(0):
                if os.getpid() not in ancestors:
                    return True
                why = "it descends from the kernel"
        finally:
            os.close(peer)
    log.warning("process %d was refused on the control socket: %s", pid, why)
    return False


def _pidfd(connection: trio.socket.SocketType, pid: int) -> int:
    """Return a pidfd of the connecting process. Raises OSError if it is gone."""
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        # Before Linux 6.5.
        return os.pidfd_open(pid)


def ancestry(pid: int) -> tuple[int | None, ...]:
    """Return a process's parent, grandparent and so on, at one moment; None for one that cannot be seen."""
    seen: tuple[int | None, ...] = ()
    # If a parent dies meanwhile, its pid may be reused, but its children change parents. Two equal walks are
    # consistent.
    while (now := _walk(pid)) != seen:
        seen = now
    return now


def _walk(pid: int | None) -> tuple[int | None, ...]:
    found = []
    while pid is not None and pid > 1:
        pid = _parent(pid)
        found.append(pid)
    return tuple(found)


def _parent(pid: int) -> int | None:
    try:
        line = re.search(rb"^PPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_bytes(), re.MULTILINE)
    except OSError:
        return None
    return int(line[1]) if line else None
