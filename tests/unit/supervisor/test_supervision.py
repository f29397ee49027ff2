"""One generation after another, on a mock clock: hello to death, limits, the kill ladder, and what the router hears."""

from __future__ import annotations

import signal

import msgspec
import pytest
import trio
import trio.testing

from kernel.configure.spec import Backoff, ServiceSpec
from kernel.router.generation import ServiceState
from kernel.router.ports import CauseKind
from kernel.supervisor.process import Liveness
from proto.errors import InvalidParams, Kind, Unavailable
from proto.origin import Origin
from proto.wire import frames
from proto.wire.frames import Bye, Call, Drain, Fault, Part, Pong, Ready, Return, Unfinished
from proto.wire.launch import LaunchConfig
from tests.unit.supervisor.stage import MIB, Actor, behave, launch_config_of, serve, staged
from tests.unit.supervisor.world import service

pytestmark = pytest.mark.usefixtures("autojump_clock")

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_router_hears_ready_once_and_only_after_the_hello(autojump_clock: trio.testing.MockClock) -> None:
    async with staged(service("a")) as troupe:
        await troupe.ready()
        await trio.sleep(5)
    assert troupe.record.notifications == [
        "starting a",
        "up a1",
        "ready a",
        "draining a",
        "draining a1",
        "down a1",
        "stopped a",
    ]


@pytest.mark.parametrize(
    "wrong", [{"protocol": 99}, {"service": "b"}, {"generation": 2}, {"pid": 1}, {"twice": 1}, {"ready": 1}]
)
async def test_hello_of_another_service_is_a_protocol_violation(
    autojump_clock: trio.testing.MockClock, wrong: dict[str, int | str]
) -> None:
    async def act(actor: Actor) -> None:
        if "ready" not in wrong:
            actor.channel.post(actor.hello(**({} if "twice" in wrong else wrong)))
        if "twice" in wrong:
            actor.channel.post(actor.hello())
        actor.channel.post(Ready())
        await serve(actor)

    async with staged(service("a", intensity=0), act=act) as troupe:
        await troupe.supervisor.wait_for("a", {ServiceState.FAILED})
        assert troupe.report().deaths == {"protocol": 1}
        assert "up a1" not in troupe.record.notifications
        # Its stack is of interest.
        assert [number for _, number in troupe.stage.actors[0].signals] == [signal.SIGABRT]


async def test_frames_that_arrived_are_delivered_before_the_death(autojump_clock: trio.testing.MockClock) -> None:
    async def act(actor: Actor) -> None:
        actor.channel.post(actor.hello())
        actor.channel.post(Ready())
        if actor.launch.generation > 1:
            await serve(actor)
        for n in range(200):
            actor.channel.post(Return(n, frames.pack_body(n)))
        actor.die(number=signal.SIGSEGV)

    async with staged(service("a"), act=act) as troupe:
        await troupe.ready(after=1)
        told = troupe.record.notifications
        assert told.count("frame a1") == 200
        assert told.index("down a1") > max(at for at, what in enumerate(told) if what == "frame a1")
        assert told.index("down a1") < told.index("up a2")


async def test_call_made_before_ready_is_refused_rather_than_lost(autojump_clock: trio.testing.MockClock) -> None:
    async def act(actor: Actor) -> None:
        actor.channel.post(actor.hello())
        actor.channel.post(Call(7, "op", frames.pack_body({}), 1000, Origin("a", trace=TRACE), 1))
        frame = await actor.channel.receive()
        assert isinstance(frame, Fault)
        assert (frame.id, frame.failure.kind) == (7, Kind.UNAVAILABLE)
        actor.channel.post(Ready())
        await serve(actor)

    async with staged(service("a"), act=act) as troupe:
        await troupe.ready()


# Liveness.


