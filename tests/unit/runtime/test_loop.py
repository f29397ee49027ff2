"""What the loop of a service promises the kernel, over an in-memory link and trio's mock clock."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec
import pytest
import trio
import trio.testing

from proto.errors import Executed, Kind, OperationError
from proto.operation import Access, Params, operation
from proto.origin import Origin
from proto.wire import frames
from proto.wire.channel import Channel, LinkClosed
from proto.wire.frames import (
    AnyFrame,
    Bye,
    ByeAck,
    Call,
    Cancel,
    Drain,
    Fault,
    Hello,
    Part,
    Ping,
    Pong,
    Ready,
    Return,
    Unfinished,
)
from proto.wire.launch import LaunchConfig
from services.runtime.handlers import BACKGROUND_S, Context, Environment, Handlers, OpenService
from services.runtime.loop import ServiceLoop
from tests.fuzz.frames.hostile import BROKEN_TEXT, DEEP
from tests.memory_link import memory_link

F = TypeVar("F")

TRACE = frames.new_trace()


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """A number."""

    n: int


@operation("loop.wait", service="waiter", access=Access.READ, idempotent=True, deadline_s=10)
class Wait(Params[Number], frozen=True, kw_only=True):
    """Wait for the given number of seconds."""

    seconds: float


class Waiter:
    """A service that waits; what happened to it is kept in `events`."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.in_background_at: float | None = None
        self.fail_in_background = trio.Event()

    @contextlib.asynccontextmanager
    async def open(self, env: Environment) -> AsyncIterator[Handlers]:
        handlers = Handlers()
        env.info(colour="blue")
        self.env = env

        async def background() -> None:
            await self.fail_in_background.wait()
            raise RuntimeError("background task failed")

        async def late() -> None:
            await env.after_the_rush()
            self.in_background_at = trio.current_time()

        env.background.start_soon(background)
        env.background.start_soon(late)

        @handlers.handle(Wait)
        async def wait(params: Wait, ctx: Context) -> Number:
            if params.seconds == -1:
                raise ZeroDivisionError
            if params.seconds < 0:
                try:
                    raise OSError(-int(params.seconds), "cannot be opened")
                except OSError as error:
                    raise OperationError(f"a file {error.strerror}") from None
            try:
                await trio.sleep(params.seconds)
            except trio.Cancelled:
                self.events.append("cancelled")
                raise
            return Number(n=1)

        yield handlers
        self.events.append("closed")


class Line:
    """The kernel's end."""

    def __init__(
        self, nursery: trio.Nursery, open_service: OpenService, operations: tuple[str, ...], generation: int
    ) -> None:
        ours, theirs = memory_link()
        launch = LaunchConfig(
            service="waiter", module="", generation=generation, operations=operations, parent_pid=0, data_dir="/",
            roots=(),
        )  # fmt: skip
        self.generation = generation
        self.link = ours
        self.channel = Channel(ours)
        self.ended = trio.Event()
        self.error: BaseException | None = None

        async def serve() -> None:
            try:
                await ServiceLoop(launch, theirs).run(open_service)
            except BaseException as error:
                self.error = error
                if isinstance(error, trio.Cancelled):
                    raise
            finally:
                theirs.close()
                self.ended.set()

        nursery.start_soon(serve)

    def call(self, call_id: int, seconds: float, *, left_ms: int = 60_000) -> None:
        body = frames.pack_body(Wait(seconds=seconds))
        self.channel.post(Call(call_id, "loop.wait", body, left_ms, Origin("client", trace=TRACE), 3))

    async def expect(self, kind: type[F]) -> F:
        frame: AnyFrame = await self.channel.receive()
        assert isinstance(frame, kind), frame
        return frame

    async def begin(self) -> None:
        hello = await self.expect(Hello)
        assert (hello.protocol, hello.service, hello.generation) == (frames.PROTOCOL, "waiter", self.generation)
        assert (await self.expect(Ready)).info == {"colour": "blue"}


@contextlib.asynccontextmanager
async def line(
    waiter: Waiter, operations: tuple[str, ...] = ("loop.wait",), *, generation: int = 3
) -> AsyncIterator[Line]:
    async with trio.open_nursery() as nursery:
        yield Line(nursery, waiter.open, operations, generation)
        nursery.cancel_scope.cancel()


