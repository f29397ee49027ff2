"""How long an MCP client waits for its first answers: `linckia stdio` from process start to `initialize`, to the list
of tools, and to the result of a call.

A cold start has a new data directory, so a kernel must be started too; joining uses a running kernel. After a kill, the
kernel of three clients was killed, and the time is that from the kill to the answer of the last one. The peer, measured
in turn with them, is a Python that only imports the protocol's official SDK, which any server built on it does before
it can answer.

    scripts/bench start [--runs N]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from proto.json_types import JsonObject
from tests.bench.parts.wire import INITIALIZE, INITIALIZED
from tests.system.running import REPOSITORY, running

LINCKIA = (sys.executable, "-P", "-m", "kernel.cli")

COLD_LIMIT_S = 1.5
"""Longest acceptable wait for a client that a person starts."""

CLIENTS = 3
"""Clients of a kernel that is killed."""

SETTLED_S = 5.0
"""Time for all services to start before the kernel is killed."""


def peer() -> float:
    """Return the seconds of a process that imports the SDK's server and ends."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import mcp.server"], check=True)
    return time.perf_counter() - start


class Client:
    """A process of `linckia stdio`."""

    def __init__(self, data_dir: Path, linckia: Sequence[str] = LINCKIA) -> None:
        command = [*linckia, "stdio", "--data", str(data_dir)]
        self.process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def send(self, *messages: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
        self.process.stdin.flush()

    def receive(self) -> JsonObject:
        """Return the next answer's result."""
        assert self.process.stdout is not None
        answer: JsonObject = {}
        while "id" not in answer:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError("the session has ended")
            # After a death, a line may be empty, and a notification says that lists may have changed.
            answer = json.loads(line.strip() or b"{}")
        if "result" not in answer:
            raise AssertionError(f"not the answer: {answer}")
        found: JsonObject = answer["result"]
        return found

    def open(self) -> None:
        self.send(INITIALIZE)
        if self.receive()["serverInfo"]["name"] != "linckia":
            raise AssertionError("another server answered")
        self.send(INITIALIZED)

    def leave(self) -> None:
        self.process.communicate(timeout=60)


LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
CALL = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "tools/call",
    "params": {"name": "mcp.echo", "arguments": {"message": "x"}},
}


def first_answers(data_dir: Path, linckia: Sequence[str] = LINCKIA) -> tuple[float, float, float]:
    """Return the seconds from process start to the answers of `initialize`, `tools/list` and a call, each sent right
    after the one before."""
    start = time.perf_counter()
    client = Client(data_dir, linckia)
    client.open()
    opened = time.perf_counter() - start
    client.send(LIST)
    if not client.receive()["tools"]:
        raise AssertionError("no tools were listed")
    listed = time.perf_counter() - start
    client.send(CALL)
    client.receive()
    called = time.perf_counter() - start
    client.leave()
    return opened, listed, called


def after_a_kill(data_dir: Path, message: object) -> float:
    """Return the seconds from the death of a kernel to its last client's answer to a message sent at once."""
    clients = [Client(data_dir) for _ in range(CLIENTS)]
    for client in clients:
        client.open()
        client.send(LIST, CALL)
        client.receive()
        client.receive()
    time.sleep(SETTLED_S)
    killed = time.perf_counter()
    os.kill(int((data_dir / "kernel.lock").read_text()), signal.SIGKILL)
    for client in clients:
        client.send(message)
    for client in clients:
        client.receive()
    answered = time.perf_counter() - killed
    for client in clients:
        client.leave()
    return answered


def wait_for_its_end(data_dir: Path) -> None:
    """Wait until the kernel started there has ended, since its loading would slow the next start."""
    pid = int((data_dir / "kernel.lock").read_text())
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.02)


def show(name: str, taken: Sequence[float], compared: float) -> None:
    middle = statistics.median(taken)
    print(
        f"{name:<34} {min(taken):>6.3f} {middle:>7.3f} {max(taken):>7.3f} s   {middle / compared:>5.2f} x",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench start")
    parser.add_argument("--runs", type=int, default=20)
    runs: int = parser.parse_args().runs
    cold: list[tuple[float, float, float]] = []
    joined: list[tuple[float, float, float]] = []
    killed: list[tuple[float, float]] = []
    alone: list[float] = []
    with tempfile.TemporaryDirectory() as held:
        with running(Path(held)):
            joined = [first_answers(Path(held)) for _ in range(runs)]
        for _ in range(runs):
            alone.append(peer())
            with tempfile.TemporaryDirectory() as fresh:
                cold.append(first_answers(Path(fresh)))
                wait_for_its_end(Path(fresh))
            with tempfile.TemporaryDirectory() as fresh:
                waits = []
                for message in (LIST, CALL):
                    waits.append(after_a_kill(Path(fresh), message))
                    wait_for_its_end(Path(fresh))
                killed.append((waits[0], waits[1]))
    compared = statistics.median(alone)
    print(f"Python {platform.python_version()}, {runs} runs each            min  median     max   to the peer")
    show("peer: python -c 'import mcp.server'", alone, compared)
    for kind, taken in (("cold start", cold), ("joining", joined)):
        for to, times in zip(("initialize", "tools/list", "a call"), zip(*taken, strict=True), strict=True):
            show(f"{kind} to {to}", times, compared)
    for to, times in zip(("tools/list", "a call"), zip(*killed, strict=True), strict=True):
        show(f"after a kill to {to}", times, compared)
    slowest = max(opened for opened, *_ in cold)
    print(f"slowest cold initialize: {slowest:.3f} s of at most {COLD_LIMIT_S} s")


if __name__ == "__main__":
    main()