async def test_silence_for_the_hang_timeout_is_a_death_that_starts_with_a_stack_dump(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with staged(service("a", hang_timeout_s=10)) as troupe:
        troupe.record.used.add("a")
        await troupe.ready()
        await trio.sleep(20)
        silent_from = trio.current_time()
        actor = troupe.stage.actor()
        actor.answers_pings = False
        await troupe.ready(after=1)
        (at, number), *_ = actor.signals
        assert number == signal.SIGABRT
        assert 10 <= at - silent_from <= 12
        assert troupe.report().deaths == {"hang": 1}
        assert troupe.record.causes[0].text == "answered no ping for 10.0 s; ended with SIGABRT"


async def test_process_that_is_stopped_is_killed_within_two_pings_(autojump_clock: trio.testing.MockClock) -> None:
    async with staged(service("a", hang_timeout_s=10)) as troupe:
        for generation in (1, 2):
            await troupe.ready(after=generation - 1)
            stopped_at = trio.current_time()
            actor = troupe.stage.actor()
            actor.stopped = True
            await troupe.ready(after=generation)
            assert [number for _, number in actor.signals] == [signal.SIGKILL]
            assert actor.signals[0][0] - stopped_at <= 2 * service("a").ping_interval_s
        assert troupe.report().deaths == {"hang": 2}
        assert troupe.record.causes[0].text == "was stopped by a signal (SIGSTOP); ended with SIGKILL"


async def test_slow_but_steady_pongs_are_not_a_hang(autojump_clock: trio.testing.MockClock) -> None:
    async def act(actor: Actor) -> None:
        actor.channel.post(actor.hello())
        actor.channel.post(Ready())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, actor)
            actor.answers_pings = False
            n = 0
            while not actor.ended.is_set():
                await trio.sleep(9)
                n += 9
                if not actor.ended.is_set():
                    actor.channel.post(Pong(n, 0))

    async with staged(service("a", hang_timeout_s=10), act=act) as troupe:
        await troupe.ready()
        await trio.sleep(100)
        assert troupe.report().generation == 1


async def test_a_pong_that_waits_behind_a_large_body_is_not_a_hang(autojump_clock: trio.testing.MockClock) -> None:
    async def act(actor: Actor) -> None:
        actor.answers_pings = False
        actor.channel.post(actor.hello())
        actor.channel.post(Ready())
        await actor.link.send(frames.encode(Part(1, False, frames.encode(Return(1, b"")))))
        for _ in range(20):
            await trio.sleep(5)
            await actor.link.send(frames.encode(Part(1, False, bytes(frames.PART_BYTES))))
        await serve(actor)

    async with staged(service("a", hang_timeout_s=10), act=act) as troupe:
        await troupe.ready()
        await trio.sleep(100)
        assert troupe.report().generation == 1
        # Then it is silent.
        await troupe.ready(after=1)
        assert troupe.report().deaths == {"hang": 1}


def test_time_in_which_the_kernel_itself_was_late_is_not_blamed_on_the_service() -> None:
    liveness = Liveness(timeout_s=10)
    liveness.ping(now=0)
    assert liveness.hung_for(now=9, overslept_s=0) is None
    # The kernel itself was stopped for a minute: 9 s and 1 s of silence remain.
    assert liveness.hung_for(now=69.5, overslept_s=60) is None
    assert liveness.hung_for(now=70.5, overslept_s=0) == pytest.approx(10.5)


def test_pong_clears_the_silence_and_gives_the_round_trip() -> None:
    liveness = Liveness(timeout_s=10)
    first = liveness.ping(now=0)
    liveness.ping(now=1)
    liveness.pong(first, now=1.5)
    assert liveness.round_trip_s == 1.5
    assert liveness.hung_for(now=100, overslept_s=0) is None


# Start.


async def test_start_that_takes_too_long_is_a_death(autojump_clock: trio.testing.MockClock) -> None:
    async def act(actor: Actor) -> None:
        actor.channel.post(actor.hello())
        if actor.launch.generation > 1:
            actor.channel.post(Ready())
        await serve(actor)

    async with staged(service("a", startup_timeout_s=2.5), act=act) as troupe:
        await troupe.ready(after=1)
        assert troupe.record.causes[0].kind is CauseKind.STARTUP_TIMEOUT
        assert trio.current_time() == pytest.approx(2.5)


