"""A data directory: where it and its control socket, lock and logs are; one kernel holds it at a time.

A Unix socket's address holds at most 107 bytes; a longer path is reached through `/proc/self/fd/N`, a descriptor of the
data directory. `hold` comes before anything slow is imported, so that other kernels and clients can queue at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

MAX_ADDRESS_BYTES = 107
"""`sockaddr_un.sun_path` on Linux, less its final NUL."""

BACKLOG = 128
"""Clients that may wait while the kernel starts."""

LOCAL = "name a data directory on a local disk with --data"

_POLL_S = 0.02
_BLOCK_BYTES = 64 * 1024


class CannotHold(Exception):
    """The data directory cannot be used; the message says why and what to do."""


class AlreadyHeld(CannotHold):
    """Another kernel holds the data directory."""


def socket_path(data_dir: Path) -> Path:
    return data_dir / "kernel.sock"


def log_dir(data_dir: Path) -> Path:
    """Of the kernel (`kernel.log`) and of every service (`NAME.log`)."""
    return data_dir / "logs"


def last_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines of a log, without reading more of the file than they take.  Raises OSError."""
    tail = b""
    with path.open("rb") as file:
        at = file.seek(0, os.SEEK_END)
        while at > 0 and tail.count(b"\n") <= count:
            step = min(_BLOCK_BYTES, at)
            at = file.seek(at - step)
            tail = file.read(step) + tail
    return tail.decode(errors="replace").splitlines()[-count:] if count else []


def default_data_dir() -> Path:
    """`linckia` in the user's data directory, as the XDG Base Directory Specification says."""
    base = os.environ.get("XDG_DATA_HOME", "")
    # The specification: a relative path there is invalid and is ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "linckia"


def find_data_dir(flag: str | None, environment: Mapping[str, str]) -> Path:
    """The real path of the data directory in force, which need not exist yet."""
    return given_data_dir(flag, environment).resolve()


def given_data_dir(flag: str | None, environment: Mapping[str, str]) -> Path:
    """The data directory as it is named, perhaps by a link."""
    given = flag or environment.get("LINCKIA_DATA")
    return Path(given).expanduser() if given else default_data_dir()


@contextlib.contextmanager
def addressable(path: Path) -> Iterator[str]:
    """An address for `path` that is short enough, valid inside the block."""
    if len(os.fsencode(path)) <= MAX_ADDRESS_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(data_dir: Path) -> socket.socket:
    """A connection to the kernel.  Raises OSError (FileNotFoundError, ConnectionRefusedError: none listens there)."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with addressable(socket_path(data_dir)) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def hold(data_dir: Path, *, wait_s: float = 10.0, is_leaving: bool = False) -> Iterator[socket.socket]:
    """Lock `data_dir` and listen on its control socket, which is given; after the block it is gone and the lock free.

    A holder that no longer answers on its socket is on its way out, and is waited for up to `wait_s` seconds; so is one
    that has said so (`is_leaving`).

    Raises AlreadyHeld, which names the holder; CannotHold: it cannot be made, written to, locked or listened in.
    """
    with locked(data_dir, wait_s=wait_s, is_leaving=is_leaving):
        path = socket_path(data_dir)
        with _failing(f"cannot listen on {path}", LOCAL):
            listener = _listen(path)
        try:
            yield listener
        finally:
            # Unlinked while the lock is still held: it can be nobody else's socket.
            path.unlink(missing_ok=True)
            listener.close()


@contextlib.contextmanager
def locked(data_dir: Path, *, wait_s: float, is_leaving: bool = False) -> Iterator[None]:
    """Lock `data_dir`, and make it where it is not there; otherwise as `hold`."""
    path = data_dir / "kernel.lock"
    with _failing(f"cannot use {data_dir} as data directory", "name another with --data"):
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with _failing(f"cannot lock {path}", LOCAL):
            _lock(lock, data_dir, time.monotonic() + wait_s, is_leaving=is_leaving)
        with _failing(f"cannot write to {path}", "make room, or name another data directory with --data"):
            os.truncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _failing(what: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotHold(f"{what}: {error.strerror}; {remedy}") from error


def _lock(lock: int, data_dir: Path, give_up_at: float, *, is_leaving: bool) -> None:
    while True:
        with contextlib.suppress(BlockingIOError, PermissionError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        answers = False
        with contextlib.suppress(OSError):
            if not is_leaving:
                connect(data_dir).close()
                answers = True
        if answers or time.monotonic() > give_up_at:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise AlreadyHeld(
                f"{data_dir} is held by another kernel, process {holder}. "
                f"Use it (linckia status), end it (linckia stop), or name another directory with --data."
            )
        time.sleep(_POLL_S)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    with contextlib.ExitStack() as failed:
        failed.callback(listener.close)
        # What lies there is the socket of a holder that was killed: the lock says that nobody uses it.
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            with addressable(path) as address:
                listener.bind(address)
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
        failed.pop_all()
    return listener
