"""Renewal: a service that its work has made large is exchanged for its next generation once it has nothing to do."""

from __future__ import annotations

import math

import trio
from trio.testing import MockClock

from kernel.ports import ServiceState
from kernel.supervisor.idleness import SETTLES_S, WORTH_BYTES, Idleness
from kernel.supervisor.spec import TreeSpec
from kernel.supervisor.state import Idle
from tests.unit.supervisor.stage import MIB, Actor, behave, staged
from tests.unit.supervisor.world import World, service

AFTER_S = 60.0


def looking(*, fresh: bool = False) -> Idleness:
    return Idleness(service("a", renews_after_s=AFTER_S), fresh=fresh)


def test_one_that_has_grown_and_rests_is_exchanged_at_once_and_that_is_no_death() -> None:
    w = World(TreeSpec(name="root", children=(service("a", renews_after_s=AFTER_S), service("b")))).boot()
    w.said()
    w.happen(Idle("a", 1))
    assert (w.said(), w.state("a")) == ("-a1 +a2", ServiceState.READY)
    assert (w.child("a").deaths, w.child("a").restarts) == ({}, 0)


def test_it_is_exchanged_where_it_gained_enough_and_neither_works_nor_is_called() -> None:
    idleness = looking()
    assert not idleness.look(0, 0, 0, 0.0, 40 * MIB)
    # It works until 100, and has a call until 150.
    assert not idleness.look(100, 0, None, 50.0, 200 * MIB)
    assert not idleness.look(150 + AFTER_S - 1, 0, 150, 50.0, 200 * MIB)
    assert idleness.look(150 + AFTER_S, 0, 150, 50.0, 200 * MIB)
    assert not idleness.look(150 + AFTER_S, 0, None, 50.0, 200 * MIB)
    assert not idleness.look(150 + AFTER_S, 0, 150, 50.0, 40 * MIB + WORTH_BYTES - 1)


def test_work_that_no_call_waits_for_is_work() -> None:
    idleness = looking()
    assert not idleness.look(0, 0, 0, 0.0, 40 * MIB)
    for second in range(1, 1000):
        assert not idleness.look(second, 0, 0, second / 2, 200 * MIB)
    # Pings are none.
    done = [idleness.look(1000 + second, 0, 0, 500 + second / 100, 200 * MIB) for second in range(100)]
    assert done.index(True) == AFTER_S


def test_what_a_fresh_one_holds_before_its_first_call_is_what_it_needs() -> None:
    idleness = looking(fresh=True)
    assert not idleness.look(0, 0, -math.inf, 0.0, 40 * MIB)
    # It loads.
    assert not idleness.look(1, 0, -math.inf, 0.9, 200 * MIB)
    assert not idleness.look(2 + SETTLES_S, 0, -math.inf, 0.9, 150 * MIB)
    assert not idleness.look(1000, 0, -math.inf, 0.9, 150 * MIB)
    assert not idleness.look(1000, 0, -math.inf, 0.9, 200 * MIB + WORTH_BYTES - 1)
    assert idleness.look(1001, 0, 900, 0.9, 200 * MIB + WORTH_BYTES)


def test_a_fresh_one_that_is_called_at_once_needs_what_it_loads_and_no_more() -> None:
    idleness = looking(fresh=True)
    assert not idleness.look(0, 0, 0, 0.0, 40 * MIB)
    # It loads, and is called meanwhile.
    assert not idleness.look(2, 0, 1, 1.5, 200 * MIB)
    assert not idleness.look(SETTLES_S - 1, 0, 1, 1.5, 200 * MIB)
    assert not idleness.look(1000, 0, 1, 1.5, 200 * MIB)
    # What later work leaves is another thing.
    assert not idleness.look(1100, 0, None, 50.0, 300 * MIB)
    assert not idleness.look(1200, 0, 1200, 50.0, 300 * MIB)
    assert idleness.look(1201 + AFTER_S, 0, 1200, 50.0, 300 * MIB)


async def test_a_service_is_exchanged_once_and_not_for_ever(autojump_clock: MockClock) -> None:

    async def starts_small(actor: Actor) -> None:
        actor.memory = 40 * MIB
        async with trio.open_nursery() as nursery:

            async def load() -> None:
                await trio.sleep(2)
                actor.worked_s += 2
                actor.memory = (300 if actor.birth.generation == 1 else 150) * MIB

            nursery.start_soon(load)
            await behave(actor)

    async with staged(service("a", renews_after_s=AFTER_S), act=starts_small) as troupe:
        await troupe.ready(after=1)
        await trio.sleep(100 * AFTER_S)
        report = troupe.report()
        assert (report.generation, report.restarts, report.deaths) == (2, 0, {})
        assert "draining a1" in troupe.record.told
