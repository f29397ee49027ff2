"""The order in which services and zygotes begin where processors are few."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from linckia.kernel.supervisor.turns import Turns

NAMES = ("first", "second", "third")


@asynccontextmanager
async def all_wanted(turns: Turns) -> AsyncIterator[list[str]]:
    """What has begun, of all that were wanted in one moment, the last first."""
    begun: list[str] = []

    async def start(name: str) -> None:
        await turns.begin(name)
        begun.append(name)

    async with trio.open_nursery() as nursery:
        for name in reversed(NAMES):
            nursery.start_soon(start, name)
        await trio.testing.wait_all_tasks_blocked()
        yield begun
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("at_once", [1, 2])
async def test_they_begin_in_order_each_when_another_has_ended(at_once: int) -> None:
    turns = Turns(NAMES, at_once)
    async with all_wanted(turns) as begun:
        assert begun == list(NAMES[:at_once])
        turns.end("first")
        await trio.testing.wait_all_tasks_blocked()
        assert begun == list(NAMES[: at_once + 1])


async def test_what_somebody_waits_for_begins_at_once() -> None:
    turns = Turns(NAMES, 1)
    async with all_wanted(turns) as begun:
        turns.hurry("third")
        await trio.testing.wait_all_tasks_blocked()
        assert begun == ["first", "third"]
        turns.end("first")
        turns.end("third")
        await trio.testing.wait_all_tasks_blocked()
        assert begun == ["first", "third", "second"]


async def test_one_that_gave_up_waiting_holds_up_no_other() -> None:
    turns = Turns(NAMES, 1)
    await turns.begin("first")
    with trio.move_on_after(0):
        await turns.begin("second")
    turns.end("first")
    with trio.fail_after(5):
        await turns.begin("third")
