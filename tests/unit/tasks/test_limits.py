"""What an owner may store: tasks, timers and bytes, each refused by its own message and counted for each owner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import trio.testing

from proto.errors import OperationError
from proto.ops.tasks import Schedule, ScheduleCancel, TaskCancel, TaskStart
from services.runtime.dispatch import ClientRequests
from services.tasks import store
from services.tasks.limits import Limits
from services.tasks.owners import USER
from services.tasks.timers import Timers
from tests.unit.tasks.rig import Bench, PlayedContext, tasks_with


async def forever(mandate: str, client: ClientRequests) -> None:
    await trio.sleep_forever()


def timers_of(bench: Bench, now: float = 1_000_000_000.0) -> Timers:
    return Timers(bench.database, bench.tasks, Limits(bench.settings), lambda: now)


DAILY = Schedule(operation="mcp_echo", cron="0 3 * * *")


async def test_unfinished_tasks_are_limited_for_each_owner(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with tasks_with(tmp_path, forever, max_unfinished=3) as bench:
        ids = [await bench.start(f"op{n}", "a") for n in range(3)]
        with pytest.raises(OperationError, match=r"3 unfinished tasks.*max_unfinished.*tasks_cancel") as caught:
            await bench.start("op3", "a")
        assert caught.value.failure.field == "operation"
        await bench.start("op", "b")
        await bench.tasks.cancel(TaskCancel(id=ids[0]), PlayedContext("a"))
        await bench.start("op3", "a")


async def test_timers_are_limited_for_each_owner(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with tasks_with(tmp_path, forever, max_timers=2) as bench:
        timers = timers_of(bench)
        ids = [(await timers.schedule(DAILY, PlayedContext("a"))).id for _ in range(2)]
        with pytest.raises(OperationError, match=r"2 timers.*max_timers.*timers_cancel"):
            await timers.schedule(DAILY, PlayedContext("a"))
        await timers.schedule(DAILY, PlayedContext("b"))
        await timers.cancel(ScheduleCancel(id=ids[0]), PlayedContext("a"))
        await timers.schedule(DAILY, PlayedContext("a"))


async def test_bytes_of_tasks_and_timers_are_limited_together(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with tasks_with(tmp_path, forever, max_bytes=2500) as bench:
        timers, a, b = timers_of(bench), PlayedContext("a"), PlayedContext("b")
        a.size = b.size = 1000
        await timers.schedule(DAILY, a)
        task = await bench.tasks.start(TaskStart(operation="op"), a)
        calls: tuple[Any, ...] = (timers.schedule(DAILY, a), bench.tasks.start(TaskStart(operation="op"), a))
        for call in calls:
            with pytest.raises(OperationError, match=r"takes 1000 bytes.*take 2000 of the 2500.*max_bytes") as caught:
                await call
            assert caught.value.failure.field == "arguments"
        await timers.schedule(DAILY, b)
        # A task that has ended takes no space.
        await bench.tasks.cancel(TaskCancel(id=task.id), a)
        await timers.schedule(DAILY, a)


async def test_a_due_timer_waits_until_its_owner_has_room(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with tasks_with(tmp_path, forever, max_unfinished=1) as bench:
        due = [Schedule(operation="op", at="1s"), Schedule(operation="other", at="2s")]
        early = timers_of(bench, 1_000_000_000.0)
        for each in due:
            await early.schedule(each, PlayedContext("a"))
        await early.schedule(due[0], PlayedContext("b"))
        late = timers_of(bench, 1_000_000_010.0)
        taken = await bench.database.write(late._take)
        assert sorted((task.owner.name, task.operation) for task in taken) == [("a", "op"), ("b", "op")]
        assert await bench.database.write(late._take) == []
        # This does not make it look again at once.
        assert await bench.database.read(late._next) is None
        await bench.tasks.cancel(TaskCancel(id=taken[0].id), PlayedContext(taken[0].owner.name))
        await bench.tasks.cancel(TaskCancel(id=taken[1].id), PlayedContext(taken[1].owner.name))
        assert [task.operation for task in await bench.database.write(late._take)] == ["other"]


def test_usage_is_read_from_indexes_alone_also_after_a_migration(tmp_path: Path) -> None:
    for name in ("new", "old"):
        db = apsw.Connection(str(tmp_path / name))
        store.SCHEMA.apply(db)
        if name == "old":
            db.execute("DROP INDEX task_unfinished; DROP INDEX timer_owner; DROP INDEX task_owner").fetchall()
            for table in ("task", "timer"):
                db.execute(f"ALTER TABLE {table} DROP COLUMN name; ALTER TABLE {table} DROP COLUMN limits").fetchall()
            db.execute("CREATE INDEX task_owner ON task(owner, number)")
            db.execute("ALTER TABLE task DROP COLUMN bytes; ALTER TABLE timer DROP COLUMN bytes").fetchall()
            row = ("t", "", "op", "12345", 0, "* * * * *", "UTC", "once", 1)
            db.execute("INSERT INTO timer VALUES(?,?,?,?,?,?,?,?,?)", row)
            db.pragma("user_version", 1)
            store.SCHEMA.apply(db)
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {store.USAGE_QUERY}", ("",))]
        searches = [each for each in plan if each.startswith("SEARCH")]
        assert len(searches) == 2, plan
        assert "COVERING INDEX task_unfinished" in searches[0]
        assert "COVERING INDEX timer_owner" in searches[1]
        assert store.usage(db, USER) == (0, 0, *((1, 5) if name == "old" else (0, 0)))
        db.close()