async def test_drain_finishes_calls_in_flight_refuses_new_ones_and_says_bye(
    autojump_clock: trio.testing.MockClock,
) -> None:
    waiter = Waiter()
    async with line(waiter) as kernel:
        await kernel.begin()
        kernel.call(1, 2.0)
        kernel.channel.post(Drain(5000))
        kernel.call(2, 0.0)
        refused = await kernel.expect(Unfinished)
        assert (refused.id, refused.begun, refused.failure.kind) == (2, False, Kind.UNAVAILABLE)
        assert (await kernel.expect(Return)).id == 1
        await kernel.expect(Bye)
        assert waiter.events == ["closed"]
        kernel.channel.post(ByeAck())
        await kernel.ended.wait()
        assert kernel.error is None


async def test_a_service_out_of_descriptors_ends_and_leaves_its_calls_to_the_next_generation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    waiter = Waiter()
    async with line(waiter) as kernel:
        await kernel.begin()
        kernel.call(1, -errno.ENOENT)
        assert (await kernel.expect(Fault)).failure.kind is Kind.OPERATION
        kernel.call(2, 0.5)
        kernel.call(3, -errno.EMFILE)
        starved = await kernel.expect(Unfinished)
        assert (starved.id, starved.begun, starved.failure.message) == (3, True, "a file cannot be opened")
        assert (await kernel.expect(Return)).id == 2
        await kernel.expect(Bye)
        assert waiter.events == ["closed"]


async def test_drain_past_its_time_answers_what_it_cuts_short(autojump_clock: trio.testing.MockClock) -> None:
    waiter = Waiter()
    async with line(waiter) as kernel:
        await kernel.begin()
        kernel.call(1, 100.0)
        kernel.channel.post(Drain(500))
        cut = await kernel.expect(Unfinished)
        assert (cut.begun, cut.failure.kind, cut.failure.executed) == (True, Kind.UNAVAILABLE, Executed.NO)
        await kernel.expect(Bye)
        assert waiter.events == ["cancelled", "closed"]


async def test_cancel_stops_the_handler_and_is_answered(autojump_clock: trio.testing.MockClock) -> None:
    waiter = Waiter()
    async with line(waiter) as kernel:
        await kernel.begin()
        kernel.call(1, 100.0)
        kernel.channel.post(Cancel(1))
        assert (await kernel.expect(Fault)).failure.kind is Kind.CANCELLED
        assert waiter.events == ["cancelled"]


async def test_time_left_ends_the_handler(autojump_clock: trio.testing.MockClock) -> None:
    async with line(Waiter()) as kernel:
        await kernel.begin()
        kernel.call(1, 100.0, left_ms=300)
        assert (await kernel.expect(Fault)).failure.kind is Kind.TIMEOUT
        assert trio.current_time() < 50


async def test_defect_in_a_handler_is_reported_without_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with line(Waiter()) as kernel:
        await kernel.begin()
        kernel.call(1, -1)
        failure = (await kernel.expect(Fault)).failure
        assert failure.kind is Kind.INTERNAL
        assert "Traceback" not in failure.message
        assert "ZeroDivisionError" not in failure.message
        assert TRACE in failure.message
        assert "ZeroDivisionError" in caplog.text
        kernel.call(2, 0)
        assert (await kernel.expect(Return)).id == 2


async def test_failure_of_a_read_never_says_that_it_may_have_been_done(autojump_clock: trio.testing.MockClock) -> None:
    async with line(Waiter()) as kernel:
        await kernel.begin()
        kernel.call(1, -1)
        kernel.call(2, 100.0, left_ms=300)
        kernel.call(3, 100.0)
        kernel.channel.post(Cancel(3))
        failures = [(await kernel.expect(Fault)).failure for _ in range(3)]
        assert {failure.kind for failure in failures} == {Kind.INTERNAL, Kind.TIMEOUT, Kind.CANCELLED}
        assert {failure.executed for failure in failures} == {Executed.NO}


async def test_ping_is_answered_while_calls_run() -> None:
    async with line(Waiter()) as kernel:
        await kernel.begin()
        kernel.call(1, 1000)
        kernel.channel.post(Ping(9))
        pong = await kernel.expect(Pong)
        assert (pong.n, pong.in_flight, pong.info) == (9, 1, {"colour": "blue"})


