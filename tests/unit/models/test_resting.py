"""A model that nobody asks for gives its memory back, and is there again for the first who asks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import trio

from services.runtime.models.batcher import Batcher, Lane, Rows, watch_health
from services.runtime.models.resting import Resting, rest_when_idle


class Counted:
    """A model that answers each text's length."""

    width = 1
    device = "cpu"
    loads = 0

    def __init__(self) -> None:
        Counted.loads += 1

    def compute(self, texts: Sequence[str]) -> Rows:
        return np.array([[len(text)] for text in texts], dtype=np.float32)

    def recover(self, error: Exception) -> bool:
        return True


@pytest.fixture
def resting() -> Resting[Counted]:
    Counted.loads = 0
    return Resting(Counted(), Counted)


async def test_an_idle_model_rests_and_the_next_call_has_it_again(resting: Resting[Counted]) -> None:
    batcher: Batcher[str] = Batcher(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.run, resting)
        nursery.start_soon(rest_when_idle, (batcher,), resting, 0.05)
        for loads in (1, 2, 3):
            assert (await batcher.compute(["four"], Lane.PROMPT)).tolist() == [[4.0]]
            assert Counted.loads == loads
            with trio.fail_after(10):
                while not resting.rests:  # noqa: ASYNC110  # a thread does it, and tells nobody
                    await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_the_watch_over_its_health_neither_keeps_it_awake_nor_wakes_it(resting: Resting[Counted]) -> None:
    batcher: Batcher[str] = Batcher(1)
    expected = np.array([4.0], dtype=np.float32)
    looked = 0

    def rests() -> bool:
        nonlocal looked
        looked += resting.rests
        return resting.rests

    async def watch() -> None:
        await watch_health(batcher, "four", expected, lambda a, b: bool((a == b).all()), every_s=0.02, rests=rests)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.run, resting)
        asked = batcher.last_asked_at
        nursery.start_soon(watch)
        with trio.fail_after(10):
            while batcher.last_batch_at < asked + 0.02:  # noqa: ASYNC110  # a thread does it, and tells nobody
                await trio.sleep(0.01)
        assert batcher.last_asked_at == asked
        resting.rest()
        with trio.fail_after(10):
            while looked < 3:  # noqa: ASYNC110  # as above
                await trio.sleep(0.01)
        assert resting.rests
        nursery.cancel_scope.cancel()


async def test_calls_that_come_together_load_it_once(resting: Resting[Counted]) -> None:
    resting.rest()
    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(trio.to_thread.run_sync, resting.compute, ["a"])
    assert Counted.loads == 2
