"""How long an MCP client waits for its first answer: `linckia stdio` from process start to `initialize`.

A cold start has a new data directory, so a kernel must be started too; joining uses a running kernel. The peer,
measured in turn with them, is a Python that only imports the protocol's official SDK, which any server built on it does
before it can answer.

    scripts/bench start [--runs N]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench._wire import INITIALIZE, INITIALIZED
from tests.system.running import REPOSITORY, running

LINCKIA = (sys.executable, "-P", "-m", "linckia.kernel.cli")

COLD_LIMIT_S = 1.5
"""Longest acceptable wait for a client that a person starts."""


def peer() -> float:
    """Return the seconds of a process that imports the SDK's server and ends."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import mcp.server"], check=True)
    return time.perf_counter() - start


def first_answers(data_dir: Path, linckia: Sequence[str] = LINCKIA) -> tuple[float, float]:
    """Return the seconds from process start to the answers of `initialize` and of `tools/list`, sent right after it."""
    command = [*linckia, "stdio", "--data", str(data_dir)]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        opened = time.perf_counter() - start
        if answer["result"]["serverInfo"]["name"] != "linckia":
            raise AssertionError(f"not the answer: {answer}")
        for message in (INITIALIZED, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}):
            process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        if not json.loads(process.stdout.readline())["result"]["tools"]:
            raise AssertionError("no tools were listed")
        listed = time.perf_counter() - start
    process.wait(60)
    return opened, listed


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
    cold: list[tuple[float, float]] = []
    joined: list[tuple[float, float]] = []
    alone: list[float] = []
    with tempfile.TemporaryDirectory() as held:
        with running(Path(held)):
            joined = [first_answers(Path(held)) for _ in range(runs)]
        for _ in range(runs):
            alone.append(peer())
            with tempfile.TemporaryDirectory() as fresh:
                cold.append(first_answers(Path(fresh)))
                wait_for_its_end(Path(fresh))
    compared = statistics.median(alone)
    print(f"Python {platform.python_version()}, {runs} runs each            min  median     max   to the peer")
    show("peer: python -c 'import mcp.server'", alone, compared)
    show("cold start to initialize", [opened for opened, _ in cold], compared)
    show("cold start to tools/list", [listed for _, listed in cold], compared)
    show("joining to initialize", [opened for opened, _ in joined], compared)
    show("joining to tools/list", [listed for _, listed in joined], compared)
    slowest = max(opened for opened, _ in cold)
    print(f"slowest cold initialize: {slowest:.3f} s of at most {COLD_LIMIT_S} s")


if __name__ == "__main__":
    main()
