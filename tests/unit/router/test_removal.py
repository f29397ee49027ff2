"""Services that are added and removed while calls are made, and calls that wait for one that does not start."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kernel.router.generation import Limits, ServiceState
from proto.errors import Executed, LinckiaError, MaybeExecuted, Unavailable
from proto.operation import Params
from tests.unit.router.ops import Relay, Said, Say, Write
from tests.unit.router.rig import CRASHED, Rig, call, rig

WHY = "the server speaker was removed"


async def failures(r: Rig, *calls: Params[Said], in_flight: int = 0) -> list[LinckiaError]:
    """Make these calls, remove the service once `in_flight` of them run and the others wait; return how they fail,
    in the order of the calls."""
    found: dict[int, LinckiaError] = {}

    async def make(number: int, params: Params[Said]) -> None:
        with pytest.raises(LinckiaError) as caught:
            await call(r, params)
        found[number] = caught.value

    async with trio.open_nursery() as callers:
        for number, params in enumerate(calls):
            callers.start_soon(make, number, params)
            await wait_all_tasks_blocked()
        await r.until(lambda: len(r.seen) == in_flight)
        r.router.remove("speaker", WHY)
        await wait_all_tasks_blocked()
        waiting = [number for number in range(len(calls)) if number not in found]
        if waiting:
            r.router.draining(r.generations["speaker"])
            r.down(CRASHED)
    return [found[number] for number in range(len(calls))]


async def test_calls_that_wait_fail_at_once_when_their_service_is_removed() -> None:
    async with rig(up=False) as r:
        (error,) = await failures(r, Say(text="hello"))
        assert isinstance(error, Unavailable)
        assert (str(error), error.failure.executed) == (WHY, Executed.NO)


async def test_calls_in_flight_when_the_removed_service_dies_are_not_repeated() -> None:
    async with rig() as r:
        r.hold = trio.Event()
        read, written = await failures(r, Say(text="read"), Write(text="written"), in_flight=2)
        assert isinstance(read, Unavailable)
        assert str(read) == WHY
        assert isinstance(written, MaybeExecuted)
        assert r.seen == ["read", "written"]


async def test_calls_in_flight_may_finish() -> None:
    async with rig() as r, trio.open_nursery() as callers:
        r.hold = trio.Event()
        replies: list[object] = []

        async def say() -> None:
            replies.append((await call(r, Say(text="hello")))["text"])

        callers.start_soon(say)
        await wait_all_tasks_blocked()
        r.router.remove("speaker", WHY)
        r.hold.set()
        await r.until(lambda: bool(r.seen))
        await wait_all_tasks_blocked()
        assert replies == ["hello"]


async def test_later_calls_fail_with_the_same_reason_whether_the_process_still_exists_or_not() -> None:
    async with rig() as r:
        r.router.remove("speaker", WHY)
        with pytest.raises(Unavailable, match=WHY):
            await call(r, Say(text="hello"))
        r.down(CRASHED)
        r.router.gone("speaker")
        assert "speaker" not in r.router.lanes
        with pytest.raises(Unavailable, match=WHY):
            await call(r, Say(text="hello"))
        await r.up("relay")
        with pytest.raises(Unavailable, match=WHY):
            await call(r, Relay(text="hello"))


async def test_a_service_that_is_added_is_called() -> None:
    async with rig(up=False) as r:
        r.router.remove("speaker", WHY)
        r.router.gone("speaker")
        r.router.add("speaker", Limits(1, 1))
        await r.up()
        assert (await call(r, Say(text="hello")))["text"] == "hello"


async def test_a_service_added_again_while_it_still_ends_keeps_its_lane() -> None:
    async with rig() as r:
        r.router.remove("speaker", WHY)
        r.router.add("speaker", Limits(1, 1))
        r.down(CRASHED)
        r.router.gone("speaker")
        await r.up()
        assert (await call(r, Say(text="hello")))["generation"] == 2


async def test_a_removed_service_is_not_woken() -> None:
    async with rig() as r:
        woken: list[str] = []
        r.router.wake_with(woken.append)
        r.router.remove("speaker", WHY)
        r.down(CRASHED)
        r.router.state("speaker", ServiceState.RESTING, "rests", None)
        with pytest.raises(Unavailable):
            await call(r, Say(text="hello"))
        assert woken == []


async def test_a_call_waits_for_a_start_only_so_long(autojump_clock: MockClock) -> None:
    async with rig(up=False, wait_s=3) as r:
        r.router.state("speaker", ServiceState.STARTING, "", None)
        begun = trio.current_time()
        with pytest.raises(Unavailable, match="service speaker was not ready within 3 s") as caught:
            await call(r, Say(text="hello"), timeout_s=1000)
        assert trio.current_time() - begun == 3
        assert caught.value.failure.executed is Executed.NO
        # A service that is ready may take as long as the caller waits.
        await r.up()
        r.hold = trio.Event()
        with trio.move_on_after(10) as patience:
            await call(r, Say(text="hello"), timeout_s=1000)
        assert patience.cancelled_caught


async def test_a_call_that_is_sent_in_time_is_not_affected(autojump_clock: MockClock) -> None:
    async with rig(up=False, wait_s=3) as r, trio.open_nursery() as callers:
        r.hold = trio.Event()
        replies: list[object] = []

        async def say() -> None:
            replies.append((await call(r, Say(text="hello"), timeout_s=1000))["text"])

        callers.start_soon(say)
        await trio.sleep(2)
        await r.up()
        await trio.sleep(100)
        r.hold.set()
    assert replies == ["hello"]
