"""A data directory: the location of its control socket, lock and logs. One kernel at a time holds it.

The address of a Unix socket has at most 107 bytes; a longer path is reached through `/proc/self/fd/N`, a descriptor of
the data directory. `hold` is called before anything slow is imported, so that other kernels and clients can queue.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

MAX_ADDRESS_BYTES = 107
"""Length of `sockaddr_un.sun_path` on Linux, without its final NUL."""

BACKLOG = 128
"""Maximum number of clients waiting while the kernel starts."""

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
    """Return the folder with the logs of the kernel (`kernel.log`) and of every service (`NAME.log`)."""
    return data_dir / "logs"


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last `count` lines of a log, without reading much more of the file. Raises OSError."""
    with path.open("rb") as file:
        tail = tail_of(file, count)
    return tail.decode(errors="replace").splitlines()[-count:] if count else []


def tail_of(file: BinaryIO, count: int) -> bytes:
    """Return at least the last `count` lines, and an incomplete one, and leave the position after them."""
    tail = b""
    end = at = file.seek(0, os.SEEK_END)
    while at > 0 and tail.count(b"\n") <= count:
        step = min(_BLOCK_BYTES, at)
        at = file.seek(at - step)
        tail = file.read(step) + tail
    file.seek(end)
    return tail


def default_data_dir() -> Path:
    """Return `linckia` in the user's data directory, according to the XDG Base Directory Specification."""
    base = os.environ.get("XDG_DATA_HOME", "")
    # The specification says that a relative path is invalid and must be ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "linckia"


def find_data_dir(flag: str | None, environment: Mapping[str, str]) -> Path:
    """Return the real path of the data directory to use, which need not exist yet."""
    return given_data_dir(flag, environment).resolve()


def given_data_dir(flag: str | None, environment: Mapping[str, str]) -> Path:
    """Return the data directory as given, possibly through a link."""
    given = flag or environment.get("LINCKIA_DATA")
    return Path(given).expanduser() if given else default_data_dir()


@contextlib.contextmanager
def addressable(path: Path) -> Iterator[str]:
    """Yield an address for `path` that is short enough, valid inside the block."""
    if len(os.fsencode(path)) <= MAX_ADDRESS_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(data_dir: Path) -> socket.socket:
    """Connect to the kernel. Raises OSError (FileNotFoundError, ConnectionRefusedError: nobody listens)."""
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
    """Lock `data_dir` and yield its listening control socket. After the block, the socket is removed and the lock free.

    A holder that no longer accepts connections is ending, so it is waited for, up to `wait_s` seconds; so is one that
    has announced its end (`is_leaving`).

    Raises AlreadyHeld, which names the holder; CannotHold: it cannot be created, written to, locked or listened in.
    """
    with locked(data_dir, wait_s=wait_s, is_leaving=is_leaving):
        path = socket_path(data_dir)
        with _failing(f"cannot listen on {path}", LOCAL):
            listener = _listen(path)
        try:
            yield listener
        finally:
            # Unlinked while the lock is held, so it cannot be another kernel's socket.
            path.unlink(missing_ok=True)
            listener.close()


@contextlib.contextmanager
def locked(data_dir: Path, *, wait_s: float, is_leaving: bool = False) -> Iterator[None]:
    """Lock `data_dir`, creating it if needed; otherwise like `hold`."""
    path = data_dir / "kernel.lock"
    with _failing(f"cannot use {data_dir} as data directory", "name another one with --data"):
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with _failing(f"cannot lock {path}", LOCAL):
            _lock(lock, data_dir, time.monotonic() + wait_s, is_leaving=is_leaving)
        _close(data_dir)
        with _failing(f"cannot write to {path}", "free disk space, or name another data directory with --data"):
            os.truncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def _close(data_dir: Path) -> None:
    """Make an existing data directory private, as a new one is. Under root, the kernel then admits its services."""
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(data_dir.stat().st_mode)
        if mode & 0o077:
            data_dir.chmod(mode & ~0o077)


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
        # An existing file is the socket of a holder that was killed: we have the lock, so nobody uses it.
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
