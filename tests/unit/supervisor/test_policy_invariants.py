"""What holds of the policy whatever happens in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.configure.spec import Restart, ServiceSpec
from kernel.router.generation import ServiceState
from kernel.router.ports import Cause
from kernel.supervisor.policy_events import Close, Due, Idle, RestartAsked, StartAsked, StopAsked, Wanted
from tests.unit.supervisor.world import CRASH, KILLED, NORMAL, SEGFAULT, World, service

NAMES = "abcd"


@st.composite
def plans(draw: st.DrawFn) -> tuple[ServiceSpec, ...]:
    def spec(name: str) -> ServiceSpec:
        earlier = NAMES[: NAMES.index(name)]
        return service(
            name,
            restart=draw(st.sampled_from(Restart)),
            intensity=draw(st.integers(0, 3)),
            modes=draw(st.sampled_from([(), ("cuda", "cpu")])),
            depends_on=tuple(draw(st.lists(st.sampled_from(earlier), unique=True))) if earlier else (),
            climb_after_s=20,
            rests_after_s=draw(st.sampled_from([None, 60.0])),
        )

    return tuple(spec(name) for name in NAMES)


names = st.sampled_from(NAMES)
events = st.lists(
    st.one_of(
        st.tuples(st.just("die"), names, st.sampled_from([CRASH, NORMAL, KILLED, SEGFAULT])),
        st.tuples(st.just("ready"), names),
        st.tuples(st.sampled_from(["stop", "start", "restart", "idle", "wanted"]), names),
        st.tuples(st.just("pass"), st.sampled_from([0.05, 1.0, 4.0, 6.0, 31.0])),
        st.tuples(st.just("stale"), names),
    ),
    max_size=40,
)


def happens(world: World, event: tuple[object, ...]) -> None:
    match event:
        case ("die", str(name), Cause() as cause) if name in world.alive:
            world.die(name, cause)
        case ("ready", str(name)) if name in world.alive:
            world.ready(name)
        case ("stop", str(name)):
            world.happen(StopAsked(name))
        case ("start", str(name)):
            world.happen(StartAsked(name))
        case ("restart", str(name)):
            world.happen(RestartAsked(name))
        case ("idle", str(name)) if name in world.alive:
            world.happen(Idle(name, world.alive[name]))
        case ("wanted", str(name)):
            world.happen(Wanted(name))
        case ("pass", float(seconds)):
            world.pass_time(seconds)
        case ("stale", str(name)):
            world.happen(Due(name))


def settle(world: World) -> None:
    """Let whatever is being ended end, and whatever starts become READY."""
    for _ in range(1000):
        if world.ending:
            world.die(next(iter(world.ending)), NORMAL)
        elif starting := [name for name in world.alive if world.state(name) is ServiceState.STARTING]:
            world.ready(starting[0])
        elif any(world.state(name) in (ServiceState.BACKOFF, ServiceState.FAILED) for name in NAMES):
            assert world.next_timer is not None, "a restart is planned, but nobody will be woken for it"
            world.pass_time(max(0.0, world.next_timer - world.now))
        else:
            return
    raise AssertionError("it never comes to rest")


@pytest.mark.slow
@given(plans(), events)
def test_every_service_ends_up_running_or_stopped_for_a_reason(
    specs: tuple[ServiceSpec, ...], happened: list[tuple[object, ...]]
) -> None:
    world = World(*specs, starts_ready=False, ends_at_once=False).boot()
    for event in happened:
        # `World` itself checks that no service ever has two processes.
        happens(world, event)
        for name in NAMES:
            child = world.child(name)
            assert child.lives == (name in world.alive)
            assert (child.state is ServiceState.DRAINING) == (name in world.ending)
    settle(world)
    for name in NAMES:
        child = world.child(name)
        assert child.state in (ServiceState.READY, ServiceState.STOPPED, ServiceState.RESTING)
        if child.state is ServiceState.RESTING:
            assert ("idle", name) in happened
            world.happen(Wanted(name))
            assert name in world.alive
        if child.state is ServiceState.STOPPED:
            # Only a person, or an end that its restart type accepts, stops a service.
            asked = ("stop", name) in happened
            accepted = world.plan.specs[name].restart is not Restart.PERMANENT
            assert asked or accepted


@pytest.mark.slow
@given(plans(), events, names)
def test_a_manually_stopped_service_stays_stopped_whatever_happens_to_others(
    specs: tuple[ServiceSpec, ...], happened: list[tuple[object, ...]], stopped: str
) -> None:
    world = World(*specs, starts_ready=False, ends_at_once=False).boot()
    world.happen(StopAsked(stopped))
    generation = world.child(stopped).generation
    for event in happened:
        if event not in (("start", stopped), ("restart", stopped)):
            happens(world, event)
    settle(world)
    assert world.child(stopped).generation == generation
    assert world.state(stopped) is ServiceState.STOPPED


@pytest.mark.slow
@given(plans(), events, events)
def test_nothing_is_started_once_the_system_ends(
    specs: tuple[ServiceSpec, ...], before: list[tuple[object, ...]], after: list[tuple[object, ...]]
) -> None:
    world = World(*specs, starts_ready=False, ends_at_once=False).boot()
    for event in before:
        happens(world, event)
    world.happen(Close())
    world.said()
    for event in after:
        happens(world, event)
    while world.ending:
        world.die(next(iter(world.ending)), NORMAL)
    assert "+" not in world.said()
    assert not world.alive
