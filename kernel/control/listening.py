"""Opens the port for HTTP, and finds out who has one that is taken.

Without a setting, a second data directory gets the next free port, and keeps it in `http.port`, since clients have
the address in their settings.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from pathlib import Path

import trio

from kernel.configure.config import ConfigError
from kernel.control.handoff import Handoff
from proto.host.durable import replace_file
from proto.wire.front import DEFAULT_PORT, Http

PORTS = 20
"""Ports that are tried."""

PATIENCE_S = 2.0
"""How long the fronts of a kernel that was killed may hold its port."""

_POLL_S = 0.05
_LISTENS = "0A"

_log = logging.getLogger("linckia.kernel")


async def listen(handoff: Handoff, settings: Http, data_dir: Path) -> str:
    """Listen for HTTP; return the URL. Raises ConfigError."""
    kept = data_dir / "http.port"
    ports = [settings.port] if settings.port is not None else _candidates(kept)
    taken: list[int] = []
    for port in ports:
        try:
            url = await _patiently(handoff, settings, port, PATIENCE_S if port == ports[0] else 0.0)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                taken.append(port)
                continue
            raise ConfigError(_problem(settings, port, error.strerror or str(error))) from None
        if taken:
            _log.warning("port %d is taken by %s; HTTP listens on port %d", taken[0], holder(taken[0]), port)
        if settings.port is None and port not in (DEFAULT_PORT, ports[0]):
            replace_file(kept, f"{port}\n".encode())
        return url
    raise ConfigError(_problem(settings, taken[0], f"it is taken by {holder(taken[0])}"))


def _problem(settings: Http, port: int, reason: str) -> str:
    return (
        f"HTTP cannot listen on {settings.host}:{port}: {reason}; "
        "name another address with --http HOST:PORT, or disable HTTP (--no-http)"
    )


def _candidates(kept: Path) -> list[int]:
    """Return the ports to try: first the one that this data directory had before."""
    ports = list(range(DEFAULT_PORT, DEFAULT_PORT + PORTS))
    with contextlib.suppress(OSError, ValueError):
        before = int(kept.read_text("ascii"))
        if before in ports:
            ports.remove(before)
            ports.insert(0, before)
    return ports


async def _patiently(handoff: Handoff, settings: Http, port: int, patience_s: float) -> str:
    give_up_at = trio.current_time() + patience_s
    while True:
        try:
            return handoff.listen(settings.host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or trio.current_time() >= give_up_at:
                raise
        await trio.sleep(_POLL_S)


def holder(port: int) -> str:
    """Name the process that listens on a port, as far as this user may see it."""
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            rows = [line.split() for line in Path(table).read_text("ascii").splitlines()[1:]]
            sockets |= {
                f"socket:[{row[9]}]"
                for row in rows
                if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port
            }
    for folder in Path("/proc").glob("[0-9]*/fd"):
        # Another user's process, or one that has ended.
        with contextlib.suppress(OSError):
            if any(os.readlink(each) in sockets for each in folder.iterdir()):
                return _described(folder.parent)
    return "a process of another user" if sockets else "another process"


def _described(process: Path) -> str:
    command = (process / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
    shown = re.sub(r"[^\x20-\x7e]", "?", " ".join(command))
    return f"process {process.name} ({shown[:200]})"
