"""Tasks run in turns, which owners get in rotation."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from proto.errors import Unavailable
from services.runtime.dispatch import ClientRequests
from services.tasks.turns import Turns
from tests.unit.tasks.rig import tasks_with


async def test_owners_are_served_in_rotation_and_each_in_order(autojump_clock: trio.testing.MockClock) -> None:
    turns, served = Turns(1), list[str]()

    async def task(owner: str, name: str) -> None:
        async with turns.turn(owner):
            served.append(name)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
            nursery.start_soon(task, name[0], name)
            await trio.testing.wait_all_tasks_blocked()
    assert served == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_running_tasks_never_exceed_the_turns_in_spite_of_cancellations(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns, now, most, done = Turns(3), 0, 0, 0

    async def task(owner: str, scope: trio.CancelScope) -> None:
        nonlocal now, most, done
        with scope:
            async with turns.turn(owner):
                now += 1
                most = max(most, now)
                try:
                    await trio.sleep(1)
                finally:
                    now -= 1
            done += 1

    scopes = [trio.CancelScope() for _ in range(40)]
    async with trio.open_nursery() as nursery:
        for n, scope in enumerate(scopes):
            nursery.start_soon(task, "abc"[n % 3], scope)
            if n % 4 == 0:
                # Some give up while they wait, some while they run, some just when they get their turn.
                scope.deadline = trio.current_time() + n % 5
    assert most == 3
    assert done >= 30
    assert turns._free == 3


async def test_three_hundred_tasks_of_one_client_do_not_hold_up_another(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    started: dict[str, float] = {}

    async def play(mandate: str, client: ClientRequests) -> None:
        started[mandate] = trio.current_time()
        await trio.sleep(20)

    async with tasks_with(tmp_path, play, at_once=4, max_unfinished=300) as bench:
        for n in range(300):
            await bench.start(f"many{n}", "many")
        await bench.start("one", "one")
        await trio.sleep(100)
    assert started["one"] == pytest.approx(20, abs=1)


async def test_tasks_that_wait_for_a_stopped_service_take_no_turns(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def play(mandate: str, client: ClientRequests) -> None:
        if mandate.startswith("stuck"):
            raise Unavailable("service files is stopped")

    async with tasks_with(tmp_path, play, at_once=1) as bench:
        for n in range(5):
            await bench.start(f"stuck{n}")
        id_ = await bench.start("well")
        await trio.sleep(0.05)
        assert (await bench.get(id_)).state == "completed"


async def test_tasks_are_resumed_in_the_turns_of_their_owners(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    order: list[str] = []

    async def forever(mandate: str, client: ClientRequests) -> None:
        await trio.sleep_forever()

    async def play(mandate: str, client: ClientRequests) -> None:
        order.append(mandate)
        await trio.sleep(1)

    async with tasks_with(tmp_path, forever) as bench:
        for name in ("a1", "a2", "a3", "b1"):
            await bench.start(name, name[0])
    async with tasks_with(tmp_path, play, at_once=1) as bench:
        await bench.tasks.resume()
        await trio.sleep(10)
    assert order.index("b1") <= 2
