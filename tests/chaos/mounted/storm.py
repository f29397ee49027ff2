"""One run: a kernel, its mounted servers, the clients and their load, the kills, and the comparison at the end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio

from tests.chaos.clients import Client, HttpClient, StdioClient
from tests.chaos.mounted.kills import Killer
from tests.chaos.mounted.load import Ledger, Outage, Worker, check
from tests.chaos.mounted.servers import Server, direct_start
from tests.chaos.mounted.trees import processes
from tests.system.mounts.mounting import mounted
from tests.system.running import RunningKernel, free_port

SERVICES = ("mounts", "yaml")
AFTER_END_S = 10.0
LISTED_S = 120.0


@dataclass
class Storm:
    """The parameters and the results of a run.

    Args:
        limit_s: the kills end after this time.
        measure_every: one direct start before so many kills of a server; 0: none.
    """

    folder: Path
    servers: Sequence[Server]
    kills: int
    chance: random.Random
    clients: int = 3
    http_clients: int = 1
    pause_s: float = 0.2
    limit_s: float = 600.0
    measure_every: int = 5
    told: Callable[[str], None] = lambda _: None
    ledger: Ledger = field(default_factory=Ledger)
    starts: dict[str, list[float]] = field(default_factory=dict)
    """Direct starts by server: seconds until the first answer."""
    wrong: list[str] = field(default_factory=list)
    took_s: float = 0.0

    def run(self) -> None:
        """Run everything; defects are in `wrong` afterwards."""
        name = f"{self.folder.name}-{self.chance.randrange(1_000_000_000)}"
        data, port = self.folder / "data", free_port()
        tables = {server.name: server.table(name) for server in self.servers}
        options = ("--http", f"127.0.0.1:{port}")
        with mounted(data, tables, services=SERVICES, options=options) as kernel:
            trio.run(self._run, kernel, name, f"http://127.0.0.1:{port}/mcp/all")
        ends_at = time.monotonic() + AFTER_END_S
        while (left := processes(name)) and time.monotonic() < ends_at:
            time.sleep(0.02)
        self.wrong += [f"{each.server}: process {each.pid} outlived the kernel: {each.command}" for each in left]
        self.wrong += check(self.ledger, self.servers) + self.ledger.left_over + self.ledger.unexpected
        self.wrong += [
            f"{each.server} was not back after {each.kind}" for each in self.ledger.outages if each.ended is None
        ]

    async def _run(self, kernel: RunningKernel, name: str, url: str) -> None:
        data = kernel.data_dir
        async with trio.open_nursery() as nursery:
            stdio = [
                await StdioClient.start(nursery, f"stdio{n}", data, [], {}, "--surface", "all")
                for n in range(self.clients)
            ]
            http = [HttpClient(f"http{n}", url, None) for n in range(self.http_clients)]
            clients: Sequence[Client] = [*stdio, *http]
            for client in clients:
                await self._listed(client)
            began = trio.current_time()
            stop = trio.Event()
            async with trio.open_nursery() as working:
                for client in clients:
                    for server in self.servers:
                        chance = random.Random(self.chance.random())
                        is_first = client is clients[0]
                        worker = Worker(client, server, chance, self.ledger, is_first, self.pause_s)
                        working.start_soon(worker.run, stop)
                await self._kill(Killer(name, data, self.chance, self.ledger))
                stop.set()
            self.took_s = trio.current_time() - began
            for each in stdio:
                self.ledger.unexpected += each.unexpected
                if await each.leave() != 0:
                    self.ledger.unexpected.append(f"{each.name} did not end in order")
            for session in http:
                await session.leave()
            nursery.cancel_scope.cancel()

    async def _listed(self, client: Client) -> None:
        """Wait until a client can call the first tool of every server."""
        for server in self.servers:
            probe = server.calls[0]
            with trio.fail_after(LISTED_S):
                while True:
                    if (await client.call(f"{server.name}_{probe.tool}", probe.arguments("listed"))).ok:
                        break
                    await trio.sleep(0.1)

    async def _kill(self, killer: Killer) -> None:
        ends_at = trio.current_time() + self.limit_s
        for number in range(self.kills):
            if trio.current_time() > ends_at:
                return
            server = self.servers[number % len(self.servers)]
            if self.measure_every and number // len(self.servers) % self.measure_every == 0:
                took = await direct_start(server)
                self.starts.setdefault(server.name, []).append(took)
            if (outage := await killer.kill(server)) is not None:
                self.told(f"{number + 1}: {_line(outage)}")
            await trio.sleep(self.chance.uniform(0, self.pause_s))


def _line(outage: Outage) -> str:
    back = "never" if outage.lasted_s is None else f"{outage.lasted_s:.2f} s"
    return f"{outage.kind} of {outage.server}: back {back}"
