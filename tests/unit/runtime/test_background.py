"""Work in the background outlives a full disk."""

from __future__ import annotations

import errno

import pytest
import trio

from services.runtime.storage import DiskFull, retry_when_full
from tests.unit.runtime.environment import PlayedEnvironment


async def nobody(params: object) -> object:
    raise AssertionError(params)


@pytest.mark.parametrize("error", [DiskFull("the disk is full"), OSError(errno.ENOSPC, "no space")])
async def test_background_work_pauses_on_a_full_disk_and_continues(autojump_clock: object, error: Exception) -> None:
    failures = [error] * 5
    done = trio.Event()

    async def work() -> None:
        await trio.lowlevel.checkpoint()
        if failures:
            raise failures.pop()
        done.set()

    async with trio.open_nursery() as nursery:
        env = PlayedEnvironment(nursery, nobody)
        nursery.start_soon(retry_when_full, env, "indexing", work)
        with trio.fail_after(5):
            await done.wait()
    assert env.told[0]["indexing"].startswith("paused: the disk is full")
    assert env.told[-1] == {"indexing": ""}


async def test_any_other_error_ends_background_work(autojump_clock: object) -> None:
    async def work() -> None:
        await trio.lowlevel.checkpoint()
        raise OSError(errno.ENOENT, "no such file")

    async with trio.open_nursery() as nursery:
        with pytest.raises(OSError, match="no such file"):
            await retry_when_full(PlayedEnvironment(nursery, nobody), "indexing", work)