async def test_failure_to_spawn_is_tallied_and_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    async with staged(service("a"), service("b")) as troupe:
        await troupe.ready()
        troupe.stage.refuses = "no memory left"
        troupe.stage.actor().die(number=signal.SIGKILL)
        await troupe.supervisor.wait_for("a", {ServiceState.FAILED})
        assert troupe.report().reason == "7 deaths within 30 s; the last: no memory left"
        assert troupe.record.retry_at["a"] is not None
        troupe.stage.refuses = None
        await troupe.ready(after=8)
        assert troupe.report().deaths == {"signal": 1, "spawn": 7}
        assert troupe.report("b").generation == 1


async def test_failing_launch_configuration_is_a_failed_start_of_that_service_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def launch_config(spec: ServiceSpec, generation: int, mode: str) -> LaunchConfig:
        if spec.name == "a":
            raise KeyError("settings")
        return launch_config_of(spec, generation, mode)

    async with staged(service("a", intensity=0), service("b"), launch_config=launch_config) as troupe:
        await troupe.ready("b")
        await troupe.supervisor.wait_for("a", {ServiceState.FAILED})
        assert "KeyError: 'settings'" in troupe.report().reason


# Limits and the ladder.


async def test_memory_limit_drains_and_a_runaway_is_killed(autojump_clock: trio.testing.MockClock) -> None:
    async with staged(service("a", memory_limit_bytes=100 * MIB)) as troupe:
        await troupe.ready()
        await trio.sleep(10)
        troupe.stage.actor().memory = 101 * MIB
        await troupe.ready(after=1)
        assert troupe.stage.actors[0].signals == []
        await trio.sleep(10)
        troupe.stage.actor().memory = 126 * MIB
        await troupe.ready(after=2)
        assert [number for _, number in troupe.stage.actors[1].signals] == [signal.SIGKILL]
        assert troupe.report().deaths == {"memory": 2}
        assert troupe.record.causes[0].text == "uses 101 MiB of memory, its limit is 100 MiB; ended with exit code 0"


async def test_ladder_takes_each_rung_in_its_time(autojump_clock: trio.testing.MockClock) -> None:
    async with staged(service("a")) as troupe:
        await troupe.ready()
        actor = troupe.stage.actor()
        actor.drains = False
        actor.dies_of = set()
        asked_at = trio.current_time()
        troupe.supervisor.stop("a")
        await troupe.supervisor.wait_for("a", {ServiceState.STOPPED})
        # 5 s for the calls in flight and 1 s to close, 2 s for SIGTERM, 1 s for SIGABRT.
        taken = [(round(at - asked_at, 3), number) for at, number in actor.signals]
        assert taken == [(6.0, signal.SIGTERM), (8.0, signal.SIGABRT), (9.0, signal.SIGKILL)]
        assert Drain(5000) in actor.got
        assert troupe.record.causes[0].text == "stopped on request; ended with SIGKILL"


