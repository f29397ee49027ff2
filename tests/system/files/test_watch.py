"""The watcher in a process of its own: killed in a storm, stopped until its queue runs over, and none the worse."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from proto.ops.watch import WatchStatus, WatchSubscribe
from tests.system.files.watching import caller
from tests.system.running import REPOSITORY, RunningKernel, running
from tests.unit.watch.rig import Mirror, settled


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("folder")
    with running(tmp_path_factory.mktemp("data"), [folder], services=["watch"]) as started:
        yield started


@pytest.fixture
def root(kernel: RunningKernel, tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    folder = Path(kernel.status()["roots"][0]) / tmp_path.name
    folder.mkdir()
    return folder


async def test_storm_while_the_watcher_is_killed_is_followed_to_its_end(
    kernel: RunningKernel, root: Path, tmp_path: Path
) -> None:
    chance = random.Random(1)
    async with caller(kernel.data_dir) as reader:
        mirror = Mirror(reader, kernel.data_dir / "services/watch/watch.db", "storm")
        await reader.call(WatchSubscribe(name="storm", paths=[str(root)]))
        await mirror.until_same(root)
        command = [sys.executable, "-m", "tests.unit.watch.storm", str(root), str(tmp_path / "outside"), "1", "4000"]
        storm = await trio.lowlevel.open_process(command, cwd=REPOSITORY)
        kills = 0
        answered = [trio.Event()]

        async def kill() -> None:
            nonlocal kills
            while storm.poll() is None:
                await trio.sleep(chance.uniform(0.05, 0.3))
                # A call is given up after some deaths under it.
                answered[0] = trio.Event()
                await answered[0].wait()
                await trio.to_thread.run_sync(kernel.kill, "watch")
                kills += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            while storm.poll() is None:
                await mirror.follow(wait_s=0.05)
                answered[0].set()
            nursery.cancel_scope.cancel()
        assert storm.returncode == 0
        assert kills >= 2
        await mirror.until_same(root)
        assert mirror.resyncs == 1


async def test_queue_that_runs_over_while_the_watcher_is_stopped(kernel: RunningKernel, root: Path) -> None:
    async with caller(kernel.data_dir) as reader:
        mirror = Mirror(reader, kernel.data_dir / "services/watch/watch.db", "stopped")
        await reader.call(WatchSubscribe(name="stopped", paths=[str(root)]))
        (root / "a").write_text("x")
        await mirror.until_same(root)
        before = await settled(reader)
        pids = kernel.process.pid, kernel.service("watch")["pid"]
        # The kernel too: it soon replaces a service that stands still.
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        # Two events each.
        for here, there in [("a", "b"), ("b", "a")] * (before.queue_limit // 4 + 50):
            os.rename(root / here, root / there)
        (root / "in").mkdir()
        (root / "in/late.txt").write_text("x")
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
        await mirror.until_same(root)
        status = await reader.call(WatchStatus())
        assert status.overflows >= 1
        assert mirror.resyncs == 1
