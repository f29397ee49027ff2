"""A mounted server compared with the same one behind other gateways: the cost of a call, and what its failures cost.

    scripts/bench mounts [cost | faults]

Without an argument, both. The server is small, and its tool `echo` costs almost nothing. The peers get environments of
their own, in the user's cache folder; `--fastmcp` and `--mcp-proxy` name the interpreters of existing ones.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.mounts import _faults
from tests.bench.mounts._gateways import Gateway, direct, fastmcp, linckia, mcp_proxy, server_command
from tests.bench.parts.peer_venv import environment
from tests.bench.parts.wire import Caller, Http, Stdio

PACKAGES = {"fastmcp": ["fastmcp==4.2.3"], "mcp-proxy": ["mcp-proxy==0.13.0", "mcp<2"]}

WARM_CALLS, ONE_BY_ONE_CALLS, IN_FLIGHT_CALLS = 50, 200, 400
WIDTHS = (8, 64)
SETTLED_S = 8

DIRECT = "direct, stdio"
LINCKIA = "Linckia"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench mounts", description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("cost", "faults"), help="default: both")
    parser.add_argument("--rounds", type=int, default=5, help="rounds over all connections (default: 5)")
    parser.add_argument("--only", help="faults whose name contains this")
    for name in PACKAGES:
        parser.add_argument(f"--{name}", type=Path, metavar="PYTHON", help=f"interpreter that has {name}")
    given = parser.parse_args()
    pythons = {name: getattr(given, name.replace("-", "_")) or environment(name, PACKAGES[name]) for name in PACKAGES}
    gateways = {"FastMCP": fastmcp(pythons["fastmcp"]), "mcp-proxy": mcp_proxy(pythons["mcp-proxy"])}
    print(f"{_processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; Python {platform.python_version()}")
    print("; ".join(f"{name} {_version(python, name)}" for name, python in pythons.items()) + "\n", flush=True)
    if given.what != "faults":
        # Linckia as users have it, with all its services.
        cost({LINCKIA: linckia(()), **gateways}, given.rounds)
    if given.what != "cost":
        faults({"direct": direct, LINCKIA: linckia(("mounts", "yaml")), **gateways}, given.only or "")
    print(f"load at the end: {os.getloadavg()[0]:.1f}")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def _version(python: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def cost(gateways: Mapping[str, Gateway], rounds: int) -> None:
    """Print the cost of a call, directly and through each gateway; all run at once and are measured in turn."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        callers: dict[str, Caller] = {DIRECT: Stdio(server_command(folder / "direct"), "echo")}
        for name, gateway in gateways.items():
            (folder / name).mkdir()
            served = stack.enter_context(gateway(server_command(folder / f"{name} server"), folder / name))
            if served.stdio:
                callers[f"{name}, stdio"] = Stdio(served.stdio, "echo")
            headers = "".join(f"{key}: {value}\r\n" for key, value in served.headers.items()).encode()
            callers[f"{name}, HTTP"] = Http(served.port, path=served.path, tool="echo", headers=headers)
        # Linckia's services that are still starting would compete for the processors.
        time.sleep(SETTLED_S)
        taken: dict[str, list[float]] = {name: [] for name in callers}
        rates: dict[tuple[str, int], list[float]] = {(name, width): [] for name in callers for width in WIDTHS}
        for caller in callers.values():
            caller.one_by_one(WARM_CALLS)
        for _ in range(rounds):
            for name, caller in callers.items():
                taken[name] += caller.one_by_one(ONE_BY_ONE_CALLS)
                for width in WIDTHS:
                    rates[name, width].append(caller.in_flight(IN_FLIGHT_CALLS, width))
        for caller in callers.values():
            caller.close()
    print(f"| connection | p50 ms | more than direct | p99 ms | calls/s at 1 | {' | '.join(map(str, WIDTHS))} |")
    print("|---|" + "---:|" * (4 + len(WIDTHS)))
    base = statistics.median(taken[DIRECT])
    for name, times in taken.items():
        p50, p99 = statistics.median(times), sorted(times)[int(len(times) * 0.99)]
        several = " | ".join(f"{statistics.median(rates[name, width]):,.0f}" for width in WIDTHS)
        print(
            f"| {name} | {p50 * 1e3:.2f} | {(p50 - base) * 1e3:.2f} | {p99 * 1e3:.2f}"
            f" | {len(times) / sum(times):,.0f} | {several} |"
        )
    print()
    for transport in ("stdio", "HTTP"):
        own = f"{LINCKIA}, {transport}"
        for name in callers:
            if name.endswith(transport) and name not in (own, DIRECT):
                times_ratio = statistics.median(taken[own]) / statistics.median(taken[name])
                widest = WIDTHS[-1]
                rate_ratio = statistics.median(rates[own, widest]) / statistics.median(rates[name, widest])
                print(f"{own} / {name}: p50 {times_ratio:.2f}, calls/s at {widest} {rate_ratio:.2f}")
    print(flush=True)


def faults(gateways: Mapping[str, Gateway], only: str) -> None:
    """Print how each fault looks to clients."""
    print(f"| the server … | {' | '.join(gateways)} |")
    print("|---|" + "---|" * len(gateways))
    for fault in _faults.FAULTS:
        if only in fault.name:
            _row(fault.name, [_faults.seen(gateway, fault).cell() for gateway in gateways.values()])
    name = "hangs while the gateway is killed"
    if only in name:
        several = [gateway for name, gateway in gateways.items() if gateway is not direct]
        _row(name, ["-", *(_faults.killed_gateway(gateway).cell() for gateway in several)])
    print(flush=True)


def _row(name: str, cells: Sequence[str]) -> None:
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
