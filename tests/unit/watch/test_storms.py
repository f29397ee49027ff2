"""Nothing is lost and nothing invented: under storms, overflows, exceed the watch limit, through any restart."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from proto.errors import LinckiaError
from proto.ops.watch import WatchChanges, WatchStatus
from tests.unit.watch.rig import settled, watching
from tests.unit.watch.storm import Storm


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (tmp_path / "outside").mkdir()
    return folder


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(3))
async def test_storm_is_followed_step_by_step(tmp_path: Path, root: Path, seed: int) -> None:
    storm = Storm(root, tmp_path / "outside", seed)
    async with watching(tmp_path / "data", root) as (_, mirror), trio.open_nursery() as nursery:
        done = trio.Event()

        async def rage() -> None:
            await trio.to_thread.run_sync(storm.run, 2000)
            done.set()

        nursery.start_soon(rage)
        while not done.is_set():
            await mirror.follow(wait_s=0.05)
        await mirror.until_same(root)
        assert mirror.resyncs == 1


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(2))
async def test_storm_is_followed_although_the_watcher_dies_repeatedly(tmp_path: Path, root: Path, seed: int) -> None:
    storm = Storm(root, tmp_path / "outside", seed)
    chance = random.Random(seed)
    async with watching(tmp_path / "data", root) as (bench, mirror):
        done = trio.Event()

        async def rage() -> None:
            for _ in range(8):
                await trio.to_thread.run_sync(storm.run, 250)
                await trio.lowlevel.checkpoint()
            done.set()

        async def follow() -> None:
            while not done.is_set():
                try:
                    await mirror.follow(wait_s=0.05)
                except LinckiaError:
                    await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(rage)
            nursery.start_soon(follow)
            while not done.is_set():
                await trio.sleep(chance.uniform(0.0, 0.1))
                await bench.stop("watch")
                if chance.random() < 0.3:
                    await trio.sleep(0.05)
                await bench.start("watch")
        await mirror.until_same(root)
        assert mirror.resyncs == 1


@pytest.mark.slow
def test_changes_while_nobody_watches_are_found_at_the_start(tmp_path: Path, root: Path) -> None:
    storm = Storm(root, tmp_path / "outside", 7)
    storm.run(300)

    async def main() -> None:
        async with watching(tmp_path / "data", root) as (bench, mirror):
            for _ in range(4):
                await bench.stop("watch")
                storm.run(200)
                await bench.start("watch")
                await mirror.until_same(root)
            assert mirror.resyncs == 1

    trio.run(main)


def _breath(root: Path, files: int) -> Iterator[Path]:
    for n in range(files // 10):
        folder = root / f"{n % 100}" / f"{n}"
        folder.mkdir(parents=True)
        for m in range(10):
            (folder / f"{m}").touch()
        yield folder


@pytest.mark.slow
async def test_overflow_of_the_queue_loses_nothing_and_is_reported(tmp_path: Path, root: Path) -> None:
    for folder in _breath(root, 1000):
        assert folder.is_dir()
    async with watching(tmp_path / "data", root) as (bench, mirror):
        queue = (await bench.call(WatchStatus())).queue_limit
        # The reader stands still meanwhile: this does not give way to it. Each round is two events of a watched folder.
        file = root / "0/0/0"
        other = root / "0/0/other"
        for _ in range(queue // 2 + 100):
            file.rename(other)
            file, other = other, file
        (root / "1/1/late").touch()
        shutil.rmtree(root / "2")
        (root / "3").rename(root / "three")
        (root / "three/3/edited").write_text("x")
        await mirror.until_same(root)
        assert (await settled(bench)).overflows >= 1
        assert mirror.resyncs == 1


@pytest.mark.slow
async def test_folders_past_the_limit_of_watches_are_polled_and_reported(tmp_path: Path, root: Path) -> None:
    for folder in _breath(root, 200):
        assert folder.is_dir()
    settings = {"max_watches": 5, "poll_interval_s": 0.1}
    async with watching(tmp_path / "data", root, settings=settings) as (bench, mirror):
        status = await bench.call(WatchStatus())
        assert (status.watches, status.polled) == (5, 1 + 20 + 20 - 5)
        assert "exceed the watch limit" in status.degraded[0]
        Storm(root, tmp_path / "outside", 3).run(300)
        for folder in _breath(root / "19/fresh", 100):
            assert folder.is_dir()
        shutil.rmtree(root / "18")
        (root / "17").rename(root / "seventeen")
        await mirror.until_same(root)
        assert mirror.resyncs == 1


async def test_reader_that_fell_too_far_behind_must_rescan(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root, settings={"log_limit": 50, "trim_interval_s": 0.1}) as (bench, mirror):
        for folder in _breath(root, 500):
            assert folder.is_dir()
        with trio.fail_after(30):
            while (await settled(bench)).changes > 50:  # noqa: ASYNC110  trimming has no event
                await trio.sleep(0.1)
        answer = await bench.call(WatchChanges(subscription=mirror.name, after=mirror.after))
        assert answer.resync
        assert not answer.changes
        await mirror.until_same(root)
        assert mirror.resyncs == 2
        (root / "n").touch()
        await mirror.until_same(root)
        assert mirror.told() == [("created", "n")]


async def test_damaged_database_is_replaced_and_readers_are_notified(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root) as (bench, mirror):
        (root / "a").touch()
        await mirror.until_same(root)
        await bench.stop("watch")
        database = tmp_path / "data/watch/watch.db"
        database.write_bytes(b"no database" * 1000)
        await bench.start("watch")
        assert (await settled(bench)).rebuilt
        with pytest.raises(LinckiaError, match="subscribe"):
            await mirror.follow()
