"""Faults injected into the kernel's frames and the wall clock."""

from __future__ import annotations

import contextlib
from typing import Any

import trio
import trio.lowlevel

from proto.control.client import Client, ControlError
from tests.chaos.storm import KERNEL, Storm

LOSES_FRAMES = ("echo", "yaml", "graph")
"""Services of the load whose calls have deadlines short enough to wait for a lost frame."""

JUMPS_S = (-86_400, -3600, -5, 5, 3600, 86_400, 0)


async def _plan(storm: Storm, service: str, **fault: Any) -> list[str]:
    def ask() -> bool:
        with contextlib.suppress(ControlError, OSError), Client(storm.system.data) as client:
            client.call_named("kernel_chaos", {"service": service, **fault}, timeout_s=10)
            return True
        return False

    return [service] if await trio.to_thread.run_sync(ask) else []


async def drop_calls(storm: Storm) -> list[str]:
    """Drop a call or an answer: the caller learns at its deadline that the call may have run."""
    service, frame = storm.chance.choice(LOSES_FRAMES), storm.chance.choice(("call", "return"))
    count = storm.chance.randrange(1, 4)
    direction = "to" if frame == "call" else "from"
    struck = await _plan(storm, service, direction=direction, fault="drop", count=count, frame=frame)
    if struck:
        # A dropped frame may be that of the probe.
        storm.record.frames_lost[service] += count
    return struck


async def drop_pongs(storm: Storm) -> list[str]:
    """Drop pongs, so that the service seems to hang."""
    living = sorted(await storm.processes())
    if not living:
        return []
    return await _plan(
        storm, storm.chance.choice(living), direction="from", fault="drop", count=storm.chance.randrange(1, 10),
        frame="pong",
    )  # fmt: skip


async def delay(storm: Storm) -> list[str]:
    living = sorted(await storm.processes())
    if not living:
        return []
    return await _plan(
        storm, storm.chance.choice(living), direction=storm.chance.choice(("to", "from")), fault="delay",
        count=storm.chance.randrange(1, 30), delay_ms=storm.chance.randrange(50, 800),
    )  # fmt: skip


async def clock_jumps(storm: Storm) -> list[str]:
    """Move the clock forward or back, and restore it later."""
    if (clock := storm.system.clock) is None:
        return []
    clock.jump_to(storm.chance.choice(JUMPS_S))
    await trio.lowlevel.checkpoint()
    return [KERNEL, "retrieve", "transcripts"]
