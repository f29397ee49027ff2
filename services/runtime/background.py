"""Work in the background that survives a full disk: it pauses, and goes on when there is room."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from services.runtime.handlers import Environment
from services.runtime.storage import DiskFull, trouble_of

PAUSE_S = 0.5
"""Between two attempts: work goes on within a second of room being made."""

_log = logging.getLogger("linckia.service")


async def patiently(env: Environment, name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` to its end; where the disk cannot take a write, pause and run it again.

    `work` must be one that may be begun again after any of its steps. While it pauses, `status` shows why.

    Raises:
        Whatever else `work` raises.
    """
    paused = False
    while True:
        try:
            await work()
        except (DiskFull, OSError) as error:
            if not (trouble := trouble_of(error) or (isinstance(error, DiskFull) and str(error))):
                raise
            if not paused:
                _log.warning("%s pauses: %s", name, error)
            paused = True
            env.info(**{name: f"paused: {trouble}"})
            await trio.sleep(PAUSE_S)
            env.info(**{name: ""})
        else:
            return
