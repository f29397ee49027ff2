"""The restart policy as tables: exit by restart type, intensity, back-off, modes, a person's wishes."""

from __future__ import annotations

import pytest

from kernel.configure.spec import Backoff, Restart, ServiceSpec
from kernel.router.generation import ServiceState
from kernel.router.ports import Cause, CauseKind
from kernel.supervisor.policy import delay_s
from kernel.supervisor.policy_events import Close, Died, Due, RestartAsked, StartAsked, StopAsked
from tests.unit.supervisor.world import CRASH, KILLED, NORMAL, SEGFAULT, World, service

P, T, X = Restart.PERMANENT, Restart.TRANSIENT, Restart.TEMPORARY


def booted(**changes: object) -> World:
    """Three services a, b, c, healthy."""
    world = World(*(service(n, **changes) for n in "abc")).boot()
    assert world.said() == "+a1 +b1 +c1"
    world.pass_time(100)
    return world


@pytest.mark.parametrize(
    ("restart", "cause", "decided"),
    [
        (P, CRASH, "+b2"),
        (P, NORMAL, "+b2"),
        (P, KILLED, "+b2"),
        (T, CRASH, "+b2"),
        (T, NORMAL, ""),
        (T, KILLED, "+b2"),
        (X, CRASH, ""),
        (X, NORMAL, ""),
        (X, KILLED, ""),
    ],
)
def test_restart_type_decides_whether_it_is_restarted(restart: Restart, cause: Cause, decided: str) -> None:
    world = booted(restart=restart)
    world.die("b", cause)
    assert world.said() == decided
    if not decided:
        assert world.state("b") is ServiceState.STOPPED
        assert world.state("a") is world.state("c") is ServiceState.READY


# Back-off.


def test_first_restart_after_healthy_time_is_immediate_and_later_ones_wait_ever_longer() -> None:
    world = booted()
    waits: list[float] = []
    for _ in range(5):
        world.said()
        died_at = world.now
        world.die("a")
        while not world.said():
            next_timer = world.next_timer
            assert next_timer is not None
            world.pass_time(next_timer - world.now)
        waits.append(round(world.now - died_at, 6))
    assert waits == [0.0, 0.1, 0.2, 0.4, 0.8]


def test_back_off_resets_after_healthy_time() -> None:
    world = booted()
    for _ in range(4):
        world.die("a")
        world.pass_time(3)
    world.pass_time(5)
    world.said()
    world.die("a")
    assert world.said() == "+a6"


def test_delay_is_bounded_and_jitter_only_lengthens_it() -> None:
    backoff = Backoff()
    assert delay_s(backoff, 10_000, 0.0) == backoff.max_s
    for streak in range(1, 12):
        shortest, longest = delay_s(backoff, streak, 0.0), delay_s(backoff, streak, 0.999)
        assert shortest < longest < shortest * (1 + backoff.jitter)


def test_death_in_back_off_is_stated_with_the_time_of_the_next_try() -> None:
    world = booted()
    world.die("a")
    world.die("a")
    assert world.state("a") is ServiceState.BACKOFF
    assert world.child("a").retry_at == pytest.approx(world.now + 0.1)
    assert world.child("a").reason == "exit code 1"


# Crash loops.


def crash_until_failed(world: World, name: str = "a") -> int:
    deaths = 0
    while world.state(name) is not ServiceState.FAILED:
        if name in world.alive:
            world.die(name)
            deaths += 1
        else:
            assert world.next_timer is not None
            world.pass_time(world.next_timer - world.now)
        assert deaths < 100
    return deaths


def test_crash_loop_becomes_failed_with_next_try_and_the_last_cause() -> None:
    world = booted()
    assert crash_until_failed(world) == 7
    child = world.child("a")
    assert child.retry_at == pytest.approx(world.now + 30)
    assert child.reason == "7 deaths within 30 s; the last: exit code 1"
    assert world.state("b") is world.state("c") is ServiceState.READY


def test_failed_service_gets_one_try_and_is_failed_again_at_once() -> None:
    world = booted()
    crash_until_failed(world)
    world.said()
    for _ in range(20):
        world.pass_time(30)
        world.die("a")
        assert world.state("a") is ServiceState.FAILED
    # One start every half minute: no busy loop.
    assert len(world.said().split()) == 20


