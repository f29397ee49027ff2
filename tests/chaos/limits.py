"""Takes a resource away from a living service, and gives it back if the service survives."""

from __future__ import annotations

import contextlib
import resource

import trio

from tests.chaos.record import Window
from tests.chaos.storm import Storm

LIMITED_S = 1.5


async def _limit(storm: Storm, kind: int, low: int) -> list[str]:
    living = await storm.processes()
    name = storm.chance.choice(sorted(living)) if living else None
    if name is None:
        return []
    with contextlib.suppress(ProcessLookupError, PermissionError):
        before = resource.prlimit(living[name], kind)
        resource.prlimit(living[name], kind, (low, before[1]))
        await trio.sleep(LIMITED_S)
        resource.prlimit(living[name], kind, before)
    storm.ended()
    return [name]


async def few_descriptors(storm: Storm) -> list[str]:
    return await _limit(storm, resource.RLIMIT_NOFILE, 8)


async def no_memory(storm: Storm) -> list[str]:
    return await _limit(storm, resource.RLIMIT_AS, 64 << 20)


async def quota(storm: Storm) -> list[str]:
    """Prevent the service's files from growing, which is a full disk to it."""
    with storm.record.opened(Window.FULL):
        return await _limit(storm, resource.RLIMIT_FSIZE, 0)
