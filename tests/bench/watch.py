"""Lost changes and notification latency, compared with `watchfiles` and `watchdog` on the same folders in the same run.

    scripts/bench watch [--files 10000] [--storm 50000] [--entries 500000] [--folder DIR]

Burst: files are created in new nested folders as fast as one process can, and the paths that a reader receives are
counted. Stalled: the same while the reader's process is stopped. Latency: from the return of a single write until the
reader is notified. Storm: files and folders are created, renamed, edited and deleted while the service is killed at
random; measured is the time until its reader's state matches the disk. Size: the first scan of a large tree.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

from proto.ops.watch import WatchChanges, WatchStatus, WatchSubscribe
from tests.bench.parts import watch_peer as _watch_peer
from tests.system.files.watching import KernelCaller, caller
from tests.system.running import REPOSITORY, RunningKernel, running
from tests.unit.watch.rig import Mirror, settled

PEERS = ("watchfiles", "watchdog")
SINGLE = 100
PATIENCE_S = 3.0
"""How long a reader may continue to report after the last change."""


def burst(root: Path, files: int) -> set[str]:
    """Create the files, ten per folder, folders five deep. Returns their paths."""
    made = set()
    for n in range(files // 10):
        folder = f"{root}/{n % 7}/{n % 49}/{n % 343}/{n}/x"
        os.makedirs(folder)
        for m in range(10):
            path = f"{folder}/{m}"
            with open(path, "wb"):
                made.add(path)
    return made


class Ours:
    """The service of a running kernel, from a reader's point of view."""

    name = "linckia"

    def __init__(self, kernel: RunningKernel, root: Path) -> None:
        self._kernel = kernel
        self._root = root

    async def run(self, made: list[set[str]], stall: int, latencies: list[float]) -> set[str]:
        """Start, have `stall` files created (while stopped if negative), then single ones. Returns the reported
        paths."""
        told: set[str] = set()
        async with caller(self._kernel.data_dir) as reader:
            await reader.call(WatchSubscribe(name=self._root.name, paths=[str(self._root)]))
            mirror = Mirror(reader, self._kernel.data_dir / "services/watch/watch.db", self._root.name)
            await mirror.until_same(self._root)
            pid = self._kernel.service("watch")["pid"]
            if stall < 0:
                os.kill(pid, signal.SIGSTOP)
            made.append(await trio.to_thread.run_sync(burst, self._root, abs(stall)))
            if stall < 0:
                # In a long burst the service misses its pings and is replaced; the next one catches up.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            await settled(reader, 60)
            while await self._take(reader, mirror, told):
                pass
            if stall > 0:
                for n in range(SINGLE):
                    await trio.sleep(0.1)
                    began = time.perf_counter()
                    (self._root / f"single{n}").write_text("x")
                    while not await self._take(reader, mirror, told, wait_s=5):
                        pass
                    latencies.append(time.perf_counter() - began)
        return told

    async def _take(self, reader: KernelCaller, mirror: Mirror, told: set[str], wait_s: float = 0.0) -> bool:
        answer = await reader.call(WatchChanges(subscription=mirror.name, after=mirror.after, wait_s=wait_s))
        assert not answer.resync
        mirror.after = answer.sequence
        told.update(change.path for change in answer.changes)
        return bool(answer.changes)


def of_peer(name: str, root: Path, made: list[set[str]], stall: int, latencies: list[float]) -> set[str]:
    """Measure a library in the same way, in a separate process."""
    with _watch_peer.Peer(name, root) as peer:
        if stall < 0:
            peer.stop()
        made.append(burst(root, abs(stall)))
        if stall < 0:
            peer.go_on()
        told = peer.until_quiet(PATIENCE_S)
        if stall > 0:
            for n in range(SINGLE):
                time.sleep(0.1)
                path = root / f"single{n}"
                began = time.perf_counter()
                path.write_text("x")
                if peer.until_told(str(path), 5.0):
                    latencies.append(time.perf_counter() - began)
        return told


