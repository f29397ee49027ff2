"""Measures growth: the load without faults for a long time, and one service killed repeatedly."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import trio

from kernel.supervisor.processes import memory_bytes
from tests.chaos.comparison import compare
from tests.chaos.record import Record, quantile
from tests.chaos.run import QUIET_S, Load, make_system
from tests.chaos.system import System
from tests.system.running import Connection, connection

LOOKS = 100
"""Number of measurements during `restarts`."""

RESTARTED = "echo"


@dataclass
class Growth:
    """Measurements of each process, over hours or thousands of restarts."""

    system: System
    points: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    async def look(self, at: float) -> None:
        status = await self.system.status()
        assert status is not None, "the kernel does not answer"
        named = {status["pid"]: "kernel"}
        named |= {each["pid"]: f"zygote {each['name']}" for each in status["zygotes"]}
        named |= {each["pid"]: each["name"] for each in status["services"]}
        for pid, name in named.items():
            with contextlib.suppress(psutil.Error):
                if pid is None:
                    continue
                process = psutil.Process(pid)
                self.points[f"{name}: MiB"].append((at, (memory_bytes(pid) or 0) / 2**20))
                self.points[f"{name}: descriptors"].append((at, process.num_fds()))
                self.points[f"{name}: threads"].append((at, process.num_threads()))
        files = [path for path in self.system.data.rglob("*") if path.is_file()]
        self.points["data directory: files"].append((at, len(files)))
        self.points["data directory: MiB"].append((at, sum(map(_size, files)) / 2**20))

    def lines(self, unit: str) -> Iterator[str]:
        """Yield a line for each series that is complete: first, last and slope (least squares), also of the second
        half."""
        longest = max(map(len, self.points.values()), default=0)
        yield f"{'':<32} {'first':>9} {'last':>9} {f'per {unit}':>12} {'2nd half':>12}"
        for name, points in sorted(self.points.items()):
            if len(points) >= max(3, 0.9 * longest):
                half = slope(points[len(points) // 2 :])
                yield f"{name:<32} {points[0][1]:>9.2f} {points[-1][1]:>9.2f} {slope(points):>12.3f} {half:>12.3f}"


def _size(path: Path) -> int:
    """Return the size of a file; 0 if it has been removed since it was found, as files of an index are."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through the points."""
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0


async def soak(folder: Path, chance: random.Random, seconds: float, every_s: float) -> tuple[Record, list[str]]:
    """Run the load for this long. Returns the record, and the growth of all series."""
    system = make_system(folder)
    system.start()
    growth = Growth(system)
    try:
        assert await system.wait_ready(within_s=QUIET_S) is not None, "the system did not start"
        record = Record()
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            load = await Load.start(nursery, system, record, chance)
            async with trio.open_nursery() as working:
                for worker in load.workers:
                    working.start_soon(worker.run, stop)
                while record.at_s < seconds:
                    seen = len(record.took_s)
                    await trio.sleep(every_s)
                    at = record.at_s / 3600
                    await growth.look(at)
                    growth.points["calls: p99 ms"].append((at, quantile(record.took_s[seen:], 0.99) * 1000))
                stop.set()
            record.lasted_s = record.at_s
            kept = await trio.to_thread.run_sync(system.kept)
            for worker in load.workers:
                await compare(worker, load.stdio[0], kept)
            await load.leave(record)
            nursery.cancel_scope.cancel()
    finally:
        await system.end()
    return record, list(growth.lines("hour"))


async def restarts(folder: Path, count: int) -> str:
    """Kill `RESTARTED` this many times, each time after it answers again. Returns the growth of all series."""
    system = make_system(folder)
    system.start()
    growth = Growth(system)
    took: list[float] = []
    try:
        assert await system.wait_ready(within_s=QUIET_S) is not None, "the system did not start"
        async with connection(system.data) as line:
            pid = 0
            for n in range(count):
                if n % max(1, count // LOOKS) == 0:
                    await growth.look(n / 1000)
                pid = await _process(line, pid)
                killed = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                await _answered(line, n)
                took.append(time.monotonic() - killed)
        await growth.look(count / 1000)
    finally:
        await system.end()
    tenth = max(1, count // 10)
    p99 = [f"{quantile(part, 0.99):.4f} s" for part in (took, took[:tenth], took[-tenth:])]
    told = f"kill to answer p50 {quantile(took, 0.5):.4f} s, p99 {p99[0]} (first tenth {p99[1]}, last {p99[2]})"
    return "\n".join([f"{count} restarts of {RESTARTED}: {told}", *growth.lines("1000 restarts")])


async def _process(line: Connection, before: int) -> int:
    """Return the service's process, which differs from the one killed last."""
    while True:
        answer = await line.call("kernel_status", {})
        (service,) = (each for each in answer.result["services"] if each["name"] == RESTARTED)
        if service["state"] == "ready" and service["pid"] != before:
            return int(service["pid"])
        await line.call("mcp.echo", {"message": "wake"})


async def _answered(line: Connection, n: int) -> None:
    while (await line.call("mcp.echo", {"message": str(n)})).result != {"message": str(n)}:
        pass