def test_failed_service_that_comes_back_healthy_has_a_clean_record() -> None:
    world = booted()
    crash_until_failed(world)
    world.pass_time(30)
    world.pass_time(6)
    assert world.state("a") is ServiceState.READY
    world.said()
    world.die("a")
    assert world.said().startswith("+a")
    assert crash_until_failed(world) > 3


def test_failed_service_is_started_at_once_when_a_person_asks() -> None:
    world = booted()
    crash_until_failed(world)
    world.said()
    world.happen(StartAsked("a"))
    assert world.said() == "+a8"
    assert world.child("a").crashes == ()


def test_deaths_spread_over_time_are_no_crash_loop() -> None:
    world = booted()
    for _ in range(50):
        world.pass_time(6)
        world.die("a")
    assert world.state("a") is ServiceState.READY


def test_kills_from_outside_of_a_ready_service_are_answered_at_once_and_never_failed() -> None:
    world = booted()
    for n in range(2, 102):
        world.said()
        world.die("a", KILLED)
        assert world.said() == f"+a{n}"
    assert world.child("a").deaths == {CauseKind.SIGNAL: 100}


def test_kills_before_ready_are_a_crash_loop_like_any_other() -> None:
    world = booted()
    world.starts_ready = False
    world.die("a", KILLED)
    while world.state("a") is not ServiceState.FAILED:
        if "a" in world.alive:
            world.die("a", KILLED)
        else:
            assert world.next_timer is not None
            world.pass_time(world.next_timer - world.now)
    assert world.child("a").generation == 8


# Dependencies.


def test_dependent_waits_for_ready_at_its_first_start_only() -> None:
    children = (service("a", depends_on=("b",)), service("b"))
    world = World(*children, starts_ready=False).boot()
    assert world.said() == "+b1"
    assert world.child("a").reason == "waits for b to be ready"
    world.ready("b")
    assert world.said() == "+a1"
    world.ready("a")
    world.pass_time(100)
    world.die("b")
    assert world.said() == "+b2"
    world.die("a")
    assert world.said() == "+a2"


def test_dependency_that_has_failed_holds_nobody_back() -> None:
    children = (service("a"), service("b", depends_on=("a",)))
    world = World(*children, starts_ready=False).boot()
    crash_until_failed(world)
    assert world.said().endswith("+b1")


def test_dependency_that_a_person_stops_holds_nobody_back() -> None:
    children = (service("a"), service("b", depends_on=("a",)))
    world = World(*children, starts_ready=False).boot()
    world.happen(StopAsked("a"))
    assert world.said() == "+a1 -a1 +b1"


# A person's wishes.


def test_late_restart_never_resurrects_a_manually_stopped_service() -> None:
    world = booted()
    world.die("a")
    world.die("a")
    assert world.state("a") is ServiceState.BACKOFF
    world.happen(StopAsked("a"))
    world.said()
    world.happen(Due("a"))
    world.pass_time(1000)
    assert world.said() == ""
    assert world.state("a") is ServiceState.STOPPED


def test_manual_stop_is_no_crash_whatever_the_process_dies_of() -> None:
    world = World(service("a"), ends_at_once=False).boot()
    world.happen(StopAsked("a"))
    world.die("a", SEGFAULT)
    assert world.state("a") is ServiceState.STOPPED
    assert world.child("a").reason == "stopped on request"
    world.pass_time(1000)
    assert world.said() == "+a1 -a1"


def test_stop_during_a_manual_restart_wins() -> None:
    world = World(service("a"), ends_at_once=False).boot()
    world.happen(RestartAsked("a"), StopAsked("a"))
    world.die("a", NORMAL)
    assert world.state("a") is ServiceState.STOPPED
    assert world.said() == "+a1 -a1"


def test_start_during_a_manual_stop_starts_once_the_old_process_is_gone() -> None:
    world = World(service("a"), ends_at_once=False).boot()
    world.happen(StopAsked("a"), StartAsked("a"))
    assert world.said() == "+a1 -a1"
    world.die("a", NORMAL)
    assert world.said() == "+a2"


