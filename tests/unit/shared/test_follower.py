"""A follower receives every change at least once, even after deaths, and reports when it does not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from proto.errors import OperationError, Unavailable
from proto.operation import Params
from proto.ops.watch import (
    Change,
    ChangeKind,
    Changes,
    EntryKind,
    Subscribed,
    Unsubscribed,
    WatchChanges,
    WatchSubscribe,
    WatchUnsubscribe,
)
from services.runtime.storage import DiskFull
from services.shared.follower import WAIT_S, Follower
from tests.unit.runtime.environment import PlayedEnvironment


def change(sequence: int) -> Change:
    return Change(sequence=sequence, change=ChangeKind.CREATED, path=f"/r/{sequence}", kind=EntryKind.FILE)


class PlayedWatcher:
    """`watch`, with a log in memory."""

    def __init__(self) -> None:
        self.log: list[Change] = []
        self.subscribed: list[WatchSubscribe] = []
        self.ended = 0
        self.floor = 1
        self.failures: list[Exception] = []
        self.news = trio.Event()

    def tell(self, sequence: int) -> None:
        self.log.append(change(sequence))
        self.news.set()
        self.news = trio.Event()

    async def answer(self, params: Params[Any]) -> object:
        await trio.lowlevel.checkpoint()
        if self.failures:
            raise self.failures.pop(0)
        match params:
            case WatchSubscribe():
                self.subscribed.append(params)
                return Subscribed(paths=params.paths, sequence=0, complete=True, kept=False)
            case WatchUnsubscribe():
                self.ended += 1
                return Unsubscribed(removed=True)
            case WatchChanges(after=after):
                if after < self.floor:
                    return Changes(changes=[], sequence=self.floor, more=False, resync=True, complete=True)
                with trio.move_on_after(params.wait_s):
                    while not (new := [each for each in self.log if each.sequence > after]):
                        await self.news.wait()
                return Changes(
                    changes=new, sequence=new[-1].sequence if new else after, more=False, resync=False, complete=True
                )
        raise AssertionError(params)


class Heard:
    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.scans = 0
        self.reasons: list[str] = []
        self.failures: list[Exception] = []

    async def changed(self, changes: Sequence[Change], sequence: int) -> None:
        await trio.lowlevel.checkpoint()
        if self.failures:
            raise self.failures.pop(0)
        self.sequences += [each.sequence for each in changes]

    async def rescan(self, sequence: int) -> None:
        await trio.lowlevel.checkpoint()
        self.scans += 1

    async def watched(self) -> None:
        self.reasons.append("")

    def unwatched(self, reason: str) -> None:
        self.reasons.append(reason)


@asynccontextmanager
async def following(watcher: PlayedWatcher, heard: Heard) -> AsyncIterator[Follower]:
    async with trio.open_nursery() as nursery:
        follower = Follower(PlayedEnvironment(nursery, watcher.answer), "notes", heard)
        follower.follow(["/r"])
        nursery.start_soon(follower.run)
        yield follower
        nursery.cancel_scope.cancel()


async def test_a_first_scan_and_then_every_change(autojump_clock: object) -> None:
    watcher, heard = PlayedWatcher(), Heard()
    async with following(watcher, heard):
        await trio.sleep(1)
        assert heard.scans == 1
        watcher.tell(2)
        await trio.sleep(0.1)
        watcher.tell(3)
        await trio.sleep(60)
    assert heard.sequences == [2, 3]
    assert heard.scans == 1
    assert len(watcher.subscribed) == 1
    assert heard.reasons[-1] == ""


async def test_a_short_outage_of_the_watcher_has_no_effect(autojump_clock: object) -> None:
    watcher, heard = PlayedWatcher(), Heard()
    async with following(watcher, heard):
        await trio.sleep(1)
        watcher.failures = [Unavailable("restarting")] * 2
        watcher.tell(2)
        await trio.sleep(1)
        assert not any(heard.reasons)
        watcher.failures = [Unavailable("restarting")] * 6
        watcher.tell(3)
        await trio.sleep(60)
    assert heard.sequences == [2, 3]
    assert any(heard.reasons)
    assert heard.reasons[-1] == ""


async def test_a_watcher_without_its_database_is_subscribed_to_again(autojump_clock: object) -> None:
    watcher, heard = PlayedWatcher(), Heard()
    async with following(watcher, heard):
        await trio.sleep(1)
        watcher.failures = [OperationError("no such subscription")]
        watcher.tell(2)
        await trio.sleep(60)
    assert len(watcher.subscribed) == 2
    assert heard.sequences == [2]


async def test_changes_that_a_listener_refused_are_reported_again(autojump_clock: object) -> None:
    watcher, heard = PlayedWatcher(), Heard()
    async with following(watcher, heard):
        await trio.sleep(1)
        heard.failures = [DiskFull("full")] * 3
        watcher.tell(2)
        await trio.sleep(2)
    assert heard.sequences == [2]
    assert [reason for reason in heard.reasons if reason] == ["full"]


async def test_a_listener_that_keeps_failing_is_called_less_and_less_often(autojump_clock: object) -> None:
    watcher, heard = PlayedWatcher(), Heard()
    async with following(watcher, heard):
        await trio.sleep(1)
        heard.failures = [OSError("unreadable")] * 1000
        watcher.tell(2)
        await trio.sleep(60)
        assert 980 < len(heard.failures) < 990
        heard.failures.clear()
        await trio.sleep(10)
    assert heard.sequences == [2]
    assert [reason for reason in heard.reasons if reason] == ["unreadable"]


async def test_delivery_is_reported_as_soon_as_the_watcher_is_back(autojump_clock: object) -> None:
    watcher, heard = PlayedWatcher(), Heard()
    async with following(watcher, heard):
        await trio.sleep(1)
        watcher.failures = [Unavailable("restarting")] * 6
        watcher.tell(2)
        await trio.sleep(10)
        assert heard.sequences == [2]
        heard.reasons.clear()
        watcher.failures = [Unavailable("restarting")] * 7
        # The outage lasts 11.3 s. Nothing changed since: the first read after it returns at once.
        await trio.sleep(WAIT_S + 12)
        assert any(heard.reasons)
        assert heard.reasons[-1] == ""


async def test_the_listener_decides_how_long_a_read_waits(autojump_clock: object) -> None:
    watcher, heard = PlayedWatcher(), Heard()
    async with following(watcher, heard) as follower:
        follower.wait_s = 2.0
        await trio.sleep(21)
        assert len(heard.reasons) == 11


async def test_other_folders_are_followed_at_once_and_none_ends_the_subscription(autojump_clock: object) -> None:
    watcher, heard = PlayedWatcher(), Heard()
    async with following(watcher, heard) as follower:
        await trio.sleep(1)
        follower.follow(["/r", "/s"])
        await trio.sleep(1)
        assert [each.paths for each in watcher.subscribed] == [["/r"], ["/r", "/s"]]
        assert heard.scans == 2
        follower.follow([])
        await trio.sleep(1)
    assert watcher.ended == 1