async def test_what_status_shows_is_sent_without_a_ping_once_it_has_changed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    waiter = Waiter()
    async with line(waiter) as kernel:
        await kernel.begin()
        waiter.env.info(colour="blue")
        await trio.sleep(60)
        for colour in ("red", "green"):
            waiter.env.info(colour=colour)
            with trio.fail_after(2):
                pong = await kernel.expect(Pong)
            assert (pong.n, pong.info) == (0, {"colour": colour})
        waiter.env.info(colour="white")
        kernel.channel.post(Ping(1))
        assert (await kernel.expect(Pong)).n == 1
        with trio.move_on_after(60):
            pytest.fail(f"sent twice: {await kernel.channel.receive()}")


async def test_parts_of_a_large_body_are_answered_like_a_ping_now_and_then(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with line(Waiter()) as kernel:
        await kernel.begin()
        await trio.sleep(60)
        call = Call(1, "loop.wait", b"", 60_000, Origin("client", trace=TRACE), 3)
        kernel.link.try_send(frames.encode(Part(1, False, frames.encode(call))))
        for _ in range(3):
            for _ in range(4):
                await trio.sleep(0.3)
                kernel.link.try_send(frames.encode(Part(1, False, bytes(frames.PART_BYTES))))
            with trio.fail_after(1):
                assert (await kernel.expect(Pong)).n == 0
        with trio.move_on_after(60):
            pytest.fail(f"sent more: {await kernel.channel.receive()}")


async def test_invalid_parameters_are_refused() -> None:
    async with line(Waiter()) as kernel:
        await kernel.begin()
        # Those of another service may be anything.
        for wrong in (frames.pack_body({"seconds": "x"}), BROKEN_TEXT, b"\x81\xa1x" + DEEP[:900] + b"\xc0"):
            kernel.channel.post(Call(1, "loop.wait", wrong, 1000, Origin("client"), 3))
            assert (await kernel.expect(Fault)).failure.kind is Kind.INVALID_PARAMS
        kernel.channel.post(Call(2, "loop.nothing", frames.pack_body({}), 1000, Origin("client"), 3))
        assert (await kernel.expect(Fault)).failure.kind is Kind.UNKNOWN_OPERATION


async def test_background_task_that_fails_ends_the_service() -> None:
    waiter = Waiter()
    async with line(waiter) as kernel:
        await kernel.begin()
        waiter.fail_in_background.set()
        await kernel.ended.wait()
        assert "background task failed" in _leaves(kernel.error)


async def test_service_without_a_handler_for_its_operation_does_not_become_ready() -> None:
    async with line(Waiter(), ("loop.wait", "loop.missing")) as kernel:
        await kernel.expect(Hello)
        await kernel.ended.wait()
        assert "loop.missing" in _leaves(kernel.error)


async def test_a_lost_link_ends_the_service_and_its_calls() -> None:
    waiter = Waiter()
    async with line(waiter) as kernel:
        await kernel.begin()
        kernel.call(1, 1000)
        await trio.testing.wait_all_tasks_blocked()
        kernel.channel.close()
        await kernel.ended.wait()
        assert waiter.events == ["cancelled"]
        assert isinstance(kernel.error, LinkClosed)


def _leaves(error: Any) -> str:
    if isinstance(error, BaseExceptionGroup):
        return " ".join(_leaves(inner) for inner in error.exceptions)
    return str(error)


async def test_background_work_of_a_restart_lets_the_calls_that_waited_go_ahead(
    autojump_clock: trio.testing.MockClock,
) -> None:
    waiter = Waiter()
    async with line(waiter) as kernel:
        await kernel.begin()
        began = trio.current_time()
        kernel.call(1, 0.05)
        kernel.call(2, 5.0)
        assert (await kernel.expect(Return)).id == 1
        await trio.testing.wait_all_tasks_blocked()
        assert waiter.in_background_at is None
        await trio.sleep(1)
        assert waiter.in_background_at == pytest.approx(began + BACKGROUND_S)


@pytest.mark.parametrize(("generation", "waits_s"), [(1, 0.0), (2, BACKGROUND_S)])
async def test_background_work_waits_for_no_call_that_does_not_come(
    autojump_clock: trio.testing.MockClock, generation: int, waits_s: float
) -> None:
    waiter = Waiter()
    async with line(waiter, generation=generation) as kernel:
        began = trio.current_time()
        await kernel.begin()
        await trio.sleep(1)
        assert waiter.in_background_at == pytest.approx(began + waits_s)
