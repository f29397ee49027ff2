"""Calls to a service that rests, or is about to, wait for it and have it started; none is refused or lost."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kernel.router.generation import ServiceState
from kernel.router.ports import Cause, CauseKind
from proto.errors import Unavailable
from tests.unit.router.ops import Relay, Say
from tests.unit.router.rig import Rig, call, rig

PAIR = ("speaker", "speaker-2")
RESTED = Cause(CauseKind.RESTED, 0, "rests")


def drain(r: Rig, service: str = "speaker") -> None:
    r.router.state(service, ServiceState.DRAINING, "rests", None)
    r.router.draining(r.generations[service])


def rest(r: Rig, service: str = "speaker") -> None:
    """As the supervisor tells it."""
    drain(r, service)
    r.down(RESTED, service)
    r.router.state(service, ServiceState.RESTING, "rests", None)


def wakers(r: Rig) -> list[str]:
    """Start the services that are woken; return the names of all of them, in order."""
    woken: list[str] = []

    def wake(instance: str) -> None:
        if instance not in woken:
            r.router.state(instance, ServiceState.STARTING, "", None)
            r.nursery.start_soon(r.up, instance)
        woken.append(instance)

    r.router.wake_with(wake)
    return woken


async def test_a_call_wakes_a_service_that_rests_and_is_answered() -> None:
    async with rig() as r:
        woken = wakers(r)
        rest(r)
        assert woken == []
        assert (await call(r, Say(text="hello")))["generation"] == 2
        assert woken == ["speaker"]


async def test_a_call_in_the_moment_that_it_drains_waits_for_the_next_generation() -> None:
    async with rig() as r, trio.open_nursery() as callers:
        asked: list[str] = []
        r.router.wake_with(asked.append)
        drain(r)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await call(r, Say(text="hello")))

        callers.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        # It says so at once, while the supervisor may still have it not rest; and again once it does.
        assert (asked, r.seen) == (["speaker"], [])
        r.down(RESTED)
        r.router.state("speaker", ServiceState.RESTING, "rests", None)
        assert set(asked) == {"speaker"}
        await r.up()
    assert answers[0]["generation"] == 2


async def test_a_service_s_call_wakes_another_that_rests() -> None:
    async with rig() as r:
        await r.up("relay")
        woken = wakers(r)
        rest(r)
        assert (await call(r, Relay(text="hello")))["text"] == "hello"
        assert woken == ["speaker"]


async def test_as_many_instances_of_a_pool_wake_as_there_are_concurrent_calls() -> None:
    async with rig(speakers=PAIR) as r, trio.open_nursery() as callers:
        woken = wakers(r)
        for name in PAIR:
            rest(r, name)
        await call(r, Say(text="alone"))
        await call(r, Say(text="alone again"))
        assert woken == ["speaker"]
        r.hold = trio.Event()
        for n in range(2):
            callers.start_soon(call, r, Say(text=str(n)))
        await r.until(lambda: len(r.seen) == 4)
        assert woken == list(PAIR)
        await r.until(lambda: r.router.lane("speaker").in_flight == 2)
        r.hold.set()


async def test_a_service_without_calls_in_either_direction_is_idle(autojump_clock: MockClock) -> None:
    async with rig() as r, trio.open_nursery() as callers:
        await r.up("relay")
        r.hold = trio.Event()
        callers.start_soon(call, r, Relay(text="hello"))
        await r.until(lambda: r.seen == ["hello"])
        assert r.router.idle_since("speaker") is None
        assert r.router.idle_since("relay") is None
        await trio.sleep(5)
        ended = trio.current_time()
        r.hold.set()
        await trio.testing.wait_all_tasks_blocked()
        assert r.router.idle_since("speaker") == r.router.idle_since("relay") == ended


async def test_a_call_that_a_service_makes_on_its_own_account_keeps_it_from_being_idle(
    autojump_clock: MockClock,
) -> None:
    async with rig() as r, trio.open_nursery() as callers:
        await r.up("relay")
        assert r.of_its_own is not None
        r.hold = trio.Event()
        callers.start_soon(r.of_its_own, Say(text="of its own"))
        await r.until(lambda: r.seen == ["of its own"])
        assert r.router.idle_since("relay") is None
        await trio.sleep(5)
        ended = trio.current_time()
        r.hold.set()
        await trio.testing.wait_all_tasks_blocked()
        assert r.router.idle_since("relay") == ended


async def test_a_service_whose_own_call_is_still_waiting_is_not_idle(autojump_clock: MockClock) -> None:
    async with rig() as r:
        await r.up("relay")
        assert r.of_its_own is not None
        r.router.state("speaker", ServiceState.FAILED, "it crashes", None)
        r.router.down(r.generations["speaker"], RESTED)
        await trio.sleep(5)
        with pytest.raises(Unavailable):
            await r.of_its_own(Say(text="of its own"))
        assert r.router.idle_since("relay") == trio.current_time()


async def test_a_call_whose_service_is_stopped_instead_is_refused() -> None:
    async with rig() as r, trio.open_nursery() as callers:
        r.router.wake_with(lambda instance: None)
        drain(r)
        refused: list[Unavailable] = []

        async def ask() -> None:
            with pytest.raises(Unavailable) as caught:
                await call(r, Say(text="hello"))
            refused.append(caught.value)

        callers.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        r.down(RESTED)
        r.router.state("speaker", ServiceState.STOPPED, "stopped on request", None)
    assert "stopped on request" in refused[0].failure.message


async def test_a_call_before_the_first_start_names_the_service_it_waits_for() -> None:
    async with rig(up=False) as r, trio.open_nursery() as callers:
        asked: list[str] = []
        r.router.wake_with(asked.append)
        callers.start_soon(call, r, Say(text="hello"))
        await trio.testing.wait_all_tasks_blocked()
        assert asked == ["speaker"]
        callers.cancel_scope.cancel()