async def test_a_hang_while_draining_for_memory_continues_down_the_ladder(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with staged(service("a", memory_limit_bytes=100 * MIB)) as troupe:
        await troupe.ready()
        actor = troupe.stage.actor()
        actor.drains = False
        actor.memory = 101 * MIB
        await trio.sleep(3)
        actor.memory = 200 * MIB
        await troupe.ready(after=1)
        # It goes straight from draining to the last rung.
        assert [number for _, number in actor.signals] == [signal.SIGKILL]


async def test_stop_before_ready_asks_politely_once(autojump_clock: trio.testing.MockClock) -> None:
    async def act(actor: Actor) -> None:
        actor.dies_of = set()
        await serve(actor)

    async with staged(service("a"), act=act) as troupe:
        await trio.sleep(0.5)
        troupe.supervisor.stop("a")
        await troupe.supervisor.wait_for("a", {ServiceState.STOPPED})
        assert [number for _, number in troupe.stage.actor().signals] == [signal.SIGTERM, signal.SIGKILL]


async def test_process_that_closed_its_link_and_lives_on_is_ended(autojump_clock: trio.testing.MockClock) -> None:
    async def act(actor: Actor) -> None:
        if actor.launch.generation > 1:
            await behave(actor)
        actor.channel.post(actor.hello())
        actor.channel.post(Ready())
        actor.channel.close()
        await trio.sleep_forever()

    async with staged(service("a"), act=act) as troupe:
        await troupe.ready(after=1)
        cause = troupe.record.causes[0]
        assert (cause.kind, cause.code) == (CauseKind.PROTOCOL, signal.SIGTERM)


async def test_service_that_says_bye_by_itself_is_drained_and_started_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with staged(service("a")) as troupe:
        await troupe.ready()
        channel = troupe.stage.actor().channel
        channel.post(Bye())
        # The reply to a call that crossed it.
        channel.post(Unfinished(1, begun=False, failure=Unavailable("it ends").failure))
        await troupe.ready(after=1)
        told = troupe.record.notifications
        assert told.index("draining a1") < told.index("down a1")
        assert (troupe.record.causes[0].kind, troupe.record.causes[0].code) == (CauseKind.EXIT, 0)


# The whole.


async def test_last_words_are_part_of_the_cause(autojump_clock: trio.testing.MockClock) -> None:
    async with staged(service("a")) as troupe:
        await troupe.ready()
        troupe.stage.actor().die(code=1, last_words="OSError: no space left")
        await troupe.ready(after=1)
        assert troupe.record.causes[0].text == "exit code 1: OSError: no space left"


async def test_recovery_times_are_kept_for_each_death(autojump_clock: trio.testing.MockClock) -> None:
    async def act(actor: Actor) -> None:
        await trio.sleep(0.25)
        await behave(actor)

    async with staged(service("a"), act=act) as troupe:
        for generation in range(1, 4):
            await troupe.ready(after=generation - 1)
            await trio.sleep(10)
            troupe.stage.actor().die(number=signal.SIGSEGV)
            await troupe.ready(after=generation)
            assert troupe.report().recovery_ms == pytest.approx(250.0)
        assert troupe.report().restarts == 3


async def test_status_shows_the_service_s_own_report(autojump_clock: trio.testing.MockClock) -> None:
    async with staged(service("a")) as troupe:
        await troupe.ready()
        await trio.sleep(5.5)
        report = troupe.report()
        assert (report.state, report.pid, report.in_flight) == (ServiceState.READY, 1000, 3)
        assert report.uptime_s == pytest.approx(5.5)
        assert report.info == {"device": "cpu"}
        assert msgspec.json.decode(msgspec.json.encode(report))["how"] == "acted"


async def test_unknown_service_is_named_with_the_known_ones(autojump_clock: trio.testing.MockClock) -> None:
    async with staged(service("a"), service("b")) as troupe:
        for wish in (troupe.supervisor.start, troupe.supervisor.stop, troupe.supervisor.restart):
            with pytest.raises(InvalidParams, match="there is no service 'c'; services: a, b"):
                wish("c")


async def test_crash_loop_costs_two_starts_a_minute(autojump_clock: trio.testing.MockClock) -> None:
    async def act(actor: Actor) -> None:
        actor.die(code=1)

    async with staged(service("a", backoff=Backoff(jitter=0))) as troupe:
        troupe.stage.act = act
        troupe.supervisor.restart("a")
        await troupe.supervisor.wait_for("a", {ServiceState.FAILED})
        before = len(troupe.stage.actors)
        await trio.sleep(600)
        assert 18 < len(troupe.stage.actors) - before <= 20


async def test_end_waits_for_services_and_cancellation_kills_them(autojump_clock: trio.testing.MockClock) -> None:
    async with staged(service("a"), service("b", depends_on=("a",))) as troupe:
        await troupe.ready("b")
        await troupe.supervisor.shutdown()
        assert [what for what in troupe.record.notifications if what.startswith("down")] == ["down b1", "down a1"]
        assert all(actor.exit.code == 0 for actor in troupe.stage.actors)


async def test_cancelled_supervisor_leaves_no_process(autojump_clock: trio.testing.MockClock) -> None:
    with trio.CancelScope() as scope:
        async with staged(service("a"), service("b")) as troupe:
            await troupe.ready("b")
            scope.cancel()
            await trio.sleep(1)
    assert scope.cancelled_caught
    assert [actor.exit.signal for actor in troupe.stage.actors] == [signal.SIGKILL] * 2
    assert all(process.closed for process in troupe.stage.processes)
