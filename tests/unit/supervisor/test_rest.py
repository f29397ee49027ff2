"""Rest: a service that nobody calls has no process, and the next call has it start, whatever happens meanwhile."""

from __future__ import annotations

import math
import signal

import pytest
import trio
from trio.testing import MockClock

from kernel.configure.spec import ServiceSpec
from kernel.router.generation import ServiceState
from kernel.router.ports import CauseKind
from kernel.supervisor.policy_events import Close, Idle, RestartAsked, StartAsked, StopAsked, Wanted
from tests.unit.supervisor.stage import Actor, Troupe, behave, staged
from tests.unit.supervisor.world import CRASH, KILLED, RESTED, World, service

AFTER_S = 60.0


def resting(name: str) -> ServiceSpec:
    return service(name, rests_after_s=AFTER_S)


def world(**changes: bool) -> World:
    """Two services, one that is idle for long enough and so is being ended."""
    made = World(resting("a"), service("b"), **changes).boot()
    made.pass_time(100)
    made.said()
    made.happen(Idle("a", 1))
    return made


def test_an_idle_service_ends_and_starts_at_the_next_call() -> None:
    w = world()
    assert (w.said(), w.state("a"), w.state("b")) == ("-a1", ServiceState.RESTING, ServiceState.READY)
    w.happen(Wanted("a"))
    assert (w.said(), w.state("a")) == ("+a2", ServiceState.READY)


def test_a_call_while_it_still_ends_has_it_start_once_it_has_ended() -> None:
    w = world(ends_at_once=False)
    w.happen(Wanted("a"), Wanted("a"))
    assert (w.said(), w.state("a")) == ("-a1", ServiceState.DRAINING)
    w.die("a", RESTED)
    assert (w.said(), w.state("a")) == ("+a2", ServiceState.READY)


def test_rest_does_not_count_as_a_death_nor_the_next_start_as_a_restart() -> None:
    w = world()
    w.happen(Wanted("a"))
    child = w.child("a")
    assert (child.deaths, child.last_death, child.restarts, child.generation) == ({}, None, 0, 2)


def test_a_crash_in_the_start_after_a_rest_is_restarted_as_any() -> None:
    w = World(resting("a"), starts_ready=False).boot()
    w.ready("a")
    w.happen(Idle("a", 1), Wanted("a"))
    w.die("a", CRASH)
    w.pass_time(1)
    assert w.said() == "+a1 -a1 +a2 +a3"
    assert w.child("a").deaths == {CauseKind.EXIT: 1}
    w.die("a", KILLED)
    w.pass_time(1)
    assert w.alive == {"a": 4}


def test_a_person_s_stop_while_it_ends_is_a_stop() -> None:
    w = world(ends_at_once=False)
    w.happen(StopAsked("a"), Wanted("a"))
    w.die("a", RESTED)
    w.happen(Wanted("a"))
    assert (w.said(), w.state("a")) == ("-a1", ServiceState.STOPPED)


@pytest.mark.parametrize("asked", [StartAsked("a"), RestartAsked("a")])
def test_a_person_may_start_one_that_rests_or_is_about_to(asked: StartAsked | RestartAsked) -> None:
    w = world()
    w.happen(asked)
    assert (w.said(), w.state("a")) == ("-a1 +a2", ServiceState.READY)
    w = world(ends_at_once=False)
    w.happen(asked)
    w.die("a", RESTED)
    assert (w.said(), w.state("a")) == ("-a1 +a2", ServiceState.READY)


def test_a_resting_service_is_stopped_on_request() -> None:
    w = world()
    w.happen(StopAsked("a"), Wanted("a"))
    assert (w.said(), w.state("a")) == ("-a1", ServiceState.STOPPED)


def test_nothing_rests_or_wakes_while_the_system_ends() -> None:
    w = world()
    w.happen(Close(), Wanted("a"))
    assert (w.said(), w.state("a")) == ("-a1 -b1", ServiceState.STOPPED)
    w = World(resting("a"), ends_at_once=False).boot()
    w.happen(Idle("a", 1), Wanted("a"), Close())
    w.die("a", RESTED)
    assert (w.said(), w.state("a")) == ("+a1 -a1", ServiceState.STOPPED)


def test_an_idle_report_of_an_earlier_generation_is_ignored() -> None:
    w = world()
    w.happen(Wanted("a"), Idle("a", 1))
    assert w.alive == {"a": 2, "b": 1}


# Tests with real or simulated processes, and a clock.


async def until(troupe: Troupe, state: ServiceState) -> None:
    await troupe.supervisor.wait_for("a", {state})


