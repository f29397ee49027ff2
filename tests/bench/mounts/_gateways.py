"""The ways to a server that are compared: directly, and through each gateway, as its documentation sets it up."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from tests.bench.mounts import server
from tests.bench.mounts._sessions import HttpSession, PipeSession, Session
from tests.system.mounts.mounting import write
from tests.system.running import HTTP, free_port, running

MOUNT = "bench"
TIMEOUT_S = 5
"""How long a call may take, in gateways that can limit it."""
MEMORY_LIMIT = "512MiB"
START_LIMIT_S = 60.0
HANDSHAKE_LIMIT_S = 15.0

_HERE = Path(__file__).parent


class NotServing(Exception):
    """A gateway did not start."""


class Served(msgspec.Struct, kw_only=True):
    """A server behind a gateway.

    Attributes:
        pid: the gateway's process, or 0 if the server runs without a gateway.
        stdio: the command that a client starts.
        port: for HTTP; 0 if the gateway has none.
    """

    pid: int = 0
    stdio: Sequence[str] = ()
    port: int = 0
    path: str = "/mcp"
    headers: dict[str, str] = {}

    def connect(self) -> Session:
        """Open a session, over HTTP if possible. Raises ConnectionError."""
        if self.port:
            return HttpSession(self.port, self.path, self.headers, HANDSHAKE_LIMIT_S)
        return PipeSession(self.stdio, HANDSHAKE_LIMIT_S)


Gateway = Callable[[Sequence[str], Path], AbstractContextManager[Served]]
"""Serves a command, with a folder for the gateway's own files. Raises NotServing."""


def server_command(folder: Path, failures: int = 0) -> list[str]:
    """Return the command of the server; it ends at its first `failures` starts."""
    folder.mkdir(exist_ok=True)
    return [sys.executable, "-I", "-S", server.__file__, str(folder), str(failures)]


@contextlib.contextmanager
def direct(command: Sequence[str], folder: Path) -> Iterator[Served]:
    """Start the server as clients do."""
    yield Served(stdio=command)


def linckia(services: Sequence[str]) -> Gateway:
    """Return Linckia with these services; with all if none is named."""

    @contextlib.contextmanager
    def gateway(command: Sequence[str], folder: Path) -> Iterator[Served]:
        table = {"command": command[0], "args": list(command[1:]), "cwd": str(folder)}
        write(folder / "data", {MOUNT: {**table, "timeout": TIMEOUT_S, "memory_limit": MEMORY_LIMIT}})
        with running(folder / "data", options=HTTP, services=services) as kernel:
            port = int(kernel.status()["http_url"].rsplit(":", 1)[1].split("/")[0])
            joiner = [sys.executable, "-P", "-m", "kernel.cli", "stdio", "--data", str(folder / "data")]
            stdio = [*joiner, "--surface", MOUNT]
            yield Served(pid=kernel.process.pid, stdio=stdio, port=port, path=f"/mcp/{MOUNT}")

    return gateway


def fastmcp(python: Path) -> Gateway:
    """Return FastMCP's proxy, run by this interpreter."""

    @contextlib.contextmanager
    def gateway(command: Sequence[str], folder: Path) -> Iterator[Served]:
        port = free_port()
        own = [str(python), str(_HERE / "_fastmcp.py"), str(TIMEOUT_S)]
        with _process([*own, str(port), *command], port) as pid:
            yield Served(pid=pid, stdio=[*own, "stdio", *command], port=port)

    return gateway


def mcp_proxy(python: Path) -> Gateway:
    """Return mcp-proxy, run by this interpreter; it has no limit for calls."""

    @contextlib.contextmanager
    def gateway(command: Sequence[str], folder: Path) -> Iterator[Served]:
        port = free_port()
        own = [str(python), "-m", "mcp_proxy", "--log-level", "CRITICAL", "--port", str(port), "--"]
        with _process([*own, *command], port) as pid:
            yield Served(pid=pid, port=port, path="/mcp/")

    return gateway


@contextlib.contextmanager
def _process(
    command: Sequence[str], port: int, environment: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[int]:
    """Start a process, wait until it listens at the port, and end it. Raises NotServing."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        cwd=cwd,
    )
    try:
        give_up = time.monotonic() + START_LIMIT_S
        while True:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            if process.poll() is not None:
                raise NotServing(f"it ended with exit code {process.returncode}")
            if time.monotonic() > give_up:
                raise NotServing("it does not listen")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
