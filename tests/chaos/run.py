"""One run: the system, the clients and their load, the storm, and the final comparison."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from tests.chaos import damage
from tests.chaos.backups import Backups
from tests.chaos.clients import Client, HttpClient, StdioClient
from tests.chaos.clock import Clock
from tests.chaos.comparison import compare, compare_turns
from tests.chaos.faults import Kind
from tests.chaos.load import MOUNTED, Worker, make_folder
from tests.chaos.record import Record
from tests.chaos.storm import Storm
from tests.chaos.system import System
from tests.system.mounts.mounting import small, write
from tests.system.running import free_port

STDIO_CLIENTS, HTTP_CLIENTS, WORKERS_EACH = 3, 2, 2
QUIET_S = 120.0
"""Time for the system to recover completely after the storm."""

FOR_ORPHANS_S = 1.0


@dataclass
class Load:
    """The clients of a run and their tasks."""

    stdio: list[StdioClient]
    http: list[HttpClient]
    workers: list[Worker]

    @classmethod
    async def start(cls, nursery: trio.Nursery, system: System, record: Record, chance: random.Random) -> Load:
        stdio = [
            await StdioClient.start(nursery, f"stdio-{n}", system.data, [system.root], system.environment)
            for n in range(STDIO_CLIENTS)
        ]
        http = [HttpClient(f"http-{n}", f"http://127.0.0.1:{system.port}/mcp", None) for n in range(HTTP_CLIENTS)]
        clients: Sequence[Client] = [*stdio, *http]
        seeds = [random.Random(chance.random()) for _ in range(len(clients) * WORKERS_EACH)]
        workers = [
            Worker(which, clients[which // WORKERS_EACH], system.root, record, seed) for which, seed in enumerate(seeds)
        ]
        return cls(stdio, http, workers)

    async def leave(self, record: Record) -> str:
        """Disconnect all clients. Returns a summary."""
        for client in self.stdio:
            record.wrong += client.unexpected
            if await client.leave() != 0:
                record.wrong.append(f"{client.name} did not end in order")
        for session in self.http:
            await session.leave()
        opened, broken = [each.sessions for each in self.http], [each.broken for each in self.http]
        return f"HTTP sessions opened: {opened}, connections broken under a call: {broken}"


def make_system(folder: Path) -> System:
    """Create the system without starting it; its clock can jump if there is a C compiler."""
    data, root = folder / "data", folder / "root"
    root.mkdir(parents=True)
    make_folder(root, (STDIO_CLIENTS + HTTP_CLIENTS) * WORKERS_EACH)
    data.mkdir(mode=0o700)
    write(data, {MOUNTED: small(start="eager")})
    clock = None
    if shutil.which("cc"):
        (folder / "clock").mkdir()
        clock = Clock(folder / "clock")
    return System(data, root, free_port(), clock=clock)


async def storm(
    folder: Path, kinds: Iterable[Kind], chance: random.Random, *, seconds: float, every_s: float
) -> tuple[Record, list[str]]:
    """Run a storm. Returns the record, and additional lines for the report."""
    system = make_system(folder)
    further: list[str] = []
    workers: list[Worker] = []
    system.start()
    try:
        assert await system.wait_ready(within_s=QUIET_S) is not None, "the system did not start"
        before = system.measures()
        record = Record()
        backups = Backups(system, record)
        stop, ended = trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:
            load = await Load.start(nursery, system, record, chance)
            workers = load.workers
            nursery.start_soon(system.keep, ended)
            async with trio.open_nursery() as working:
                for worker in workers:
                    working.start_soon(worker.run, stop)
                working.start_soon(Storm(system, record, chance).run, stop, kinds, every_s)
                working.start_soon(backups.run)
                await trio.sleep(seconds)
                stop.set()
                backups.stop.cancel()
            record.lasted_s = record.at_s
            whole = await system.wait_ready(within_s=QUIET_S)
            further.append("whole again: never" if whole is None else f"whole again {whole:.1f} s after the last call")
            indexed = await system.indexed(within_s=QUIET_S)
            further.append("indexed: never" if indexed is None else f"indexed {indexed:.1f} s after that")
            kept = await trio.to_thread.run_sync(system.kept)
            for worker in workers:
                await compare(worker, load.http[0], kept)
            further.append(f"compared within {record.at_s - record.lasted_s:.1f} s")
            further += [f"before: {before}", f"after: {system.measures()}, {system.starts - 1} kernels later"]
            further.append(await load.leave(record))
            ended.set()
            nursery.cancel_scope.cancel()
    finally:
        code = await system.end()
    further.append(f"the kernel ended with exit code {code}")
    compare_turns(system.data, workers, record)
    await trio.sleep(FOR_ORPHANS_S)
    record.orphans += system.orphans()
    further += await _elsewhere(system, backups, workers, record, chance)
    return record, further


async def _elsewhere(
    system: System, backups: Backups, workers: list[Worker], record: Record, chance: random.Random
) -> list[str]:
    """Restore the last backup into another data directory and damage it; without a backup, use the data itself."""
    if system.clock is not None:
        system.clock.jump_to(0)
    told = [f"backup refused: {text}" for text in backups.refused[:3]]
    restored = system.data.parent / "restored"
    has = await trio.to_thread.run_sync(backups.restore, restored)
    other = System(restored if has else system.data, system.root, system.port)
    other.start()
    try:
        if await other.wait_ready(within_s=QUIET_S) is None:
            record.wrong.append("the restored system does not become ready")
        documents = {sha: text for worker in workers for sha, text in worker.documents.items()}
        if has:
            said, there = await trio.to_thread.run_sync(backups.compare, restored, workers)
            told.append(said)
            documents = {sha: text for sha, text in documents.items() if sha in there}
        told += await damage.sources(other, documents, record, chance)
    finally:
        await other.end()
    return told


def keep_logs(folder: Path, to: Path | None) -> None:
    """Copy the logs of the kernel and the services."""
    if to is not None:
        with contextlib.suppress(shutil.Error):
            shutil.copytree(folder / "data" / "logs", to, dirs_exist_ok=True)