def test_manual_restart_concerns_that_service_only_and_does_not_count_as_a_death() -> None:
    world = booted()
    for n in range(1, 50):
        world.happen(RestartAsked("b"))
        assert world.said() == f"-b{n} +b{n + 1}"
    assert world.child("b").restarts == 0


def test_stale_news_of_an_older_generation_changes_nothing() -> None:
    world = booted()
    world.die("a")
    before = world.policy
    world.happen(Died("a", 1, CRASH))
    assert world.policy == before


# Fall-back modes.


def in_modes(**changes: object) -> World:
    world = World(service("a", modes=("cuda", "cpu"), **changes))
    world.boot()
    return world


def crash_times(world: World, times: int) -> None:
    for _ in range(times):
        while "a" not in world.alive:
            assert world.next_timer is not None
            world.pass_time(world.next_timer - world.now)
        world.die("a")


def test_repeated_deaths_in_one_mode_lead_to_the_next_at_once_and_with_a_clean_record() -> None:
    world = in_modes()
    crash_times(world, 3)
    assert world.modes == ["cuda", "cuda", "cuda", "cpu"]
    assert world.child("a").crashes == ()
    crash_times(world, 7)
    assert world.state("a") is ServiceState.FAILED
    assert world.modes[3:] == ["cpu"] * 7


def test_healthy_time_in_a_lower_mode_leads_back_to_the_better_one() -> None:
    world = in_modes()
    crash_times(world, 3)
    world.said()
    world.pass_time(600)
    assert world.said() == "-a4 +a5"
    assert world.modes[-1] == "cuda"
    world.pass_time(10_000)
    assert world.said() == ""


def test_better_mode_that_fails_again_is_left_at_once_and_tried_half_as_often() -> None:
    world = in_modes()
    crash_times(world, 3)
    world.pass_time(600)
    assert world.modes[-1] == "cuda"
    world.said()
    world.die("a")
    assert world.said() == "+a6"
    assert world.modes[-1] == "cpu"
    world.pass_time(1199)
    assert world.said() == ""
    world.pass_time(2)
    assert world.said() == "-a6 +a7"


def test_healthy_deaths_do_not_lead_to_a_lower_mode() -> None:
    world = in_modes()
    for _ in range(10):
        world.pass_time(6)
        world.die("a")
    assert set(world.modes) == {"cuda"}


def test_process_of_a_pool_falls_back_and_returns_alone() -> None:
    world = World(service("a", modes=("cuda", "cpu")), service("a-2", modes=("cuda", "cpu"))).boot()
    crash_times(world, 3)
    assert [(world.child(name).mode, world.state(name)) for name in ("a", "a-2")] == [
        (1, ServiceState.READY),
        (0, ServiceState.READY),
    ]
    world.said()
    world.pass_time(600)
    assert world.said() == "-a4 +a5"
    assert [world.child(name).mode for name in ("a", "a-2")] == [0, 0]
    assert world.child("a-2").generation == 1


# The end.


def test_end_of_the_system_takes_dependents_first() -> None:
    children = (service("a"), service("b", depends_on=("a",)), service("c", depends_on=("b",)), service("d"))
    world = World(*children, ends_at_once=False).boot()
    world.said()
    world.happen(Close())
    assert world.said() == "-d1 -c1"
    world.die("c")
    assert world.said() == ""
    world.die("d")
    assert world.said() == "-b1"
    world.die("b", CRASH)
    assert world.said() == "-a1"
    world.die("a")
    world.happen(StartAsked("a"), RestartAsked("b"))
    world.pass_time(1000)
    assert world.said() == ""


def test_end_of_the_system_withdraws_restarts_under_way() -> None:
    world = booted()
    world.die("a")
    world.die("a")
    world.happen(Close())
    world.said()
    world.pass_time(1000)
    assert world.said() == ""


@pytest.mark.parametrize(
    ("specs", "says"),
    [
        ((service("a"), service("a")), "`name`: 'a' is used twice"),
        ((service("a", depends_on=("z",)),), "a: `depends_on` names 'z'"),
        ((service("a", depends_on=("b",)), service("b", depends_on=("a",))), "depend on each other in a cycle"),
    ],
)
def test_an_invalid_supervision_tree_is_refused_with_the_field(specs: tuple[ServiceSpec, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        World(*specs)
