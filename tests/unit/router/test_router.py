"""What the router promises its callers, with real service loops and trio's mock clock."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from msgspec import Raw

from kernel.router.generation import RoutedCall, ServiceState
from kernel.router.ports import Cause, CauseKind
from proto.errors import (
    Cancelled,
    Executed,
    Forbidden,
    Internal,
    LinckiaError,
    MaybeExecuted,
    OperationError,
    Overloaded,
    Quarantined,
    Timeout,
    Unavailable,
)
from proto.operation import operation_of
from proto.origin import Origin
from proto.wire import frames
from proto.wire.frames import Fault
from tests.unit.router.ops import Put, Relay, Say, Secret, Write
from tests.unit.router.rig import CRASHED, call, rig


async def test_call_reaches_its_handler_and_comes_back() -> None:
    async with rig() as r:
        assert await call(r, Say(text="hello")) == {"text": "hello", "generation": 1, "caller": "client"}


async def test_an_operation_s_own_failure_arrives_unchanged() -> None:
    async with rig() as r:
        with pytest.raises(OperationError, match="it failed") as caught:
            await call(r, Say(text="fail"))
        assert caught.value.failure.field == "text"


@pytest.mark.parametrize("kind", [Internal, Timeout, Cancelled, MaybeExecuted, Quarantined])
async def test_failure_of_a_read_never_says_that_it_may_have_been_done(kind: type[LinckiaError]) -> None:
    async with rig() as r:
        lane = r.router.lane("speaker")
        for params, executed in ((Say(text="wait"), Executed.NO), (Write(text="wait"), Executed.MAYBE)):
            outcomes: list[bytes | LinckiaError] = []
            routed = RoutedCall(
                op=operation_of(params), params=frames.pack_body(params), origin=Origin("client"),
                deadline=trio.current_time() + 10, limit_s=10, done=outcomes.append,
            )  # fmt: skip
            lane.submit(routed)
            lane.frame(r.generations["speaker"], Fault(routed.frame_id, kind("it failed").failure))
            assert [outcome.failure.executed for outcome in outcomes if isinstance(outcome, kind)] == [executed]


async def test_a_result_written_as_json_is_passed_on_unchanged_to_callers_that_accept_it() -> None:
    async with rig() as r:
        as_written = await call(r, Say(text="written"), written=True)
        assert isinstance(as_written, Raw)
        assert bytes(as_written) == b'{"text":"written","generation":1,"caller":"client"}'
        assert await call(r, Say(text="written")) == {"text": "written", "generation": 1, "caller": "client"}
        # Another service gets the result that the operation declares.
        await r.up("relay")
        assert (await call(r, Relay(text="written")))["text"] == "written"
        # Callers that accept JSON also accept other results.
        assert (await call(r, Say(text="said"), written=True))["text"] == "said"


async def test_json_that_would_break_a_message_in_lines_is_refused() -> None:
    async with rig() as r:
        with pytest.raises(Internal, match=r"service speaker returned an invalid result: .* several lines"):
            await call(r, Say(text="written on lines"), written=True)


async def test_progress_reaches_the_caller() -> None:
    class Heard:
        def __init__(self) -> None:
            self.progressed: list[tuple[float, float | None, str | None]] = []

        def progress(self, done: float, total: float | None, message: str | None) -> None:
            self.progressed.append((done, total, message))

        def log(self, level: str, logger: str, message: str) -> None:
            raise AssertionError("nothing was logged")

        async def ask(self, question: bytes) -> bytes:
            raise AssertionError("nothing was asked")

    heard = Heard()
    async with rig() as r:
        await call(r, Say(text="x"), client_requests=heard)
    assert heard.progressed == [(1, 2, "half")]


async def test_service_calls_service_with_its_own_name_and_asks_the_client_of_the_outer_call() -> None:
    class Asked:
        def progress(self, done: float, total: float | None, message: str | None) -> None: ...

        def log(self, level: str, logger: str, message: str) -> None: ...

        async def ask(self, question: bytes) -> bytes:
            asked = frames.read_body(question, frames.Question)
            return frames.pack_body({"content": f"{asked.method}: {asked.params['message']}"})

    async with rig() as r:
        await r.up("relay")
        assert (await call(r, Relay(text="on")))["caller"] == "relay"
        assert (await call(r, Relay(text="secret")))["text"] == "secret"
        assert (await call(r, Relay(text="ask"), client_requests=Asked()))["text"] == "elicitation/create: well?"
        with pytest.raises(Unavailable, match="not made by a client"):
            await call(r, Relay(text="ask"))


async def test_service_is_in_use_by_clients_calls_alone_and_as_long_as_they_last() -> None:
    async with rig() as r:
        await r.up("relay")
        used = r.router.was_used
        assert not used("speaker")
        await call(r, Say(text="mine"))
        assert used("speaker")
        assert not used("speaker")
        assert r.of_its_own is not None
        await r.of_its_own(Say(text="nobody waits for it"))
        assert not used("speaker")
        r.hold = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, r, Relay(text="through another"))
            await r.until(lambda: "through another" in r.seen)
            assert [(used("relay"), used("speaker")) for _ in range(2)] == [(True, True)] * 2
            r.hold.set()
        assert not used("speaker")


async def test_operation_refuses_a_caller_that_it_does_not_admit() -> None:
    async with rig() as r:
        with pytest.raises(Forbidden):
            await call(r, Secret(text="x"))
        assert r.seen == []


async def test_idempotent_call_is_retried_on_the_next_generation() -> None:
    async with rig() as r, trio.open_nursery() as nursery:
        r.hold = trio.Event()
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await call(r, Say(text="again")))

        nursery.start_soon(ask)
        await r.until(lambda: r.seen == ["again"])
        r.down(CRASHED)
        r.hold.set()
        await r.up()
        await trio.testing.wait_all_tasks_blocked()
        assert answers == [{"text": "again", "generation": 2, "caller": "client"}]


async def test_refusal_of_a_write_that_was_sent_again_says_nothing_of_the_first_time() -> None:
    async with rig() as r, trio.open_nursery() as nursery:
        r.hold = trio.Event()
        executed: dict[str, Executed] = {}

        async def ask(params: Say | Put) -> None:
            with pytest.raises(OperationError) as caught:
                await call(r, params)
            executed[type(params).__name__] = caught.value.failure.executed

        nursery.start_soon(ask, Say(text="fail"))
        nursery.start_soon(ask, Put(text="fail"))
        await r.until(lambda: r.seen == ["fail", "fail"])
        r.down()
        r.hold.set()
        await r.up()
        await trio.testing.wait_all_tasks_blocked()
        assert executed == {"Say": Executed.NO, "Put": Executed.MAYBE}
        with pytest.raises(OperationError) as at_once:
            await call(r, Put(text="fail"))
        assert at_once.value.failure.executed is Executed.NO


async def test_call_that_may_not_be_repeated_says_that_it_may_have_been_done() -> None:
    async with rig() as r, trio.open_nursery() as nursery:
        r.hold = trio.Event()

        async def ask() -> None:
            with pytest.raises(MaybeExecuted) as caught:
                await call(r, Write(text="once"))
            assert caught.value.failure.executed is Executed.MAYBE

        nursery.start_soon(ask)
        await r.until(lambda: r.seen == ["once"])
        r.down()
        await r.up()
        await trio.testing.wait_all_tasks_blocked()
        assert r.seen == ["once"]


async def test_idempotent_call_that_names_the_state_it_was_meant_for_is_not_repeated() -> None:
    async with rig() as r, trio.open_nursery() as nursery:
        r.hold = trio.Event()
        answers: list[Any] = []

        async def guarded() -> None:
            with pytest.raises(MaybeExecuted):
                await call(r, Put(text="guarded", if_match="abc"))

        async def plain() -> None:
            answers.append((await call(r, Put(text="plain")))["generation"])

        nursery.start_soon(guarded)
        nursery.start_soon(plain)
        await r.until(lambda: sorted(r.seen) == ["guarded", "plain"])
        r.down()
        r.hold.set()
        await r.up()
        await trio.testing.wait_all_tasks_blocked()
        assert answers == [2]


async def test_calls_of_a_service_that_ends_by_itself_are_for_the_next_generation() -> None:
    async with rig() as r, trio.open_nursery() as nursery:
        r.hold = trio.Event()
        answers: dict[str, Any] = {}

        async def ask(params: Say | Write) -> None:
            try:
                answers[params.text] = (await call(r, params))["generation"]
            except Unavailable as error:
                answers[params.text] = error.failure.executed

        nursery.start_soon(ask, Say(text="begun"))
        nursery.start_soon(ask, Write(text="may not be repeated"))
        await r.until(lambda: len(r.seen) == 2)
        r.drain()
        # The router has not heard of it.
        nursery.start_soon(ask, Write(text="came later"))
        await trio.testing.wait_all_tasks_blocked()
        assert answers == {"may not be repeated": Executed.MAYBE}
        r.down()
        r.hold.set()
        await r.up()
        await trio.testing.wait_all_tasks_blocked()
        assert answers == {"may not be repeated": Executed.MAYBE, "begun": 2, "came later": 2}


async def test_call_made_while_the_service_is_down_waits_for_the_next_generation() -> None:
    async with rig() as r, trio.open_nursery() as nursery:
        r.down()
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await call(r, Write(text="later")))

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        await r.up()
        await trio.testing.wait_all_tasks_blocked()
        assert [a["generation"] for a in answers] == [2]


async def test_past_the_queue_calls_are_refused_as_overloaded(autojump_clock: trio.testing.MockClock) -> None:
    async with rig(in_flight=2, queue=3) as r, trio.open_nursery() as nursery:
        r.hold = trio.Event()
        done: list[str] = []

        async def ask(text: str) -> None:
            done.append((await call(r, Say(text=text)))["text"])

        for n in range(5):
            nursery.start_soon(ask, str(n))
        await trio.testing.wait_all_tasks_blocked()
        assert (r.router.lane("speaker").in_flight, r.router.lane("speaker").queued) == (2, 3)
        with pytest.raises(Overloaded) as caught:
            await call(r, Say(text="6"))
        assert caught.value.failure.retry_after_ms
        r.hold.set()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(done) == ["0", "1", "2", "3", "4"]


async def test_cancelling_the_caller_stops_the_handler_and_frees_its_place() -> None:
    async with rig(in_flight=1) as r:
        r.hold = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, r, Say(text="unwanted"))
            await r.until(lambda: r.seen == ["unwanted"])
            nursery.cancel_scope.cancel()
        await r.until(lambda: r.stopped == ["unwanted"])
        r.hold.set()
        assert (await call(r, Say(text="next")))["text"] == "next"


async def test_a_deadline_stops_the_handler_and_is_reported(autojump_clock: trio.testing.MockClock) -> None:
    async with rig() as r:
        r.hold = trio.Event()
        with pytest.raises(Timeout) as caught:
            await call(r, Write(text="slow"), timeout_s=3)
        assert caught.value.failure.executed is Executed.MAYBE
        await r.until(lambda: r.stopped == ["slow"])


async def test_an_undelivered_call_is_reported_as_not_executed(autojump_clock: trio.testing.MockClock) -> None:
    async with rig(up=False) as r:
        with pytest.raises(Timeout) as caught:
            await call(r, Write(text="x"), timeout_s=3)
        assert caught.value.failure.executed is Executed.NO


async def test_failed_service_refuses_at_once_with_the_cause_and_the_next_try(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with rig(up=False) as r, trio.open_nursery() as nursery:

        async def waiting() -> None:
            with pytest.raises(Unavailable, match="exit code 1"):
                await call(r, Say(text="waiting"))

        nursery.start_soon(waiting)
        await trio.testing.wait_all_tasks_blocked()
        r.router.state("speaker", ServiceState.FAILED, "exit code 1, five times", trio.current_time() + 30)
        before = trio.current_time()
        with pytest.raises(Unavailable, match="exit code 1") as caught:
            await call(r, Say(text="x"))
        assert trio.current_time() == before
        assert caught.value.failure.retry_after_ms == pytest.approx(30_000, abs=100)


async def test_calls_of_a_dead_service_are_withdrawn_from_those_it_called() -> None:
    async with rig() as r, trio.open_nursery() as nursery:
        await r.up("relay")
        r.hold = trio.Event()

        async def ask() -> None:
            with pytest.raises(Unavailable):
                await call(r, Relay(text="orphan"))

        nursery.start_soon(ask)
        await r.until(lambda: r.seen == ["orphan"])
        r.down(Cause(CauseKind.EXIT, 1), "relay")
        await r.until(lambda: r.stopped == ["orphan"])
        r.router.state("relay", ServiceState.STOPPED, "stopped by hand", None)
