"""Services that are added, changed and removed while the system runs, and lazy ones."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from kernel.configure.spec import ServiceSpec
from kernel.router.generation import ServiceState
from kernel.router.ports import Cause, CauseKind
from kernel.supervisor.policy_events import (
    Added,
    Close,
    Event,
    Idle,
    Removed,
    Replaced,
    RestartAsked,
    StartAsked,
    StopAsked,
    Wanted,
)
from proto.errors import Unavailable
from tests.unit.supervisor.stage import Actor, behave, staged
from tests.unit.supervisor.world import CRASH, KILLED, STOPPED, World, service

LAZY, EAGER = service("m", lazy=True), service("m")


def world(*specs: ServiceSpec, **changes: bool) -> World:
    """Service a, healthy, and others."""
    made = World(service("a"), *specs, **changes).boot()
    made.pass_time(100)
    made.said()
    return made


def add(w: World, spec: ServiceSpec) -> None:
    w.happen(Added(spec.name, spec))


def test_an_added_service_starts_at_once_and_others_are_left_alone() -> None:
    w = world()
    add(w, EAGER)
    assert (w.said(), w.state("m"), w.state("a")) == ("+m1", ServiceState.READY, ServiceState.READY)


@pytest.mark.parametrize("up", [True, False])
def test_an_added_service_waits_only_for_dependencies_that_are_not_ready_yet(up: bool) -> None:
    w = World(service("a"), starts_ready=False).boot()
    if up:
        w.ready("a")
    add(w, service("m", depends_on=("a",)))
    assert w.said() == ("+a1 +m1" if up else "+a1")
    if not up:
        w.ready("a")
        assert w.said() == "+m1"


def test_a_lazy_service_starts_with_its_first_call() -> None:
    for w in (world(LAZY), world()):
        if "m" not in w.policy.children:
            add(w, LAZY)
        assert (w.said(), w.state("m"), w.child("m").generation) == ("", ServiceState.RESTING, 0)
        w.happen(Wanted("m"))
        assert (w.said(), w.state("m")) == ("+m1", ServiceState.READY)


@pytest.mark.parametrize(("ask", "said"), [(StartAsked, "+m1"), (RestartAsked, "+m1"), (StopAsked, "")])
def test_a_person_may_start_a_lazy_service(ask: type[StartAsked | RestartAsked | StopAsked], said: str) -> None:
    w = world(LAZY)
    w.happen(ask("m"))
    assert w.said() == said


def test_a_removed_service_ends_in_order_and_is_forgotten() -> None:
    w = world(EAGER, ends_at_once=False)
    w.happen(Removed("m"))
    assert (w.said(), w.state("m")) == ("-m1", ServiceState.DRAINING)
    w.die("m", STOPPED)
    assert (w.said(), list(w.policy.children), list(w.plan.specs)) == ("~m", ["a"], ["a"])


@pytest.mark.parametrize("cause", [CRASH, KILLED, STOPPED])
def test_a_removed_service_is_never_restarted_whatever_it_dies_of(cause: Cause) -> None:
    w = world(EAGER, ends_at_once=False)
    w.happen(Removed("m"))
    for event in (Wanted("m"), StartAsked("m"), RestartAsked("m"), StopAsked("m"), Idle("m", 1)):
        w.happen(event)
    w.die("m", cause)
    assert w.said() == "-m1 ~m"


def test_a_service_without_process_is_forgotten_at_once() -> None:
    w = world(LAZY)
    w.happen(Removed("m"))
    assert w.said() == "~m"


def test_timers_of_a_forgotten_service_do_nothing() -> None:
    w = world(EAGER)
    w.die("m")
    w.die("m")
    assert w.state("m") is ServiceState.BACKOFF
    w.happen(Removed("m"))
    w.said()
    w.pass_time(100)
    assert w.said() == ""


def test_a_service_added_again_while_it_ends_starts_afterwards() -> None:
    w = world(EAGER, ends_at_once=False)
    w.happen(Removed("m"))
    add(w, EAGER)
    w.die("m", STOPPED)
    assert (w.said(), w.state("m")) == ("-m1 +m2", ServiceState.READY)
    w.happen(Removed("m"))
    add(w, LAZY)
    w.die("m", STOPPED)
    assert (w.said(), w.state("m")) == ("-m2", ServiceState.RESTING)


def test_a_changed_service_restarts_if_it_runs() -> None:
    w = world(EAGER)
    w.happen(Replaced("m", EAGER))
    assert (w.said(), w.child("m").reason) == ("-m1 +m2", "")


@pytest.mark.parametrize(("spec", "said"), [(LAZY, ""), (EAGER, "+m1")])
def test_a_changed_service_that_rests_starts_only_if_it_is_eager_now(spec: ServiceSpec, said: str) -> None:
    w = world(LAZY)
    w.happen(Replaced("m", spec))
    assert w.said() == said


def test_a_changed_service_has_a_clean_record() -> None:
    w = world(service("m", start_tries=1), starts_ready=False)
    w.die("m")
    assert w.state("m") is ServiceState.FAILED
    w.said()
    w.happen(Replaced("m", EAGER))
    assert (w.said(), w.state("m"), w.child("m").on_trial) == ("+m2", ServiceState.STARTING, False)


def test_a_service_that_a_person_stopped_stays_stopped_when_it_is_changed() -> None:
    w = world(EAGER)
    w.happen(StopAsked("m"))
    w.said()
    w.happen(Replaced("m", EAGER))
    assert (w.said(), w.state("m")) == ("", ServiceState.STOPPED)


def test_nothing_is_added_while_the_system_ends() -> None:
    w = world(ends_at_once=False)
    w.happen(Close())
    add(w, EAGER)
    assert (w.said(), w.state("m")) == ("-a1", ServiceState.STOPPED)


def fail_to_start(w: World, seconds: float) -> int:
    """Have every start fail after some seconds until the service gives up; return the number of starts."""
    starts = 0
    while w.state("m") is not ServiceState.FAILED:
        if "m" in w.alive:
            starts += 1
            w.pass_time(seconds)
            w.die("m")
        else:
            w.pass_time(0.1)
    return starts


@pytest.mark.parametrize(("tries", "starts"), [(1, 1), (3, 3)])
def test_slow_starts_that_fail_are_a_crash_loop_after_some_tries(tries: int, starts: int) -> None:
    w = world(service("m", start_tries=tries), starts_ready=False)
    assert fail_to_start(w, 20) == starts
    assert w.child("m").reason == f"{tries} starts in a row have failed; the last: exit code 1"


def test_deaths_after_ready_are_no_failed_starts() -> None:
    w = world(service("m", start_tries=1))
    w.die("m")
    w.die("m")
    assert w.state("m") is ServiceState.BACKOFF


def test_a_lazy_service_that_failed_is_tried_again_only_by_a_call() -> None:
    w = world(service("m", lazy=True, start_tries=2), starts_ready=False)
    w.happen(Wanted("m"))
    assert fail_to_start(w, 1) == 2
    w.said()
    # Calls fail at once until then, and name the time of the next try.
    assert w.child("m").retry_at is not None
    w.happen(Wanted("m"))
    w.pass_time(100)
    assert (w.said(), w.state("m")) == ("", ServiceState.RESTING)
    w.happen(Wanted("m"))
    assert w.said() == "+m3"
    w.die("m")
    assert (w.state("m"), w.state("a")) == (ServiceState.FAILED, ServiceState.STARTING)


CHANGES: dict[str, Event] = {
    "add": Added("m", EAGER), "add lazy": Added("m", LAZY), "remove": Removed("m"), "replace": Replaced("m", EAGER),
    "replace lazy": Replaced("m", LAZY), "want": Wanted("m"), "start": StartAsked("m"), "stop": StopAsked("m"),
    "restart": RestartAsked("m"), "close": Close(),
}  # fmt: skip


@given(st.lists(st.sampled_from([*CHANGES, "die", "kill", "ready", "wait"]), max_size=30))
def test_a_removed_service_always_ends_and_no_process_is_forgotten(happened: list[str]) -> None:
    w = World(service("a"), starts_ready=False, ends_at_once=False).boot()
    for what in happened:
        exists = "m" in w.policy.children and not w.child("m").removed
        if what in CHANGES:
            if what.startswith("add") != exists or not what.startswith(("add", "replace", "remove")):
                # The supervisor adds only services that do not exist, and changes only those that do.
                w.happen(CHANGES[what])
        elif what == "wait":
            w.pass_time(31)
        elif "m" in w.alive:
            if what == "ready":
                w.ready("m")
            else:
                w.die("m", CRASH if what == "die" else KILLED)
        assert ("m" in w.alive) == ("m" in w.policy.children and w.child("m").lives)
        assert list(w.policy.children) == list(w.plan.specs)
    w.happen(Removed("m"))
    if "m" in w.alive:
        w.die("m", STOPPED)
    assert "m" not in w.policy.children


async def test_supervisor_adds_changes_and_removes_while_it_runs(autojump_clock: MockClock) -> None:
    async with staged(service("a")) as troupe:
        await troupe.ready()
        troupe.supervisor.add(EAGER)
        await troupe.ready("m")
        with pytest.raises(ValueError, match="there already is"):
            troupe.supervisor.add(EAGER)
        troupe.supervisor.replace(LAZY)
        await troupe.ready("m", after=1)
        troupe.supervisor.remove("m")
        with pytest.raises(Unavailable, match="service m was removed"):
            await troupe.supervisor.wait_for("m", (ServiceState.FAILED,))
        said = troupe.record.notifications
        assert said.index("down m2") < said.index("gone m")
        assert troupe.stage.forgotten == ["m"]
        assert [each.name for each in troupe.supervisor.status().services] == ["a"]
        assert troupe.report("a").generation == 1
        troupe.supervisor.add(EAGER)
        await troupe.ready("m")


@pytest.mark.parametrize("again", [EAGER, LAZY])
def test_a_service_that_is_added_again_has_a_clean_record(again: ServiceSpec) -> None:
    w = world(ends_at_once=False)
    add(w, EAGER)
    w.die("m", CRASH)
    w.pass_time(10)
    assert w.child("m").last_death == CRASH
    w.happen(Removed("m"))
    assert "m" in w.alive
    add(w, again)
    assert (w.child("m").deaths, w.child("m").last_death) == ({}, None)
    # The end of the removed one is not its own.
    w.die("m", STOPPED)
    assert (w.child("m").deaths, w.child("m").last_death) == ({}, None)
    w.happen(Wanted("m"))
    w.pass_time(10)
    w.die("m", KILLED)
    assert (w.child("m").deaths, w.child("m").last_death) == ({CauseKind.SIGNAL: 1}, KILLED)


async def test_the_log_of_a_service_that_is_added_again_begins_once_the_old_one_has_ended(
    autojump_clock: MockClock,
) -> None:
    async with staged(EAGER) as troupe:
        await troupe.ready("m")
        troupe.supervisor.remove("m")
        troupe.supervisor.add(EAGER)
        assert troupe.stage.renewed == []
        await troupe.ready("m", after=1)
        assert (troupe.stage.renewed, troupe.stage.forgotten) == (["m"], [])


async def test_a_service_is_removed_in_bounded_time_although_it_does_not_drain(autojump_clock: MockClock) -> None:
    async def stubborn(actor: Actor) -> None:
        actor.drains = False
        actor.dies_of = set()
        await behave(actor)

    async with staged(EAGER, act=stubborn) as troupe:
        await troupe.ready("m")
        troupe.supervisor.remove("m")
        begun = trio.current_time()
        with pytest.raises(Unavailable):
            await troupe.supervisor.wait_for("m", ())
        assert trio.current_time() - begun < 15
        assert troupe.record.causes[-1].kind is CauseKind.STOPPED
