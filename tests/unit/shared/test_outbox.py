"""What every outbox promises: at least once, no wake-up lost, both sides compared after the far end was away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from proto.errors import OperationError, Unavailable
from services.runtime.storage import DiskFull
from services.shared.outbox import Outbox, pages
from tests.unit.runtime.environment import PlayedEnvironment


class PlayedFeed:
    """Keys in a set; the far end is a list."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.delivered: list[list[str]] = []
        self.compared = 0
        self.failures: list[Exception] = []
        self.is_other = False
        self.during: list[str] = []
        """Keys that come while a batch is being delivered."""

    async def compare(self) -> None:
        self.compared += 1
        await trio.lowlevel.checkpoint()

    async def take(self) -> list[str] | None:
        await trio.lowlevel.checkpoint()
        return self.keys[:2] or None

    async def deliver(self, due: list[str]) -> bool:
        await trio.lowlevel.checkpoint()
        if self.failures:
            raise self.failures.pop(0)
        if self.is_other:
            self.is_other = False
            return False
        self.delivered.append(due)
        self.keys += self.during
        self.during = []
        return True

    async def strike(self, due: list[str]) -> None:
        await trio.lowlevel.checkpoint()
        self.keys = [key for key in self.keys if key not in due]


@asynccontextmanager
async def running(feed: PlayedFeed) -> AsyncIterator[Outbox[list[str]]]:
    async def answer(params: object) -> object:
        raise AssertionError(params)

    async with trio.open_nursery() as nursery:
        outbox = Outbox(PlayedEnvironment(nursery, answer), "the far end", feed)
        nursery.start_soon(outbox.run)
        yield outbox
        nursery.cancel_scope.cancel()


async def test_everything_is_delivered_in_batches_after_one_comparison(autojump_clock: object) -> None:
    feed = PlayedFeed()
    feed.keys = ["a", "b", "c"]
    async with running(feed):
        await trio.sleep(1)
    assert feed.delivered == [["a", "b"], ["c"]]
    assert feed.compared == 1
    assert not feed.keys


async def test_a_key_added_during_a_batch_is_delivered(autojump_clock: object) -> None:
    feed = PlayedFeed()
    async with running(feed) as outbox:
        await trio.sleep(1)

        async def take() -> list[str] | None:
            # The table is empty at this look; the key and its wake-up come before the task waits.
            feed.keys.append("late")
            outbox.hurry()
            del feed.take
            return None

        feed.take = take  # type: ignore[method-assign]  # for one look
        outbox.hurry()
        await trio.sleep(1)
    assert feed.delivered == [["late"]]


async def test_an_unavailable_far_end_is_compared_again_when_it_returns(autojump_clock: object) -> None:
    feed = PlayedFeed()
    feed.keys = ["a"]
    feed.failures = [Unavailable("gone"), Unavailable("gone")]
    async with running(feed) as outbox:
        await trio.sleep(0.1)
        reasons = [outbox.waiting]
        await trio.sleep(5)
        reasons.append(outbox.waiting)
    assert reasons == ["the far end is not available: gone", None]
    assert feed.delivered == [["a"]]
    assert feed.compared == 3


async def test_a_new_far_end_is_compared_and_no_key_is_dropped(autojump_clock: object) -> None:
    feed = PlayedFeed()
    feed.keys, feed.is_other = ["a"], True
    async with running(feed):
        await trio.sleep(1)
    assert feed.delivered == [["a"]]
    assert feed.compared == 2


@pytest.mark.parametrize(
    "failure", [DiskFull("full"), OperationError("the far end's disk is full", retry_after_ms=500)]
)
async def test_a_full_disk_is_waited_for_without_comparing(autojump_clock: object, failure: Exception) -> None:
    feed = PlayedFeed()
    feed.keys = ["a"]
    feed.failures = [failure] * 20
    async with running(feed):
        await trio.sleep(10.5)
    assert feed.delivered == [["a"]]
    assert feed.compared == 1


async def test_until_ends_with_the_delivery_or_with_the_far_end(autojump_clock: object) -> None:
    feed = PlayedFeed()
    feed.keys = ["a", "b", "c"]

    async def delivered() -> bool:
        return not feed.keys

    async with running(feed) as outbox:
        assert await outbox.until(delivered, 10)
        feed.keys, feed.failures = ["d"], [Unavailable("gone")]
        outbox.hurry()
        began = trio.current_time()
        assert not await outbox.until(delivered, 10)
        assert trio.current_time() - began < 10
        await trio.sleep(5)
        assert await outbox.until(delivered, 10)


async def test_pages_are_read_to_the_last() -> None:
    class Page:
        def __init__(self, ids: list[str], more: bool) -> None:
            self.ids, self.more = ids, more

    asked: list[str] = []

    async def page(after: str) -> Page:
        asked.append(after)
        return Page(["c"], False) if after else Page(["a", "b"], True)

    assert await pages(page) == ["a", "b", "c"]
    assert asked == ["", "b"]


async def test_a_far_end_that_restarts_empty_is_compared_again_and_notified_once_complete(
    autojump_clock: object,
) -> None:
    feed = PlayedFeed()
    feed.keys = ["a"]
    asked: list[tuple[str, int]] = []
    epochs = ["one", "two"]

    async def ask(delivered: str) -> str:
        asked.append((delivered, len(feed.keys)))
        if not epochs:
            await trio.sleep_forever()
        if len(epochs) == 1:
            feed.keys = ["b", "c", "d"]
        return epochs.pop(0)

    async with running(feed) as outbox, trio.open_nursery() as nursery:
        nursery.start_soon(outbox.watch_epoch, ask)
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert asked == [("", 1), ("one", 0), ("two", 0)]
    assert feed.compared == 2
    assert feed.delivered == [["a"], ["b", "c"], ["d"]]
