"""A storm of faults over the whole system under a mixed load, and what became of it.

    scripts/chaos [--seconds N] [--seed N] [--every SECONDS] [--only KIND] [--logs DIR]

Exit code 1 where a write was lost, an answer was wrong or never came, or a process was orphaned.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

import trio

from tests.chaos import faults
from tests.chaos.clients import Client, HttpClient, StdioClient
from tests.chaos.faults import Storm
from tests.chaos.load import Worker, compare_turns, make_folder
from tests.chaos.record import Record, report
from tests.chaos.system import System, small_disk
from tests.system.ingesting import free_port

STDIO_CLIENTS, HTTP_CLIENTS, WORKERS_EACH = 3, 2, 2
QUIET_S = 120.0
"""For the system to be whole again when the storm is over."""


async def storm(folder: Path, arguments: argparse.Namespace, *, own_disk: bool) -> tuple[Record, list[str]]:
    """One run; the record, and what else there is to say."""
    data, root = folder / "data", folder / "root"
    root.mkdir(parents=True)
    make_folder(root, (STDIO_CLIENTS + HTTP_CLIENTS) * WORKERS_EACH)
    data.mkdir(mode=0o700)
    system = System(data, root, free_port())
    record, chance = Record(), random.Random(arguments.seed)
    further: list[str] = []
    system.start()
    try:
        assert await system.wait_ready(within_s=QUIET_S) is not None, "the system did not start"
        before = system.measures()
        record = Record()
        stop, ended = trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:
            stdio = [await StdioClient.start(nursery, f"stdio-{n}", data, [root]) for n in range(STDIO_CLIENTS)]
            http = [HttpClient(f"http-{n}", f"http://127.0.0.1:{system.port}/mcp", None) for n in range(HTTP_CLIENTS)]
            clients: list[Client] = [*stdio, *http]
            seeds = [random.Random(chance.random()) for _ in range(len(clients) * WORKERS_EACH)]
            workers = [
                Worker(which, clients[which // WORKERS_EACH], root, record, seed) for which, seed in enumerate(seeds)
            ]
            nursery.start_soon(system.keep, ended)
            async with trio.open_nursery() as load:
                for worker in workers:
                    load.start_soon(worker.run, stop)
                load.start_soon(Storm(system, record, chance, own_disk).run, stop, arguments.every)
                await trio.sleep(arguments.seconds)
                stop.set()
            whole = await system.wait_ready(within_s=QUIET_S)
            further.append("whole again: never" if whole is None else f"whole again {whole:.1f} s after the last call")
            for worker in workers:
                await worker.compare(stdio[0])
            further += [f"before: {before}", f"after: {system.measures()}, {system.starts - 1} kernels later"]
            for client in stdio:
                record.wrong += client.unexpected
                if await client.leave() != 0:
                    record.wrong.append(f"{client.name} did not end in order")
            further.append(
                f"HTTP sessions opened: {[session.sessions for session in http]}, connections broken under a call: "
                f"{[session.broken for session in http]}"
            )
            for session in http:
                await session.leave()
            ended.set()
            nursery.cancel_scope.cancel()
    finally:
        code = await system.end()
    further.append(f"the kernel ended with exit code {code}")
    compare_turns(data, workers, record)
    await trio.sleep(1)
    record.wrong += [f"orphan {orphan}" for orphan in system.orphans()]
    return record, further


def main() -> int:
    """Print the report; 1 where something was lost, wrong, hung or orphaned."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="which storm; drawn if not given")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two faults, on average (1)")
    parser.add_argument("--only", choices=[fault.kind for fault in faults.FAULTS], help="this kind of fault alone")
    parser.add_argument("--logs", type=Path, help="copy the logs of kernel and services to this folder at the end")
    arguments = parser.parse_args()
    if arguments.only:
        faults.FAULTS = tuple(fault for fault in faults.FAULTS if fault.kind == arguments.only)
    print(f"seed {arguments.seed}, {arguments.seconds:.0f} s", flush=True)
    with tempfile.TemporaryDirectory(prefix="linckia-chaos-") as made:
        folder = Path(made) / "disk"
        with small_disk(folder) as own_disk:
            try:
                record, further = trio.run(lambda: storm(folder, arguments, own_disk=own_disk))
            finally:
                if arguments.logs:
                    shutil.copytree(folder / "data" / "logs", arguments.logs, dirs_exist_ok=True)
    print(report(record, further))
    return 1 if record.lost or record.wrong or record.hung else 0


if __name__ == "__main__":
    sys.exit(main())
