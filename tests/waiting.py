"""Waiting for changes that no event announces: those in other processes, threads and background tasks."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

import trio


async def until(condition: Callable[[], object | Awaitable[object]], within_s: float = 60.0) -> None:
    """Poll until `condition`, a function or a coroutine function, holds. Raises trio.TooSlowError after `within_s`."""
    await trio.lowlevel.checkpoint()
    with trio.fail_after(within_s):
        while not await _holds(condition):  # noqa: ASYNC110  # there is no event to wait for
            await trio.sleep(0.01)


async def _holds(condition: Callable[[], object | Awaitable[object]]) -> bool:
    found = condition()
    return bool(await found if inspect.isawaitable(found) else found)
