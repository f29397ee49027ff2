"""A process that has nothing to do is pinged rarely, until it gets or sends a frame; then it is watched as any."""

from __future__ import annotations

import signal

import pytest
import trio
from trio.testing import MockClock

from kernel.supervisor.rest import REST_AFTER_S, REST_LOOK_S, REST_PING_S
from proto.wire import frames
from proto.wire.frames import Event, Ping, Progress
from tests.unit.supervisor.stage import Actor, Troupe, staged
from tests.unit.supervisor.world import service

pytestmark = pytest.mark.usefixtures("autojump_clock")

EVENT = Event("topic", frames.pack_body({}))
HANG_S = 5.0


async def calm(troupe: Troupe) -> Actor:
    """Return the actor of a process that has rested for a while."""
    await troupe.ready()
    await trio.sleep(REST_AFTER_S + 2)
    return troupe.stage.actor()


def pings(actor: Actor) -> int:
    return sum(isinstance(frame, Ping) for frame in actor.got)


async def pings_within(actor: Actor, seconds: float) -> int:
    before = pings(actor)
    await trio.sleep(seconds)
    return pings(actor) - before


async def test_a_process_at_rest_is_pinged_rarely(autojump_clock: MockClock) -> None:
    async with staged(service("a")) as troupe:
        actor = await calm(troupe)
        assert await pings_within(actor, 10 * REST_PING_S) in (8, 9, 10)


async def test_a_process_with_a_client_s_call_is_always_pinged(autojump_clock: MockClock) -> None:
    async with staged(service("a")) as troupe:
        troupe.record.used.add("a")
        actor = await calm(troupe)
        assert await pings_within(actor, 60) in (59, 60, 61)


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_frame_to_or_from_it_has_it_pinged_as_any_process(autojump_clock: MockClock, is_sent: bool) -> None:
    async with staged(service("a")) as troupe:
        actor = await calm(troupe)
        if is_sent:
            troupe.record.generations["a"].post(EVENT)
        else:
            actor.channel.post(Progress(1, 1.0, None, None))
        assert await pings_within(actor, REST_AFTER_S) in (9, 10, 11)
        assert await pings_within(actor, 10 * REST_PING_S) <= 12


async def test_a_hang_in_a_call_after_a_rest_is_noticed_as_fast_as_any(autojump_clock: MockClock) -> None:
    async with staged(service("a", hang_timeout_s=HANG_S)) as troupe:
        actor = await calm(troupe)
        actor.answers_pings = False
        troupe.record.generations["a"].post(EVENT)
        hung_at = trio.current_time()
        await troupe.ready(after=1)
        assert actor.signals[0][1] == signal.SIGABRT
        assert actor.signals[0][0] - hung_at <= HANG_S + 1


async def test_a_hang_at_rest_is_noticed_with_the_next_ping(autojump_clock: MockClock) -> None:
    async with staged(service("a", hang_timeout_s=HANG_S)) as troupe:
        actor = await calm(troupe)
        actor.answers_pings = False
        hung_at = trio.current_time()
        await troupe.ready(after=1)
        assert actor.signals[0][1] == signal.SIGABRT
        assert actor.signals[0][0] - hung_at <= REST_PING_S + REST_LOOK_S + HANG_S + 2


async def test_a_process_that_is_stopped_or_grows_at_rest_is_ended_at_the_next_checks(
    autojump_clock: MockClock,
) -> None:
    async with staged(service("a", memory_limit_bytes=100 * 2**20)) as troupe:
        actor = await calm(troupe)
        actor.stopped, since = True, trio.current_time()
        await troupe.ready(after=1)
        assert actor.signals[0][0] - since <= 2 * REST_LOOK_S
        actor = await calm(troupe)
        actor.memory, since = 200 * 2**20, trio.current_time()
        await troupe.ready(after=2)
        assert actor.signals[0][0] - since <= REST_LOOK_S
