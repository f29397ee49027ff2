"""Holding a data directory: one kernel each, by an advisory lock, with its control socket bound and listening.

`hold` comes first of all in the kernel's life, before anything slow is imported, so that a second kernel or client can
connect at once and wait in the socket's backlog.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernel.control.address import addressable, connect, lock_path, socket_path

BACKLOG = 128
"""Clients that may wait while the kernel starts."""

_POLL_S = 0.02


class CannotHold(Exception):
    """The data directory cannot be used; the message says why and what to do."""


class AlreadyHeld(CannotHold):
    """Another kernel holds the data directory."""


@dataclass(frozen=True)
class Held:
    """What the holder of a data directory has."""

    data_dir: Path
    listener: socket.socket


@contextlib.contextmanager
def hold(data_dir: Path, *, wait_s: float = 10.0) -> Iterator[Held]:
    """Lock `data_dir` and listen on its control socket; on leaving the block the socket is gone and the lock free.

    A holder that no longer answers on its socket is on its way out, and is waited for up to `wait_s` seconds.

    Raises:
        AlreadyHeld: names the process that holds it.
        CannotHold: the directory cannot be made, written to, locked or listened in.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(lock_path(data_dir), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotHold(
            f"cannot use {data_dir} as data directory: {error.strerror}; name another with --data"
        ) from error
    try:
        _lock(lock, data_dir, time.monotonic() + wait_s)
        os.truncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        path = socket_path(data_dir)
        listener = _listen(path)
        try:
            yield Held(data_dir, listener)
        finally:
            # Unlinked while the lock is still held: it can be nobody else's socket.
            path.unlink(missing_ok=True)
            listener.close()
    finally:
        os.close(lock)


def _lock(lock: int, data_dir: Path, give_up_at: float) -> None:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise CannotHold(
                    f"cannot lock {lock_path(data_dir)}: {error.strerror}; "
                    "name a data directory on a local disk with --data"
                ) from error
        else:
            return
        if _answers(data_dir) or time.monotonic() > give_up_at:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise AlreadyHeld(
                f"{data_dir} is held by another kernel, process {holder}. "
                f"Use it (linckia status), end it (linckia stop), or name another directory with --data."
            )
        time.sleep(_POLL_S)


def _answers(data_dir: Path) -> bool:
    try:
        connect(data_dir).close()
    except OSError:
        return False
    return True


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # What lies there is the socket of a holder that was killed: the lock says that nobody uses it.
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            with addressable(path) as address:
                listener.bind(address)
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotHold(
            f"cannot listen on {path}: {error.strerror}; name a data directory on a local disk with --data"
        ) from error
    return listener
