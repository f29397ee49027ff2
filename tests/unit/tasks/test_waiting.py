"""Clients waiting for a task learn of its end at once, and meanwhile why it waits."""

from __future__ import annotations

import datetime
import time
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from proto.errors import Overloaded, Unavailable
from proto.ops.tasks import TaskListParams, TaskProgress, TaskWait
from services.runtime.dispatch import ClientRequests
from services.tasks import store
from services.tasks.owners import USER
from services.tasks.store import Unfinished
from tests.unit.tasks.rig import Bench, PlayedContext, tasks_with


class Gate:
    """A kernel whose calls return once it is opened."""

    def __init__(self) -> None:
        self.opened = trio.Event()

    async def play(self, mandate: str, client: ClientRequests) -> None:
        client.progress(1, 2, "half")
        await self.opened.wait()


async def wait(bench: Bench, id_: str, timeout_s: float) -> str:
    return (await bench.tasks.wait(TaskWait(id=id_, timeout_s=timeout_s), PlayedContext())).state


async def test_a_task_that_ends_while_it_is_read_is_not_working(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    gate = Gate()
    async with tasks_with(tmp_path, gate.play) as bench:
        id_ = await bench.start("index")
        (running,) = bench.tasks._running.values()

        async def end() -> None:
            gate.opened.set()
            await running.ended.wait()

        bench.database.after_read = end
        assert await wait(bench, id_, 50) == "completed"


async def state_of(bench: Bench, id_: str) -> str:
    return (await bench.get(id_)).state


async def listed(bench: Bench) -> str:
    (task,) = (await bench.tasks.listing(TaskListParams(), PlayedContext())).tasks
    return task.state


@pytest.mark.parametrize("way", ["get", "list"])
async def test_a_read_task_that_has_ended_is_read_again(
    way: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    gate = Gate()
    async with tasks_with(tmp_path, gate.play) as bench:
        id_ = await bench.start("index")
        (running,) = bench.tasks._running.values()

        async def end() -> None:
            gate.opened.set()
            await running.ended.wait()

        bench.database.after_read = end
        assert await (state_of(bench, id_) if way == "get" else listed(bench)) == "completed"


async def test_the_wait_lasts_until_the_end_of_a_task_that_is_begun_late(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    gate = Gate()
    async with tasks_with(tmp_path, gate.play) as bench:
        stored = Unfinished("t1", USER, "index", "index", False)
        await bench.database.write(lambda db: store.insert(db, stored))
        assert await wait(bench, "t1", 5) == "working"
        assert trio.current_time() == pytest.approx(5)

        async def resume() -> None:
            await trio.sleep(60)
            await bench.tasks.resume()
            await trio.sleep(60)
            gate.opened.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(resume)
            assert await wait(bench, "t1", 600) == "completed"
        assert trio.current_time() == pytest.approx(125)


async def test_a_task_that_ends_when_the_wait_ends_is_not_working(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def play(mandate: str, client: ClientRequests) -> None:
        await trio.sleep(10)

    async with tasks_with(tmp_path, play) as bench:
        id_ = await bench.start("index")
        (running,) = bench.tasks._running.values()
        # The wait sees the task work, and its time passes during the next read.
        bench.database.after_read = partial(trio.sleep, 9.5)
        assert await wait(bench, id_, 9) == "working"
        await running.ended.wait()
        assert await wait(bench, id_, 1) == "completed"


@pytest.mark.parametrize("error", [Unavailable("service files is stopped"), Overloaded("full", retry_after_ms=30_000)])
async def test_a_waiting_task_shows_the_reason_and_the_next_attempt(
    error: Overloaded | Unavailable, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    failing = True

    async def play(mandate: str, client: ClientRequests) -> None:
        if failing:
            client.progress(3, 4, "three files")
            raise error
        client.progress(4, 4, "four files")
        await trio.sleep_forever()

    async with tasks_with(tmp_path, play) as bench:
        id_ = await bench.start("index")
        await trio.testing.wait_all_tasks_blocked()
        shown = [await bench.get(id_), *(await bench.tasks.listing(TaskListParams(), PlayedContext())).tasks]
        shown.append(await bench.tasks.wait(TaskWait(id=id_, timeout_s=0.01), PlayedContext()))
        for task in shown:
            assert task.progress is not None
            assert (task.state, task.progress.done, task.progress.total) == ("working", 3, 4)
            reason, _, at = (task.progress.message or "").partition("; next attempt at ")
            assert reason == f"waiting: {error}"
            pause_s = (error.failure.retry_after_ms or 0) / 1000
            assert abs(datetime.datetime.fromisoformat(at).timestamp() - time.time() - pause_s) < 60
        failing = False
        await trio.sleep(31)
        assert (await bench.get(id_)).progress == TaskProgress(done=4, total=4, message="four files")