async def test_it_rests_after_its_time_without_a_call_and_not_before(autojump_clock: MockClock) -> None:
    async with staged(service("a", rests_after_s=AFTER_S), service("b")) as troupe:
        troupe.record.idle_at["a"] = troupe.record.idle_at["b"] = trio.current_time() + 30
        await until(troupe, ServiceState.RESTING)
        waited = trio.current_time() - troupe.record.idle_at["a"]
        assert AFTER_S <= waited < AFTER_S + 2
        assert troupe.report("a").pid is None
        assert "starts at the next call" in troupe.report("a").reason
        assert troupe.report("b").state is ServiceState.READY
        assert "a" in troupe.stage.dismissed
        troupe.supervisor.wanted("a")
        await troupe.ready("a", after=1)
        report = troupe.report("a")
        assert (report.generation, report.restarts, report.deaths, report.recovery_ms) == (2, 0, {}, None)


async def test_it_does_not_rest_while_it_has_calls_or_just_after_its_start(autojump_clock: MockClock) -> None:
    async with staged(service("a", rests_after_s=AFTER_S)) as troupe:
        troupe.record.busy.add("a")
        await trio.sleep(10 * AFTER_S)
        assert troupe.report().state is ServiceState.READY
        troupe.record.busy.clear()
        troupe.record.idle_at["a"] = -math.inf
        await until(troupe, ServiceState.RESTING)
        woken = trio.current_time()
        troupe.supervisor.wanted("a")
        await troupe.ready(after=1)
        await until(troupe, ServiceState.RESTING)
        assert trio.current_time() - woken >= AFTER_S


@pytest.mark.parametrize(("said", "state"), [("none", ServiceState.RESTING), ("large", ServiceState.READY)])
async def test_a_service_that_rests_only_without_a_model_stays_ready_with_one(
    autojump_clock: MockClock, said: str, state: ServiceState
) -> None:
    async def tell(actor: Actor) -> None:
        actor.info["model"] = said
        await behave(actor)

    async with staged(service("a", rests_after_s=AFTER_S, rests_while=("model", "none")), act=tell) as troupe:
        await trio.sleep(3 * AFTER_S)
        assert troupe.report().state is state


async def test_no_call_is_sent_between_the_decision_and_the_drain(autojump_clock: MockClock) -> None:
    async with staged(service("a", rests_after_s=AFTER_S)) as troupe:
        told = troupe.record.notifications
        asked: list[int] = []
        answered: list[list[str]] = []

        def idle_since(service: str) -> float:
            asked.append(len(told))
            # Run before any task is, once the one that asks gives way.
            trio.lowlevel.current_trio_token().run_sync_soon(lambda: answered.append(told[asked[-1] :]))
            return -math.inf

        troupe.record.idle_since = idle_since  # type: ignore[method-assign]  # to look from outside
        await until(troupe, ServiceState.RESTING)
        assert answered[-1] == ["draining a", "draining a1"]


async def test_called_while_it_drains_it_is_back_once_it_has_ended(autojump_clock: MockClock) -> None:
    async def slow(actor: Actor) -> None:
        actor.drains = actor.launch.generation > 1
        await behave(actor)

    async with staged(service("a", rests_after_s=AFTER_S), act=slow) as troupe:
        await until(troupe, ServiceState.DRAINING)
        troupe.supervisor.wanted("a")
        await troupe.ready(after=1)
        assert troupe.stage.actors[0].ended.is_set()
        assert [number for _, number in troupe.stage.actors[0].signals] == [signal.SIGTERM]
        assert troupe.report().deaths == {}
        assert "resting a" not in troupe.record.notifications


async def test_killed_in_the_start_after_a_rest_it_starts_again(autojump_clock: MockClock) -> None:
    async def second_dies(actor: Actor) -> None:
        if actor.launch.generation == 2:
            actor.channel.post(actor.hello())
            actor.die(number=signal.SIGKILL)
        else:
            await behave(actor)

    async with staged(service("a", rests_after_s=AFTER_S), act=second_dies) as troupe:
        await until(troupe, ServiceState.RESTING)
        troupe.supervisor.wanted("a")
        await troupe.ready(after=2)
        assert troupe.report().deaths == {"signal": 1}


async def test_the_system_ends_in_order_with_one_that_rests(autojump_clock: MockClock) -> None:
    async with staged(service("a", rests_after_s=AFTER_S), service("b")) as troupe:
        await until(troupe, ServiceState.RESTING)
        await troupe.supervisor.shutdown()
        assert troupe.supervisor.state("a") is ServiceState.STOPPED
        assert len(troupe.stage.actors) == 2
