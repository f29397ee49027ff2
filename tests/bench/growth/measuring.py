"""Costs of a running kernel: processor time, memory, bytes on disk, and the time of calls."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from proto.control.client import CallFailed, Client, ControlError
from tests.bench.regress.kernels import proportional_mb, settle
from tests.system.running import RunningKernel, polls, running

CALLS = 50
WARM = 5
START_LIMIT_S = 300.0
SETTLE_LIMIT_S = 300.0
QUIET_WINDOWS = 6
"""A feed may wait for a second before it goes on."""
SILENT_S = 600.0
ENVIRONMENT = {"LINCKIA_SERVICES__RETRIEVE__RERANK": "off"}
"""Reranking costs the same whatever is stored."""

Figures = dict[str, float]
"""Costs by their names, which end with the unit."""


def processor_ns(pid: int) -> dict[int, int]:
    """Return the nanoseconds of a processor that each process of a tree has used."""
    used: dict[int, int] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with contextlib.suppress(OSError):
                tasks = Path(f"/proc/{process.pid}/task").iterdir()
                used[process.pid] = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    return used


def since(before: dict[int, int], pid: int) -> float:
    """Return the seconds of a processor that a tree has used since `before`; threads that ended do not count."""
    now = processor_ns(pid)
    return sum(max(0, used - before.get(each, 0)) for each, used in now.items()) / 1e9


def calls(kernel: RunningKernel, one: Callable[[int], object], name: str, first: int = 0) -> Figures:
    """Make calls one after the other, and return the time of one, with the processor time until all is at rest again.

    Args:
        one: makes the call with a number.
        name: of the figures.
        first: the number of the first call.
    """
    pid = kernel.process.pid
    for number in range(first, first + WARM):
        one(number)
    settle(pid, timeout_s=SETTLE_LIMIT_S, windows=QUIET_WINDOWS)
    before = processor_ns(pid)
    taken = []
    for number in range(first + WARM, first + WARM + CALLS):
        began = time.perf_counter()
        one(number)
        taken.append(time.perf_counter() - began)
    settle(pid, timeout_s=SETTLE_LIMIT_S, windows=QUIET_WINDOWS)
    return {f"{name} p50 ms": statistics.median(taken) * 1e3, f"{name} CPU ms": since(before, pid) / CALLS * 1e3}


def disk_mb(folder: Path) -> float:
    """Return the megabytes that the file system allocates to the files below a folder."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()) / 1e6


def memory_mb(kernel: RunningKernel, services: Iterable[str]) -> float:
    """Return the memory of services in MiB, in which shared pages count for their share (PSS)."""
    return sum(proportional_mb(kernel.service(name)["pid"] or 0) for name in services)


@contextlib.contextmanager
def started(
    data: Path, roots: list[Path], services: list[str], whole: Callable[[Client], bool], *, http: bool = False
) -> Iterator[tuple[RunningKernel, Figures]]:
    """Start a kernel; yield it at rest, with the time until the first complete answer."""
    options = ("--http", "127.0.0.1:0") if http else ("--no-http",)
    began = time.perf_counter()
    with running(data, roots, services=services, all_ready=False, options=options, environment=ENVIRONMENT) as kernel:
        for _ in polls(START_LIMIT_S):
            with contextlib.suppress(CallFailed, ControlError), Client(data) as client:
                if whole(client):
                    break
        else:
            raise AssertionError(f"no complete answer in {START_LIMIT_S} s")
        wall, used = time.perf_counter() - began, since({}, kernel.process.pid)
        settle(kernel.process.pid, timeout_s=SETTLE_LIMIT_S)
        yield kernel, {"start s": wall, "start CPU s": used, "start, to rest CPU s": since({}, kernel.process.pid)}


def exponent(sizes: tuple[int, int], costs: tuple[float, float]) -> float:
    """Return the power of the size with which a cost grows from one size to another."""
    return math.log(costs[1] / costs[0]) / math.log(sizes[1] / sizes[0]) if min(costs) > 0 else math.nan


def ask(client: Client, name: str, /, **params: Any) -> Any:
    """Call an operation."""
    return client.call_named(name, params, timeout_s=SILENT_S)
