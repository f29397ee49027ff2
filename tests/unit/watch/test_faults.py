"""A full disk pauses the watcher, a damaged database is replaced; neither ends it, and no change is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from proto.errors import OperationError, Unavailable
from proto.operation import Params
from proto.ops.watch import WatchChanges, WatchStatus, WatchStatusResult, WatchSubscribe, WatchUnsubscribe
from tests.unit.runtime.faults import Disk, damage_page, disk, files_in, pages_of
from tests.unit.watch.rig import Bench, settled, watching

R = TypeVar("R")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    for name in ("sub/deep/x.txt", "sub/y.txt", "a.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


async def retried(bench: Bench, params: Params[R]) -> R:
    """Repeat the call on a retryable failure, as the kernel does."""
    while True:
        try:
            return await bench.call(params)
        except Unavailable as error:
            await trio.sleep((error.failure.retry_after_ms or 0) / 1000)


async def status_that(bench: Bench, condition: Callable[[WatchStatusResult], bool]) -> WatchStatusResult:
    with trio.fail_after(20):
        while True:
            status = await retried(bench, WatchStatus())
            if condition(status):
                return status
            await trio.sleep(0.01)


async def until_paused(bench: Bench, full: Disk) -> WatchStatusResult:
    return await status_that(bench, lambda status: bool(status.degraded) and full.struck)


@pytest.mark.slow
@pytest.mark.parametrize("statement", range(1, 9))
async def test_full_disk_at_any_statement_pauses_the_watcher_and_no_change_is_lost(
    tmp_path: Path, root: Path, statement: int
) -> None:
    with disk() as full:
        async with watching(tmp_path / "data", root) as (bench, mirror):
            full.fill(at=statement)
            (root / "new/deep").mkdir(parents=True)
            (root / "new/deep/n.txt").write_text("n")
            (root / "sub").rename(root / "bus")
            (root / "a.txt").write_text("another")
            status = await until_paused(bench, full)
            assert "the disk is full" in status.degraded[0]
            assert not status.settled
            # Meanwhile more happens.
            (root / "bus/y.txt").unlink()
            (root / "late.txt").write_text("late")
            full.room()
            await mirror.until_same(root)
            assert mirror.resyncs == 1
            assert not (await settled(bench)).degraded
            assert not bench.failures


@pytest.mark.slow
async def test_subscriptions_on_a_full_disk_fail_with_nothing_done(tmp_path: Path, root: Path) -> None:
    with disk() as full:
        async with watching(tmp_path / "data", root) as (bench, mirror):
            full.fill()
            with pytest.raises(OperationError, match="nothing was done"):
                await bench.call(WatchUnsubscribe(name=mirror.name))
            with pytest.raises(OperationError, match="the disk is full"):
                await bench.call(WatchSubscribe(name="second", paths=[str(root)]))
            full.room()
            (root / "new.txt").write_text("n")
            await mirror.until_same(root)
            assert [one.name for one in (await settled(bench)).subscriptions] == [mirror.name]
            await bench.call(WatchSubscribe(name="second", paths=[str(root)]))


@pytest.mark.slow
async def test_disk_that_is_full_at_the_start_does_not_keep_the_service_from_starting(
    tmp_path: Path, root: Path
) -> None:
    with disk() as full:
        async with watching(tmp_path / "data", root) as (bench, mirror):
            await bench.stop("watch")
            (root / "new.txt").write_text("n")
            full.fill()
            await bench.start("watch")
            await until_paused(bench, full)
            full.room()
            await mirror.until_same(root)


async def follow_again(bench: Bench, name: str, root: Path, last: int) -> None:
    """Subscribe again, as readers do, and expect a rescan notice with a number above all old ones."""
    with trio.fail_after(20):
        while True:
            await retried(bench, WatchSubscribe(name=name, paths=[str(root)]))
            answer = await bench.call(WatchChanges(subscription=name, after=last, wait_s=5))
            if answer.complete:
                break
            await trio.sleep(0.01)
    assert answer.resync
    assert answer.sequence > last


@pytest.mark.parametrize("table", ["entry", "folder", "change", "meta", "subscription", "tree"])
async def test_a_damaged_database_is_recreated_and_readers_rescan(tmp_path: Path, root: Path, table: str) -> None:
    database = tmp_path / "data/watch/watch.db"
    async with watching(tmp_path / "data", root) as (bench, mirror):
        await bench.finish("watch")
        for page in pages_of(database, table):
            damage_page(database, page)
        last = mirror.after
        await bench.start("watch")
        (root / "new.txt").write_text("n")
        await status_that(bench, lambda status: status.rebuilt)
        with pytest.raises(OperationError, match="no subscription"):
            await bench.call(WatchChanges(subscription=mirror.name, after=last))
        await follow_again(bench, mirror.name, root, last)
        await mirror.until_same(root)
        (root / "newer.txt").write_text("n")
        await mirror.until_same(root)
        assert files_in(database.parent, "watch.db.damaged-*")
        assert not bench.failures
