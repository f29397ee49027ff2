"""A call whose client has been answered, or is gone, is over: nothing of it happens afterwards unseen."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kernel.router.leaving import OVER_S
from proto.errors import Executed, InvalidParams, LinckiaError, OperationError, Timeout
from proto.grants import Grant
from proto.origin import Origin
from proto.wire import frames
from services.runtime.dispatch import Outlasting
from tests.unit.router.ops import Say, Write
from tests.unit.router.rig import Rig, call, rig


async def withdrawn(r: Rig, text: str) -> None:
    """Make a write whose client withdraws it, and whose handler does not end yet."""
    r.hold, r.lingering = trio.Event(), trio.Event()
    await r.up("relay")
    scope = trio.CancelScope()

    async def write() -> None:
        with scope:
            await r.outgoing["relay"].raw("test.write", body(text), Origin("client"), limit_s=10)

    r.nursery.start_soon(write)
    await r.until(lambda: text in r.seen)
    scope.cancel()
    await r.until(lambda: text in r.stopped)
    r.hold.set()


def body(text: str) -> bytes:
    return frames.pack_body(Write(text=text))


async def test_a_late_write_is_answered_when_its_handler_has_ended(autojump_clock: trio.testing.MockClock) -> None:
    async with rig() as r:
        r.hold, r.lingering = trio.Event(), trio.Event()
        answered: list[Executed] = []

        async def ask() -> None:
            with pytest.raises(Timeout) as caught:
                await call(r, Write(text="late"), timeout_s=1)
            answered.append(caught.value.failure.executed)

        r.nursery.start_soon(ask)
        await r.until(lambda: "late" in r.stopped)
        await trio.testing.wait_all_tasks_blocked()
        assert answered == []
        r.lingering.set()
        await trio.testing.wait_all_tasks_blocked()
        assert answered == [Executed.MAYBE]


async def test_a_late_write_of_a_service_is_answered_when_its_handler_has_ended(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with rig(fronts=("relay",)) as r:
        r.hold, r.lingering = trio.Event(), trio.Event()
        await r.up("relay")
        ended = trio.Event()

        async def ask() -> None:
            with pytest.raises(Timeout):
                await r.outgoing["relay"].raw("test.write", body("late"), Origin("client"), limit_s=0.05)
            ended.set()

        r.nursery.start_soon(ask)
        await r.until(lambda: "late" in r.stopped)
        await trio.testing.wait_all_tasks_blocked()
        assert not ended.is_set()
        r.lingering.set()
        await ended.wait()


async def test_a_late_write_that_does_not_end_is_answered_anyway(autojump_clock: trio.testing.MockClock) -> None:
    async with rig() as r:
        r.hold, r.lingering = trio.Event(), trio.Event()
        began = trio.current_time()
        with pytest.raises(Timeout):
            await call(r, Write(text="late"), timeout_s=1)
        assert trio.current_time() - began == pytest.approx(1 + OVER_S)


async def test_a_late_read_is_answered_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with rig() as r:
        r.hold, r.lingering = trio.Event(), trio.Event()
        began = trio.current_time()
        with pytest.raises(Timeout):
            await call(r, Say(text="late"), timeout_s=1)
        assert trio.current_time() - began == pytest.approx(1)


async def test_the_next_call_of_a_client_waits_for_the_end_of_one_that_it_withdrew(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with rig(fronts=("relay",)) as r:
        await withdrawn(r, "first")
        looked = trio.Event()

        async def look() -> None:
            await call(r, Say(text="look"))
            looked.set()

        r.nursery.start_soon(look)
        await trio.testing.wait_all_tasks_blocked()
        assert "look" not in r.seen
        grant = Grant("another")
        await r.outgoing["relay"].raw("test.write", body("other"), Origin("client", grant=grant), limit_s=5)
        assert "look" not in r.seen
        r.lingering.set()
        await looked.wait()
        assert r.seen == ["first", "other", "look"]


async def test_the_next_call_of_a_client_waits_after_the_death_of_its_front(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with rig(fronts=("relay",)) as r:
        r.hold, r.lingering = trio.Event(), trio.Event()
        await r.up("relay")

        async def write() -> None:
            with pytest.raises((LinckiaError, trio.Cancelled)):
                await r.outgoing["relay"].raw("test.write", body("first"), Origin("client"), limit_s=10)

        r.nursery.start_soon(write)
        await r.until(lambda: "first" in r.seen)
        r.down(service="relay")
        await r.until(lambda: "first" in r.stopped)
        r.hold.set()
        looked = trio.Event()

        async def look() -> None:
            await call(r, Say(text="look"))
            looked.set()

        r.nursery.start_soon(look)
        await trio.testing.wait_all_tasks_blocked()
        assert "look" not in r.seen
        r.lingering.set()
        await looked.wait()


async def test_a_cancelled_caller_within_the_system_waits_for_the_end_of_its_write(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with rig() as r:
        r.hold, r.lingering = trio.Event(), trio.Event()
        await r.up("relay")
        scope, ended = trio.CancelScope(), trio.Event()
        write = r.outgoing["relay"].raw("test.put", body("put"), Origin("relay"), limit_s=10, changes=True)

        async def relay() -> None:
            with scope:
                await write
            ended.set()

        r.nursery.start_soon(relay)
        await r.until(lambda: "put" in r.seen)
        scope.cancel()
        await r.until(lambda: "put" in r.stopped)
        await trio.testing.wait_all_tasks_blocked()
        assert not ended.is_set()
        r.lingering.set()
        await ended.wait()


class Long:
    """A long call of a front that a task takes over."""

    def __init__(self, r: Rig) -> None:
        self.r = r
        self.name = ""
        self.outcomes: list[bytes | LinckiaError] = []
        self.answers: list[bytes | LinckiaError] = []
        self.scope = trio.CancelScope()
        self.answered, self.ended = trio.Event(), trio.Event()
        self.wanted = False

    async def make(self) -> None:
        long = Outlasting(0.01, self.hand_over)
        try:
            self.answers.append(
                await self.r.outgoing["relay"].raw(
                    "test.write", body("long"), Origin("client"), limit_s=60, outlasting=long
                )
            )
        except LinckiaError as error:
            self.answers.append(error)
        self.answered.set()

    async def hand_over(self, number: int) -> None:
        self.name = self.r.router.taken_over.name(self.r.generations["relay"], number)
        self.r.nursery.start_soon(self.take_over)
        await trio.testing.wait_all_tasks_blocked()

    async def take_over(self) -> None:
        with self.scope:
            try:
                self.outcomes.append(
                    await self.r.router.taken_over.outcome(self.name, "t1", None, is_wanted=lambda: self.wanted)
                )
            except LinckiaError as error:
                self.outcomes.append(error)
            self.ended.set()


async def long_call(r: Rig) -> Long:
    r.hold = trio.Event()
    await r.up("relay")
    made = Long(r)
    r.nursery.start_soon(made.make)
    await r.until(lambda: "long" in r.seen)
    await made.answered.wait()
    return made


async def test_a_call_that_is_taken_over_continues_and_its_client_gets_the_task(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with rig(fronts=("relay",)) as r:
        long = await long_call(r)
        (error,) = long.answers
        assert isinstance(error, OperationError)
        assert error.failure.data == {"task": "t1"}
        assert error.failure.executed is Executed.MAYBE
        r.down(service="relay")
        assert long.outcomes == []
        r.hold.set()
        await long.ended.wait()
        (outcome,) = long.outcomes
        assert isinstance(outcome, bytes)
        assert r.seen == ["long"]


async def test_a_call_that_was_taken_over_is_withdrawn_with_its_task(autojump_clock: trio.testing.MockClock) -> None:
    async with rig(fronts=("relay",)) as r:
        long = await long_call(r)
        long.scope.cancel()
        await r.until(lambda: "long" in r.stopped)


async def test_a_call_is_taken_over_again_after_the_death_of_who_took_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with rig(fronts=("relay",)) as r:
        long = await long_call(r)
        long.wanted = True
        long.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert r.stopped == []
        long.scope = trio.CancelScope()
        r.nursery.start_soon(long.take_over)
        r.hold.set()
        await long.ended.wait()
        assert isinstance(long.outcomes[0], bytes)


async def test_a_call_that_has_ended_is_not_taken_over(autojump_clock: trio.testing.MockClock) -> None:
    async with rig(fronts=("relay",)) as r:
        long = await long_call(r)
        r.hold.set()
        await long.ended.wait()
        with pytest.raises(InvalidParams, match="has ended"):
            await r.router.taken_over.outcome(long.name, "t2", None, is_wanted=lambda: False)
        with pytest.raises(InvalidParams, match="has ended"):
            r.router.taken_over.name(r.generations["relay"], 1)
