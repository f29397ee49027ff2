"""What a kernel at rest costs: processor, wake-ups and memory of each process, with nobody connected.

    scripts/bench rest [--after S …] [--over S] [--notes N] [--soon] [--json]

It starts a kernel of its own with default settings on a folder of generated notes, waits until they
are indexed, and then leaves it alone. The processor share and the wake-ups are counted from /proc over a window after
each time; a wake-up is a voluntary context switch of any thread. The peer, in the same windows, is one asyncio server
of this Python that listens on a Unix socket, with a timer of a second: what one simple daemon costs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from kernel.supervisor import processes
from proto.control.client import Client
from proto.control.terminal import complain, show_json, show_table, size
from tests.bench.installation import SOON, kernel, processor, until_indexed, words_of, write_notes

NOTES = 300
AFTER_S = (60.0, 240.0)
OVER_S = 30.0
"""Length of the window over which is counted."""

TICKS = os.sysconf("SC_CLK_TCK")

_PEER = """
import asyncio, sys

async def main():
    await asyncio.start_unix_server(lambda reader, writer: None, sys.argv[1])
    while True:
        await asyncio.sleep(1)

asyncio.run(main())
"""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a process, or all together, took in a window."""

    name: str
    core_percent: float
    wakeups_s: float
    threads: int
    memory_bytes: int
    """PSS at the end of the window."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The costs `after_s` after the notes were indexed, the costliest process first."""

    after_s: float
    total: Cost
    peer: Cost
    processes: list[Cost]


class _Counts(msgspec.Struct, frozen=True):
    ticks: int
    """Of all threads, dead ones too."""
    wakeups: dict[str, int]
    """By thread."""


def main() -> None:
    """Measure and print the costs."""
    parser = argparse.ArgumentParser(prog="scripts/bench rest", description=__doc__)
    parser.add_argument("--after", type=float, nargs="+", default=list(AFTER_S), help="seconds until a window begins")
    parser.add_argument("--over", type=float, default=OVER_S, help=f"seconds of a window (default: {OVER_S:g})")
    parser.add_argument("--notes", type=int, default=NOTES, help=f"notes to index (default: {NOTES})")
    parser.add_argument("--soon", action="store_true", help="let services rest and models unload after 3 s, not 300")
    parser.add_argument("--json", action="store_true", help="as JSON")
    arguments = parser.parse_args()
    if arguments.notes < 1 or arguments.over <= 0:
        parser.error("--notes and --over must be positive")

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    # As with Ctrl-C, the kernel is stopped and the folder removed.
    signal.signal(signal.SIGTERM, end)
    with tempfile.TemporaryDirectory(prefix="linckia-bench-", ignore_cleanup_errors=True) as folder:
        found = measured(
            Path(folder).resolve(),
            arguments.notes,
            sorted(arguments.after),
            arguments.over,
            SOON if arguments.soon else {},
        )
    if arguments.json:
        show_json(msgspec.to_builtins(found))
        return
    complain(f"{processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {arguments.notes} notes")
    for window in found:
        print(f"\n{arguments.over:g} s from {window.after_s:g} s after the index was complete")
        total = msgspec.structs.replace(window.total, name="all")
        each = [total, *window.processes, msgspec.structs.replace(window.peer, name="peer")]
        show_table(("PROCESS", "CORE", "WAKE-UPS/S", "THREADS", "PSS"), [_row(cost) for cost in each])


def _row(cost: Cost) -> list[str]:
    share, wakeups = f"{cost.core_percent:.2f} %", f"{cost.wakeups_s:.1f}"
    return [cost.name, share, wakeups, str(cost.threads), size(cost.memory_bytes)]


def measured(
    folder: Path, notes: int, after_s: list[float], over_s: float, settings: Mapping[str, str]
) -> list[Window]:
    """Measure a kernel of its own in `folder`. Raises Failed, ControlError, OSError."""
    choice = random.Random(1)
    vault, data = folder / "notes", folder / "data"
    write_notes(vault, notes, words_of(choice), choice)
    windows = []
    began = time.monotonic()
    with (
        kernel(data, vault, settings=settings, http=("--http", "127.0.0.1:0")) as status,
        _peer(folder / "peer") as peer_pid,
    ):
        until_indexed(status, began, notes)
        with Client(data) as client:
            kernel_pid = int(client.call_named("kernel_status", {}, timeout_s=30)["pid"])
        indexed = time.monotonic()
        for begin in after_s:
            time.sleep(max(0.0, indexed + begin - time.monotonic()))
            windows.append(_window(kernel_pid, peer_pid, begin, over_s))
    return windows


def _window(kernel_pid: int, peer_pid: int, after_s: float, over_s: float) -> Window:
    before = {pid: _counts(pid) for pid in [*processes.family(kernel_pid), peer_pid]}
    time.sleep(over_s)
    costs = {}
    # A process that ended meanwhile is left out.
    for pid in [*processes.family(kernel_pid), peer_pid]:
        now = _counts(pid)
        then = before.get(pid, _Counts(0, {}))
        costs[pid] = Cost(
            name=_name(pid),
            core_percent=100 * (now.ticks - then.ticks) / TICKS / over_s,
            wakeups_s=sum(count - then.wakeups.get(thread, 0) for thread, count in now.wakeups.items()) / over_s,
            threads=len(now.wakeups),
            memory_bytes=processes.proportional_bytes(pid) or 0,
        )
    peer = costs.pop(peer_pid)
    each = sorted(costs.values(), key=lambda cost: -cost.core_percent)
    total = Cost(
        name=f"{len(each)} processes",
        core_percent=sum(cost.core_percent for cost in each),
        wakeups_s=sum(cost.wakeups_s for cost in each),
        threads=sum(cost.threads for cost in each),
        memory_bytes=sum(cost.memory_bytes for cost in each),
    )
    return Window(after_s=after_s, total=total, peer=peer, processes=each)


def _counts(pid: int) -> _Counts:
    wakeups = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/task/{thread}/status").read_text()
                wakeups[thread] = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return _Counts(processes.progress_of(pid)[1], wakeups)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "ended"


@contextlib.contextmanager
def _peer(path: Path) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", _PEER, str(path)])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
