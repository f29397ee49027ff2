"""How soon a change on the disk is in the index of files, and whether all of a storm is.

    scripts/bench watch_index [--files 200] [--storm 50000] [--folder DIR]

Calm: single files are written beside a live source, and the index is asked until it has them; the peers, `watchdog`
and `watchfiles` on the same folder in processes of their own, only have to print the path. Storm: files and folders
made, renamed, edited and deleted as fast as one process can while the services `files` and `watch` are killed at
random; then the time until the index is what is on disk, every size and sum of it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kernel.control.client import Client, ControlError
from proto.errors import LinckiaError
from tests.bench import _watch_peer
from tests.system.running import REPOSITORY, RunningKernel, running
from tests.unit.files.rig import differences

PATIENCE_S = 120.0
PEERS = ("watchdog", "watchfiles")


def until(check: Callable[[], bool], pause_s: float) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > give_up:
            raise AssertionError("it did not come about")
        time.sleep(pause_s)


def live(kernel: RunningKernel, name: str, root: Path) -> None:
    """A source that has taken the state of its folder."""
    kernel.call("source-create", {"name": name, "type": "live", "path": str(root), "debounce_ms": 0})
    until(lambda: kernel.call("source-get", {"name": name})["status"] == "running", 0.01)


def calm(kernel: RunningKernel, root: Path, files: int) -> list[float]:
    """Seconds from the return of a write to the index's answer that has it."""
    latencies = []
    with Client(kernel.data_dir) as client:
        for n in range(files):
            time.sleep(0.05)
            path = root / f"calm{n}"
            path.write_text("x" * n)
            began = time.perf_counter()

            def there(path: Path = path, size: int = n) -> bool:
                found = client.call("navigate", {"path": str(root), "sort": "mtime", "desc": True, "limit": 1})
                return any((e["path"], e["size"]) == (str(path), size) for e in found["entries"])

            until(there, 0)
            latencies.append(time.perf_counter() - began)
    return latencies


def peer(name: str, root: Path, files: int) -> list[float]:
    """The same of a watcher that keeps no index."""
    latencies = []
    with _watch_peer.Peer(name, root) as told:
        for n in range(files):
            time.sleep(0.05)
            path = root / f"peer{n}"
            path.write_text("x")
            began = time.perf_counter()
            if not told.until_told(str(path), PATIENCE_S):
                raise AssertionError(f"{name} did not tell of {path}")
            latencies.append(time.perf_counter() - began)
    return latencies


def storm(kernel: RunningKernel, root: Path, outside: Path, steps: int) -> None:
    chance = random.Random(7)
    live(kernel, "storm", root)
    command = [sys.executable, "-m", "tests.unit.watch.storm", str(root), str(outside), "3", str(steps)]
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=REPOSITORY)
    kills = {"files": 0, "watch": 0}
    while process.poll() is None:
        time.sleep(chance.uniform(0.2, 1.0))
        name = chance.choice(sorted(kills))
        with contextlib.suppress(ProcessLookupError, TypeError, ControlError, LinckiaError):
            # Between two generations there is no process.
            kernel.kill(name)
            kills[name] += 1
    quiet = time.perf_counter()
    data = kernel.data_dir / "services"
    until(lambda: not differences(data, root), 0.05)
    settled = time.perf_counter()
    entries = sum(len(folders) + len(names) for _, folders, names in os.walk(root))
    print(
        f"storm of {steps} changes in {quiet - began:.1f} s, kills {kills}: the index is the disk's"
        f" ({entries} entries) {settled - quiet:.2f} s after quiet"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--storm", type=int, default=50_000)
    parser.add_argument("--folder", type=Path, help="where the folders are made (default: a temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name).resolve()
        for each in ("root/calm", "root/storm", "outside"):
            (folder / each).mkdir(parents=True)
        with running(folder / "data", [folder / "root"]) as kernel:
            if arguments.files:
                live(kernel, "calm", folder / "root/calm")
                rows = {"linckia (indexed)": calm(kernel, folder / "root/calm", arguments.files)}
                kernel.call("source-stop", {"name": "calm"})
                for other in PEERS:
                    if importlib.util.find_spec(other):
                        rows[f"{other} (told)"] = peer(other, folder / "root/calm", arguments.files)
                    else:
                        print(f"{other} is not installed (pip install {other}) and was left out")
                for title, latencies in rows.items():
                    cuts = statistics.quantiles(latencies, n=100)
                    print(f"{title:<20} p50 {cuts[49] * 1000:8.1f} ms   p99 {cuts[98] * 1000:8.1f} ms")
                ours, *theirs = (statistics.median(latencies) for latencies in rows.values())
                if theirs:
                    print(f"ratio of the medians to the best of the others {ours / min(theirs):.2f}")
            if arguments.storm:
                storm(kernel, folder / "root/storm", folder / "outside", arguments.storm)


if __name__ == "__main__":
    main()
