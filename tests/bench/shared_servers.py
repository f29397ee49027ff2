"""How many processes and how much memory ten clients need for ten MCP servers: shared through Linckia, or their own.

All clients call all servers. Linckia runs each server once; the peer is a client that starts its servers itself, as
clients do, so that there are a hundred. Memory is the proportional set size (PSS).

    scripts/bench shared_servers [--clients N] [--programs DIR]

DIR has `server-everything` and `server-memory` in `npm/node_modules`.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import trio

from services.mounts.torture.client import Client
from tests.chaos.clients import StdioClient
from tests.chaos.mounted.servers import RUN, Server, call, direct, real
from tests.chaos.mounted.trees import processes
from tests.system.mounts.mounting import mounted
from tests.system.running import RunningKernel

SERVICES = ("mounts", "yaml")
SERVERS = 10
LISTED_S = 120.0


class Use(NamedTuple):
    """The processes and the memory of the servers of all clients."""

    trees: int
    processes: int
    memory_bytes: int
    further_bytes: int
    """Memory of everything else: the kernel with its services, and the clients' `linckia stdio`."""
    took_s: float
    """Time until every client has called every server."""


def pss(pids: Sequence[int]) -> int:
    """Return the memory of these processes; shared pages count in parts."""
    found = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        found += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return found


def shared(folder: Path, servers: Sequence[Server], clients: int) -> Use:
    """Measure clients that share one kernel."""
    run = folder.name
    tables = {server.name: server.table(run) for server in servers}
    with mounted(folder / "data", tables, services=SERVICES) as kernel:
        return trio.run(_call_all, kernel, run, servers, clients)


async def _call_all(kernel: RunningKernel, run: str, servers: Sequence[Server], count: int) -> Use:
    began = time.monotonic()
    async with trio.open_nursery() as nursery:
        clients = [
            await StdioClient.start(nursery, f"stdio{n}", kernel.data_dir, [], os.environ, "--surface", "all")
            for n in range(count)
        ]
        async with trio.open_nursery() as calling:
            for client in clients:
                for server in servers:
                    calling.start_soon(_call, client, server)
        took_s = time.monotonic() - began
        mine = processes(run)
        pids = {each.pid for each in mine}
        below = {each.pid for each in psutil.Process(kernel.process.pid).children(recursive=True)}
        rest = {kernel.process.pid, *below, *(client.pid for client in clients)} - pids
        use = Use(sum(each.is_guardian for each in mine), len(mine), pss(list(pids)), pss(list(rest)), took_s)
        for client in clients:
            assert await client.leave() == 0
        nursery.cancel_scope.cancel()
    return use


async def _call(client: StdioClient, server: Server) -> None:
    probe = server.calls[0]
    with trio.fail_after(LISTED_S):
        while True:
            said = await client.call(f"{server.name}_{probe.tool}", probe.arguments(client.name))
            if said.ok:
                break
            # Its tools are not known before it has started once.
            await trio.sleep(0.1)
    assert probe.expected(client.name) in str(said.result), said


def own(folder: Path, servers: Sequence[Server], clients: int) -> Use:
    """Measure clients that start every server themselves."""
    return trio.run(_own, folder, servers, clients)


async def _own(folder: Path, servers: Sequence[Server], clients: int) -> Use:
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        started: list[Client] = []
        for n in range(clients):
            for server in servers:
                run = {RUN: f"{folder.name}.{server.name}"}
                started.append(await stack.enter_async_context(direct(server, run)))
            for client, server in zip(started[-len(servers) :], servers, strict=True):
                await call(client, server, f"client{n}")
        took_s = time.monotonic() - began
        pids = [pid for client in started for pid in client.process.tree()]
        return Use(len(started), len(pids), pss(pids), 0, took_s)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="scripts/bench shared_servers")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--programs", type=Path, default=Path("/tmp/mcp-servers"))
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} processors; {arguments.clients} clients, {SERVERS} servers")
    print("                 trees  processes  servers MiB  further MiB  seconds")
    for what, measure in (("Linckia", shared), ("their own", own)):
        with tempfile.TemporaryDirectory(prefix="linckia-shared-") as made:
            use = partial(measure, Path(made))(real(Path(made), arguments.programs, SERVERS), arguments.clients)
        print(
            f"{what:16} {use.trees:5} {use.processes:10} {use.memory_bytes >> 20:12}"
            f" {use.further_bytes >> 20:12} {use.took_s:8.1f}"
        )


if __name__ == "__main__":
    main()
