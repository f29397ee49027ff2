"""A pool is one service to its callers: calls are spread, and one process's death is made up for by the others."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kernel.router.generation import ServiceState
from kernel.router.ports import Cause, CauseKind
from proto.errors import MaybeExecuted, Quarantined, Unavailable
from tests.unit.router.ops import Say, Write
from tests.unit.router.rig import CRASHED, KILLED, call, rig

PAIR = ("speaker", "speaker-2")


async def test_calls_go_to_the_least_loaded_instance() -> None:
    async with rig(speakers=PAIR) as r, trio.open_nursery() as callers:
        r.hold = trio.Event()
        for n in range(6):
            callers.start_soon(call, r, Say(text=str(n)))
        await r.until(lambda: len(r.seen) == 6)
        lane = r.router.lane("speaker-2")
        assert lane is r.router.lane("speaker")
        assert [lane.instances[name].in_flight for name in PAIR] == [3, 3]
        r.hold.set()
    assert lane.instances["speaker"].in_flight == lane.instances["speaker-2"].in_flight == 0


async def test_a_pool_takes_as_many_calls_as_its_instances_together() -> None:
    async with rig(speakers=PAIR, in_flight=2) as r, trio.open_nursery() as callers:
        r.hold = trio.Event()
        for n in range(6):
            callers.start_soon(call, r, Say(text=str(n)))
        await r.until(lambda: len(r.seen) == 4)
        assert (r.router.lane("speaker").in_flight, r.router.lane("speaker").queued) == (4, 2)
        r.hold.set()
    assert len(r.seen) == 6


@pytest.mark.parametrize("cause", [KILLED, CRASHED])
async def test_an_idempotent_call_is_retried_on_another_instance_at_once(cause: Cause) -> None:
    async with rig(speakers=PAIR) as r, trio.open_nursery() as callers:
        r.hold = trio.Event()
        answers: list[str] = []

        async def ask() -> None:
            answers.append((await call(r, Say(text="once")))["text"])

        callers.start_soon(ask)
        await r.until(lambda: r.by == ["speaker"])
        r.down(cause, "speaker")
        await r.until(lambda: r.by == ["speaker", "speaker-2"])
        r.hold.set()
    assert answers == ["once"]
    assert r.router.lane("speaker").replays == 1


async def test_the_death_of_one_instance_leaves_the_calls_of_the_other_alone() -> None:
    async with rig(speakers=PAIR) as r, trio.open_nursery() as callers:
        r.hold = trio.Event()
        outcomes: list[object] = []

        async def write(text: str) -> None:
            try:
                outcomes.append((await call(r, Write(text=text)))["text"])
            except MaybeExecuted as error:
                outcomes.append(error.kind)

        callers.start_soon(write, "a")
        await r.until(lambda: r.by == ["speaker"])
        callers.start_soon(write, "b")
        await r.until(lambda: r.by == ["speaker", "speaker-2"])
        r.down(KILLED, "speaker")
        await r.up("speaker")
        r.hold.set()
    assert outcomes == [MaybeExecuted.kind, "b"]


async def test_a_request_that_kills_two_instances_is_quarantined_for_the_whole_pool() -> None:
    async with rig(speakers=("speaker", "speaker-2", "speaker-3")) as r:
        r.hold = trio.Event()
        refused: list[str] = []

        async def poison() -> None:
            with pytest.raises(Quarantined) as caught:
                await call(r, Say(text="poison"))
            refused.append(str(caught.value))

        async with trio.open_nursery() as callers:
            callers.start_soon(poison)
            await r.until(lambda: r.by == ["speaker"])
            r.down(CRASHED, "speaker")
            await r.until(lambda: r.by == ["speaker", "speaker-2"])
            r.down(CRASHED, "speaker-2")
        await poison()
        assert len(refused) == 2
        assert r.by == ["speaker", "speaker-2"]


async def test_a_pool_is_unavailable_only_when_none_of_its_instances_will_come() -> None:
    async with rig(speakers=PAIR, up=False) as r:
        r.router.state("speaker", ServiceState.FAILED, "a crash loop", trio.current_time() + 50)
        await r.up("speaker-2")
        assert (await call(r, Say(text="x")))["text"] == "x"
        r.down(Cause(CauseKind.STOPPED, None, "stopped"), "speaker-2")
        r.router.state("speaker-2", ServiceState.STOPPED, "by hand", None)
        with pytest.raises(Unavailable, match=r"service speaker is failed: a crash loop; .* in (50|49)") as caught:
            await call(r, Say(text="y"))
        assert (caught.value.failure.retry_after_ms or 0) > 40_000


async def test_an_instance_that_drains_gets_no_further_calls() -> None:
    async with rig(speakers=PAIR) as r:
        r.router.draining(r.generations["speaker"])
        for n in range(3):
            await call(r, Say(text=str(n)))
        assert r.by == ["speaker-2"] * 3


async def test_a_pool_with_bounds_grows_by_one_while_calls_wait_for_too_long(autojump_clock: MockClock) -> None:
    three = (*PAIR, "speaker-3")
    async with rig(speakers=three, up=False, grow_after_s=1.0, in_flight=2) as r, trio.open_nursery() as callers:
        woken: list[tuple[str, float]] = []

        def wake(instance: str) -> None:
            woken.append((instance, trio.current_time()))
            r.router.state(instance, ServiceState.STARTING, "", None)
            r.nursery.start_soon(r.up, instance)

        r.router.wake_with(wake)
        await r.up("speaker")
        for name in three[1:]:
            r.router.state(name, ServiceState.RESTING, "rests", None)
        r.hold = trio.Event()
        # A call that is slow by itself is not one that waits.
        callers.start_soon(call, r, Say(text="slow"))
        await trio.sleep(2)
        begun = trio.current_time()
        callers.start_soon(call, r, Say(text="second"))
        await trio.sleep(0.9)
        assert woken == []
        await trio.sleep(0.2)
        assert woken == [("speaker-2", begun + 1)]
        await trio.sleep(2)
        # One for each process.
        assert len(woken) == 1
        for n in range(3):
            callers.start_soon(call, r, Say(text=str(n)))
        await trio.sleep(3)
        assert [name for name, _ in woken] == ["speaker-2", "speaker-3"]
        r.hold.set()


async def test_a_short_rush_does_not_grow_a_pool_with_bounds(autojump_clock: MockClock) -> None:
    async with rig(speakers=PAIR, up=False, grow_after_s=1.0) as r:
        woken: list[str] = []
        r.router.wake_with(woken.append)
        await r.up("speaker")
        r.router.state("speaker-2", ServiceState.RESTING, "rests", None)
        for _ in range(5):
            r.hold = trio.Event()
            async with trio.open_nursery() as callers:
                for n in range(4):
                    callers.start_soon(call, r, Say(text=str(n)))
                await trio.sleep(0.5)
                r.hold.set()
        assert woken == []
