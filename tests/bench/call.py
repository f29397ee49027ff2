"""The kernel's overhead: a call through client, kernel and service and back, compared with the MCP SDK's own server.

Linckia serves `mcp.echo` in a separate process behind the kernel; the peer, the SDK's high-level server, serves an echo
tool in its own process. All four servers run at once and are measured in turn, in rounds, by the same raw clients.

    scripts/bench call [--rounds N]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.parts.wire import Caller, Http, Stdio
from tests.system.running import HTTP, free_port, running

IN_FLIGHT = 8
ONE_BY_ONE_CALLS = 300
IN_FLIGHT_CALLS = 600
SETTLED_S = 8


@contextlib.contextmanager
def peer_http() -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.parts.peer", "http", str(port)])
    try:
        give_up = time.monotonic() + 30
        while True:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            if time.monotonic() > give_up:
                raise TimeoutError("the peer does not listen")
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench call", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds over all four servers (default: 5)")
    rounds = parser.parse_args().rounds
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # Services and standbys that are still starting would compete for the processors.
        kernel = stack.enter_context(running(folder, options=HTTP))
        while (url := kernel.status()["http_url"]) is None:
            time.sleep(0.05)
        time.sleep(SETTLED_S)
        port = int(url.rsplit(":", 1)[1].split("/")[0])
        joiner = [sys.executable, "-P", "-m", "kernel.cli", "stdio", "--data", str(folder)]
        callers: dict[tuple[str, str], Caller] = {
            ("stdio", "peer"): Stdio([sys.executable, "-m", "tests.bench.parts.peer", "stdio"]),
            ("stdio", "Linckia"): Stdio(joiner),
            ("HTTP", "peer"): Http(stack.enter_context(peer_http())),
            ("HTTP", "Linckia"): Http(port),
        }
        taken: dict[tuple[str, str], list[float]] = {key: [] for key in callers}
        rates: dict[tuple[str, str], list[float]] = {key: [] for key in callers}
        own_us: list[float] = []
        for caller in callers.values():
            caller.one_by_one(50)
        for _ in range(rounds):
            for key, caller in callers.items():
                taken[key] += caller.one_by_one(ONE_BY_ONE_CALLS)
                before = processor_s(kernel.process.pid)
                rates[key].append(caller.in_flight(IN_FLIGHT_CALLS, IN_FLIGHT))
                if key[1] == "Linckia":
                    own_us.append((processor_s(kernel.process.pid) - before) / IN_FLIGHT_CALLS * 1e6)
        for caller in callers.values():
            caller.close()
    report(taken, rates, rounds)
    print(f"processor time of the kernel's own process: {statistics.median(own_us):.0f} µs a call")


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(taken: dict[tuple[str, str], list[float]], rates: dict[tuple[str, str], list[float]], rounds: int) -> None:
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {rounds} rounds, servers measured in turn")
    print("peer: MCPServer of the mcp package, echo tool in the same process (HTTP under uvicorn)\n")
    print(f"{'':12}{'p50 ms':>10}{'p99 ms':>10}{f'calls/s at {IN_FLIGHT}':>16}")
    for transport in ("stdio", "HTTP"):
        p50, rate = {}, {}
        for server in ("peer", "Linckia"):
            times = sorted(taken[transport, server])
            p50[server] = statistics.median(times) * 1e3
            rate[server] = statistics.median(rates[transport, server])
            p99 = times[int(len(times) * 0.99)] * 1e3
            print(f"{transport:6}{server:8}{p50[server]:8.2f}{p99:10.2f}{rate[server]:16.0f}")
        slower, faster = p50["Linckia"] / p50["peer"], rate["Linckia"] / rate["peer"]
        print(f"{transport:6}{'ratio':8}{slower:8.2f}{'':10}{faster:16.2f}\n")


if __name__ == "__main__":
    main()
