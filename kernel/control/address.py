"""Where a data directory's control socket, lock and note are, and how to bind or reach a socket whose path is too long.

A Unix socket's address holds at most 107 bytes. A longer path is reached through `/proc/self/fd/N`, a descriptor of the
data directory, so that the socket always stands in the directory it belongs to.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

MAX_ADDRESS_BYTES = 107
"""`sockaddr_un.sun_path` on Linux, less its final NUL."""


def socket_path(data_dir: Path) -> Path:
    return data_dir / "kernel.sock"


def lock_path(data_dir: Path) -> Path:
    return data_dir / "kernel.lock"


def log_dir(data_dir: Path) -> Path:
    """Of the kernel (`kernel.log`) and of every service (`NAME.log`)."""
    return data_dir / "logs"


def default_data_dir() -> Path:
    """`linckia` in the user's data directory, as the XDG Base Directory Specification says."""
    base = os.environ.get("XDG_DATA_HOME", "")
    # The specification: a relative path there is invalid and is ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "linckia"


def find_data_dir(flag: str | None, environment: Mapping[str, str]) -> Path:
    """The real path of the data directory in force, which need not exist yet."""
    given = flag or environment.get("LINCKIA_DATA")
    return (Path(given).expanduser() if given else default_data_dir()).resolve()


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
    """A connection to the kernel that holds `data_dir`.

    Raises:
        FileNotFoundError, ConnectionRefusedError: no kernel listens there.
        OSError: it cannot be reached for another reason.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with addressable(socket_path(data_dir)) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection
