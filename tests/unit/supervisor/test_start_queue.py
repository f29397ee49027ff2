"""The order in which services and zygotes start when processors are few."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from kernel.supervisor.start_queue import StartQueue

NAMES = ("first", "second", "third")


@asynccontextmanager
async def all_wanted(queue: StartQueue) -> AsyncIterator[list[str]]:
    """Yield the list of started names. All are requested at once, in reverse order."""
    begun: list[str] = []

    async def start(name: str) -> None:
        await queue.begin(name)
        begun.append(name)

    async with trio.open_nursery() as nursery:
        for name in reversed(NAMES):
            nursery.start_soon(start, name)
        await trio.testing.wait_all_tasks_blocked()
        yield begun
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("at_once", [1, 2])
async def test_queued_starts_run_in_order_as_earlier_ones_end(at_once: int) -> None:
    queue = StartQueue(NAMES, at_once)
    async with all_wanted(queue) as begun:
        assert begun == list(NAMES[:at_once])
        queue.end("first")
        await trio.testing.wait_all_tasks_blocked()
        assert begun == list(NAMES[: at_once + 1])


async def test_prioritized_name_starts_at_once() -> None:
    queue = StartQueue(NAMES, 1)
    async with all_wanted(queue) as begun:
        queue.prioritize("third")
        await trio.testing.wait_all_tasks_blocked()
        assert begun == ["first", "third"]
        queue.end("first")
        queue.end("third")
        await trio.testing.wait_all_tasks_blocked()
        assert begun == ["first", "third", "second"]


async def test_cancelled_wait_does_not_block_others() -> None:
    queue = StartQueue(NAMES, 1)
    await queue.begin("first")
    with trio.move_on_after(0):
        await queue.begin("second")
    queue.end("first")
    with trio.fail_after(5):
        await queue.begin("third")
