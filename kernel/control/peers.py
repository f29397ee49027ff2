"""Who is at the other end of a connection to the control socket, and whether they may give orders.

The user who runs the kernel, and root, may; the kernel's own descendants may not, whoever they run as: a service that
got hold of such a connection would be the operator. That holds for all that descends from the kernel, since as their
subreaper it adopts those whose parent has died, and no process of ours starts a shell.

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
    """Whether the process that connected may give orders; a refusal is logged."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(credentials)
    if uid not in (os.geteuid(), 0):
        log.warning("process %d of user %d was refused on the control socket", pid, uid)
        return False
    # 0: of another namespace of processes, one that ours lies in.
    if pid in (0, os.getpid()):
        return True
    why = "it is gone, and may have given its connection away"
    with contextlib.suppress(OSError):
        peer = _pidfd(connection, pid)
        try:
            ancestors = ancestry(pid)
            gone = select.poll()
            gone.register(peer, select.POLLIN)
            # While it lives, the number is its own.
            if not gone.poll(0):
                if os.getpid() not in ancestors:
                    return True
                why = "it descends from the kernel"
        finally:
            os.close(peer)
    log.warning("process %d was refused on the control socket: %s", pid, why)
    return False


def _pidfd(connection: trio.socket.SocketType, pid: int) -> int:
    """A pidfd of the process that connected.  Raises OSError: it is gone."""
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        # Before Linux 6.5.
        return os.pidfd_open(pid)


def ancestry(pid: int) -> tuple[int | None, ...]:
    """The parent of a process, the parent's parent and so on, as they were in one moment; None where none is seen."""
    seen: tuple[int | None, ...] = ()
    # A parent that dies meanwhile may leave its number to another process, but no child: read twice alike, it lived.
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
