"""The faults: each is a coroutine, drawn by weight; a line in `FAULTS` adds one.

A fault returns its targets. `Storm` then waits until all of them answer again, and records how long that took.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import trio

from tests.chaos import damage, disk, floods, inject, limits
from tests.chaos.storm import KERNEL, Storm, send


async def _one(number: signal.Signals, storm: Storm) -> list[str]:
    """Signal a living service."""
    living = await storm.processes()
    name = storm.chance.choice(sorted(living)) if living else None
    if name is None:
        return []
    send(living[name], number)
    return [name]


async def _several(storm: Storm) -> list[str]:
    living = await storm.processes()
    struck = storm.chance.sample(sorted(living), min(len(living), 4))
    for name in struck:
        send(living[name], signal.SIGKILL)
    return struck


async def _in_start_up(storm: Storm) -> list[str]:
    """Kill a service, and its next generation as soon as it exists."""
    struck = await _one(signal.SIGKILL, storm)
    for name in struck:
        for _ in range(200):
            service = await storm.system.service(name)
            if service is not None and service["pid"]:
                send(service["pid"], signal.SIGKILL)
                break
            await trio.sleep(0.005)
    return struck


async def _helper(number: signal.Signals, storm: Storm) -> list[str]:
    """Signal a zygote or a standby, and kill a service that may need it."""
    services = set((await storm.processes()).values())
    others = [pid for pid in storm.system.children() if pid not in services]
    if others:
        send(storm.chance.choice(others), number)
    return await _one(signal.SIGKILL, storm)


async def _kernel(number: signal.Signals, storm: Storm, *, again_after_s: float | None = None) -> list[str]:
    """Signal the kernel, and optionally the next one after a delay."""
    for _ in range(1 if again_after_s is None else 2):
        kernel = storm.system.process
        if kernel is None or kernel.poll() is not None:
            return []
        storm.system.look()
        send(kernel.pid, number)
        await trio.to_thread.run_sync(kernel.wait)
        await trio.sleep(again_after_s or 0)
    return [KERNEL]


async def _pause_kernel(storm: Storm) -> list[str]:
    """Stop the kernel for a while, as a sleeping machine does."""
    kernel = storm.system.process
    if kernel is None or kernel.poll() is not None:
        return []
    send(kernel.pid, signal.SIGSTOP)
    await trio.sleep(storm.chance.uniform(0.5, 3))
    send(kernel.pid, signal.SIGCONT)
    storm.ended()
    return [KERNEL]


@dataclass(frozen=True)
class Kind:
    kind: str
    weight: float
    do: Callable[[Storm], Awaitable[list[str]]]
    """Applies the fault. Returns its targets; empty if there was no target."""
    own_disk: bool = False
    """True if the fault needs a file system of the run's own."""


FAULTS: tuple[Kind, ...] = (
    Kind("SIGKILL", 12, partial(_one, signal.SIGKILL)),
    Kind("SIGSTOP", 3, partial(_one, signal.SIGSTOP)),
    Kind("SIGTERM", 3, partial(_one, signal.SIGTERM)),
    Kind("four SIGKILLs at once", 3, _several),
    Kind("SIGKILL in start-up", 3, _in_start_up),
    Kind("SIGKILL of a helper", 2, partial(_helper, signal.SIGKILL)),
    Kind("SIGTERM of a helper", 1, partial(_helper, signal.SIGTERM)),
    Kind("SIGSTOP of a helper", 1, partial(_helper, signal.SIGSTOP)),
    Kind("SIGKILL of the kernel", 2, partial(_kernel, signal.SIGKILL)),
    Kind("two kernels killed", 1, partial(_kernel, signal.SIGKILL, again_after_s=0.8)),
    Kind("a kernel stands still", 1, _pause_kernel),
    Kind("full disk", 2, disk.full, own_disk=True),
    Kind("read-only disk", 0.5, disk.read_only, own_disk=True),
    Kind("quota", 2, limits.quota),
    Kind("no descriptors", 2, limits.few_descriptors),
    Kind("no memory", 2, limits.no_memory),
    Kind("bad page in an index", 2, damage.bad_page),
    Kind("truncated index", 1, damage.truncated),
    Kind("calls and answers dropped", 1, inject.drop_calls),
    Kind("pongs dropped", 1, inject.drop_pongs),
    Kind("frames delayed", 2, inject.delay),
    Kind("clock jumps", 1, inject.clock_jumps),
    Kind("burst of 500", 2, floods.burst),
    Kind("readers that do not read", 1, floods.does_not_read),
    Kind("huge request", 1, floods.huge),
    Kind("half requests", 1, floods.half),
)