async def compare(kernel: RunningKernel, folder: Path, files: int) -> None:
    print(f"{'':<12}{'lost of burst':>16}{'lost, stalled':>16}{'p50 ms':>10}{'p95 ms':>10}")
    for name in ("linckia", *PEERS):
        lost: list[str] = []
        latencies: list[float] = []
        for stall in (files, -3 * files):
            root = folder / f"{name}{'-stalled' if stall < 0 else ''}"
            root.mkdir()
            made: list[set[str]] = []
            if name == "linckia":
                told = await Ours(kernel, root).run(made, stall, latencies)
            else:
                told = await trio.to_thread.run_sync(of_peer, name, root, made, stall, latencies)
            lost.append(f"{len(made[0] - told)} of {len(made[0])}")
        cuts = statistics.quantiles(latencies, n=20)
        print(f"{name:<12}{lost[0]:>16}{lost[1]:>16}{cuts[9] * 1000:>10.1f}{cuts[18] * 1000:>10.1f}", flush=True)


async def storm(kernel: RunningKernel, root: Path, outside: Path, steps: int) -> None:
    chance = random.Random(5)
    async with caller(kernel.data_dir) as reader:
        mirror = Mirror(reader, kernel.data_dir / "services/watch/watch.db", "storm")
        await reader.call(WatchSubscribe(name="storm", paths=[str(root)]))
        await mirror.until_same(root)
        command = [sys.executable, "-m", "tests.unit.watch.storm", str(root), str(outside), "1", str(steps)]
        began = time.perf_counter()
        process = await trio.lowlevel.open_process(command, cwd=REPOSITORY)
        kills = 0

        async def kill() -> None:
            nonlocal kills
            while process.poll() is None:
                await trio.sleep(chance.uniform(0.2, 1.5))
                if process.poll() is None:
                    await trio.to_thread.run_sync(kernel.kill, "watch")
                    kills += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            while process.poll() is None:
                await mirror.follow(wait_s=0.1)
        quiet = time.perf_counter()
        await mirror.until_same(root, within_s=60)
        print(
            f"storm of {steps} changes in {quiet - began:.1f} s, {kills} kills: identical "
            f"({len(mirror.entries)} entries) {time.perf_counter() - quiet:.2f} s after quiet"
        )


def fill(root: Path, entries: int) -> None:
    for n in range(entries // 100):
        folder = root / str(n % 100) / str(n)
        folder.mkdir(parents=True)
        for m in range(99):
            os.close(os.open(f"{folder}/{m}", os.O_CREAT | os.O_WRONLY))


def find(root: Path) -> float:
    """Return the seconds that `find` takes to print size, time and inode of everything."""
    began = time.perf_counter()
    subprocess.run(["find", str(root), "-printf", "%s %T@ %i\n"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


async def size(kernel: RunningKernel, root: Path) -> None:
    async with caller(kernel.data_dir) as reader:
        before = kernel.service("watch")["rss_bytes"]
        began = time.perf_counter()
        await reader.call(WatchSubscribe(name="size", paths=[str(root)]))
        answer = await reader.call(WatchChanges(subscription="size", wait_s=60))
        assert answer.resync
        first = time.perf_counter() - began
        after = kernel.service("watch")["rss_bytes"]
        pid = kernel.kill("watch")
        began = time.perf_counter()
        while kernel.service("watch")["pid"] in (pid, None):  # noqa: ASYNC110  another process's state has no event
            await trio.sleep(0.01)
        await settled(reader, 120)
        again = time.perf_counter() - began
        status = await reader.call(WatchStatus())
        peer = await trio.to_thread.run_sync(find, root)
        print(
            f"{status.subscriptions[-1].entries} entries, {status.watches} folders: first scan {first:.1f} s "
            f"({first / peer:.1f} times find -printf), after a kill {again:.1f} s; memory {before / 2**20:.0f} -> "
            f"{after / 2**20:.0f} MiB, database {status.size_bytes / 2**20:.0f} MiB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--storm", type=int, default=50_000)
    parser.add_argument("--entries", type=int, default=500_000)
    parser.add_argument("--folder", type=Path, help="where the folders are made (default: a temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name).resolve()
        (folder / "root").mkdir()
        with running(folder / "data", [folder / "root"]) as kernel:
            if arguments.files:
                trio.run(compare, kernel, folder / "root", arguments.files)
            if arguments.storm:
                (folder / "root/storm").mkdir()
                (folder / "outside").mkdir()
                trio.run(storm, kernel, folder / "root/storm", folder / "outside", arguments.storm)
            if arguments.entries:
                fill(folder / "root/size", arguments.entries)
                trio.run(size, kernel, folder / "root/size")


if __name__ == "__main__":
    main()
