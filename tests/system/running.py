"""A real kernel in a process of its own, for tests and benchmarks, and the handles to look at it and hurt it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio

from kernel.configure import users
from proto.control.address import socket_path
from proto.control.client import Client, ControlError
from proto.wire import frames

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parents[2]

START_TIMEOUT_S = 60.0

HTTP = ("--http", "127.0.0.1:0")
"""Options for a port that nobody has."""

LONGEST_PAUSE_S = 0.2

DEADLY = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)


NOT_GIVEN = range(20_000, 32_768)
"""Ports below those that sockets without a port of their own get (ip_local_port_range)."""

_chance = random.SystemRandom()

ORDINARY = 65534
"""A user without any rights."""


def reachable_interpreter() -> str | None:
    """One of this version that every user may run: the tests' own is often below /root."""
    system = shutil.which(f"python{sys.version_info.major}.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    for found in (sys.executable, system):
        if found is not None and users.unreachable([Path(found), Path(sysconfig.get_path("purelib"))]) is None:
            return found
    return None


def command_for_others(services: Sequence[str], uid: int | None = None) -> tuple[str, ...]:
    """`linckia serve` with these services, by an interpreter that every user may run, as user `uid` if one is given."""
    found = reachable_interpreter()
    assert found is not None
    become = f"os.setgroups(()); os.setgid({uid}); os.setuid({uid}); " if uid is not None else ""
    purelib = sysconfig.get_path("purelib")
    # Set the paths for its own modules and for its children's.
    paths = f"sys.path[:0] = ['.', {purelib!r}]; os.environ['PYTHONPATH'] = {purelib!r}"
    code = f"import os, sys; {become}{paths}; from tests.system.subset import run; run()"
    return (found, "-P", "-c", code, ",".join(services), "serve")


class RunningKernel:
    """A kernel that `running` started."""

    def __init__(self, process: subprocess.Popen[bytes], data_dir: Path) -> None:
        self.process = process
        self.data_dir = data_dir
        # What the kernel says of these may be from before it has noticed.
        self._killed: set[int] = set()

    def call(self, name: str, params: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        """Call an operation as the command line does.  Raises CallFailed."""
        with Client(self.data_dir) as client:
            return client.call_named(name, params or {}, timeout_s=timeout_s)

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.call("kernel_status")
        return answer

    def service(self, name: str) -> dict[str, Any]:
        """The status of one service."""
        found: dict[str, Any] = next(s for s in self.status()["services"] if s["name"] == name)
        return found

    def services(self) -> list[str]:
        return [service["name"] for service in self.status()["services"]]

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to a service's process, which is started first if it rests; return its pid."""
        if self.service(name)["state"] == "resting":
            self.call("kernel_start", {"service": name})
        pid = wait_until(lambda: self._struck(name, number), START_TIMEOUT_S)
        if number in DEADLY:
            self._killed.add(pid)
        return pid

    def _struck(self, name: str, number: int) -> int | None:
        """Return the pid of the process that received the signal; there is no such pid between two processes."""
        pid: int | None = self.service(name)["pid"]
        with contextlib.suppress(ProcessLookupError):
            if pid is not None and pid not in self._killed:
                os.kill(pid, number)
                return pid
        return None

    def wait_ready(self, *names: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until the services (all where none is named) are READY, in processes that were not killed here, or rest."""
        for _ in polls(timeout_s):
            status = {s["name"]: s for s in self.status()["services"]}
            asked = [status[name] for name in names or status]
            if all(one["state"] in ("ready", "resting") and one["pid"] not in self._killed for one in asked):
                return
        raise AssertionError(f"not ready in {timeout_s} s: {json.dumps(status, indent=1)}")

    def log(self, name: str) -> str:
        path = self.data_dir / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""


def free_port() -> int:
    """Return a port that nobody listens at, and that Linux gives to no other socket until a server listens there."""
    for _ in range(100):
        port = _chance.choice(NOT_GIVEN)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"no free port found in {NOT_GIVEN}")


def polls(timeout_s: float) -> Iterator[None]:
    """Times at which to ask for another process's state: often at first, then seldom, since the kernel's costs 3 ms."""
    give_up = time.monotonic() + timeout_s
    pause_s = 0.01
    while True:
        yield
        if time.monotonic() > give_up:
            return
        time.sleep(pause_s)
        pause_s = min(1.4 * pause_s, LONGEST_PAUSE_S)


def wait_until(
    condition: Callable[[], T | None], timeout_s: float = 30, *, said: Callable[[], object] | None = None
) -> T:
    """Return the condition's value once it is true.

    Raises AssertionError at the timeout, with the value of `said` or the condition's last one.
    """
    for _ in polls(timeout_s):
        if found := condition():
            return found
    raise AssertionError(f"not within {timeout_s} s: {said() if said is not None else found}")


@contextlib.contextmanager
def running(
    data_dir: Path,
    roots: Sequence[Path] = (),
    *,
    options: Sequence[str] = ("--no-http",),
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = (sys.executable, "-m", "kernel.cli", "serve"),
    services: Sequence[str] = (),
    all_ready: bool = True,
    token: bool = False,
) -> Iterator[RunningKernel]:
    """Start a kernel and wait until it answers; at the end it is stopped in order, or killed if it does not end.

    Args:
        services: where some are named, there are no others (`tests.system.subset`).
        token: whether it asks for one over HTTP.
    """
    if services:
        command = (sys.executable, "-m", "tests.system.subset", ",".join(services), "serve")
    process = subprocess.Popen(
        [*command, *map(str, roots), "--data", str(data_dir), *options],
        cwd=REPOSITORY,
        env={**os.environ, **({} if token else {"LINCKIA_TOKEN": "off"}), **(environment or {})},
        stderr=subprocess.DEVNULL,
    )
    kernel = RunningKernel(process, data_dir)
    try:
        # HTTP comes up beside the services, and may be later than the quickest of them.
        with_http = "--no-http" not in options
        for _ in polls(START_TIMEOUT_S):
            with contextlib.suppress(ControlError):
                status = kernel.status()
                # The kernel of an MCP client may answer before this one takes over.
                if status["pid"] == process.pid and (status["http_url"] is not None or not with_http):
                    break
            if process.poll() is not None:
                raise AssertionError(f"the kernel did not start:\n{kernel.log('kernel')}")
        else:
            raise AssertionError(f"the kernel does not answer, or not over HTTP:\n{kernel.log('kernel')}")
        if all_ready:
            kernel.wait_ready()
        yield kernel
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Answer:
    """One call's outcome, with its times on the monotonic clock."""

    __slots__ = ("failure", "result", "returned", "sent")

    def __init__(self, sent: float, returned: float, result: Any, failure: dict[str, Any] | None) -> None:
        self.sent = sent
        self.returned = returned
        self.result = result
        self.failure = failure


class Connection:
    """One control connection under trio: a call at a time."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def call(self, name: str, params: Mapping[str, Any]) -> Answer:
        sent = time.monotonic()
        await self._stream.send_all(json.dumps({"call": name, "params": params}).encode() + b"\n")
        while b"\n" not in self._buffer:
            await self._receive(name)
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = bytearray(rest)
        message = json.loads(line)
        result = message.get("result")
        if (size := message.get("body")) is not None:
            # A large result, as its service packed it.
            while len(self._buffer) < size:
                await self._receive(name)
            result = msgspec.to_builtins(frames.read_body(bytes(self._buffer[:size])))
            del self._buffer[:size]
        return Answer(sent, time.monotonic(), result, message.get("failure"))

    async def _receive(self, name: str) -> None:
        data = await self._stream.receive_some()
        if not data:
            raise AssertionError(f"the kernel closed the connection while {name} was running")
        self._buffer += data


@contextlib.asynccontextmanager
async def connection(data_dir: Path) -> AsyncIterator[Connection]:
    stream = await trio.open_unix_socket(str(socket_path(data_dir)))
    async with stream:
        yield Connection(stream)
