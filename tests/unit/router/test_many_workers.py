"""Pools of many workers: a simulation with faults, and costs that do not grow with the number of workers."""

from __future__ import annotations

import pytest
import trio

from kernel.router.generation import Generation, Instance, Loads
from tests.bench.parts.kernel_costs import router_cost_us
from tests.bench.simulate import Scenario, simulate
from tests.unit.router.ops import Say
from tests.unit.router.rig import CRASHED, call, rig

MANY = tuple(["speaker", *(f"speaker-{n}" for n in range(2, 9))])


@pytest.mark.parametrize("seed", [1, 2])
def test_no_call_is_lost_or_answered_wrongly_while_nodes_die_singly_and_in_racks(seed: int) -> None:
    found = simulate(Scenario(workers=50, agents=50, seconds=30, rack=10, repair_s=10, seed=seed))
    assert found.calls > 500
    assert sum(found.deaths.values()) > 20
    assert (found.lost, found.wrong) == (0, 0)
    # A call fails if it meets two hanging workers, or if it is a write whose worker died.
    assert found.in_time > 0.98


def test_calls_of_a_rack_without_power_are_answered_in_time() -> None:
    found = simulate(Scenario(workers=60, agents=60, seconds=45, rack=20, load=0.4, fault_every_s=1e9))
    assert found.faults["power"] == 20
    assert (found.lost, found.wrong, found.repeatable_failures) == (0, 0, 0)


@pytest.mark.parametrize("resting", [False, True])
def test_router_takes_no_longer_for_a_call_with_many_workers_than_with_few(resting: bool) -> None:
    ratios = (router_cost_us(1000, 1000, resting=resting) / router_cost_us(20, 1000, resting=resting) for _ in range(4))
    assert any(ratio < 4 for ratio in ratios)


async def test_several_suspects_are_tried_at_once_each_in_a_process_of_its_own() -> None:
    async with rig(speakers=MANY, in_flight=4) as r, trio.open_nursery() as callers:
        r.hold = trio.Event()
        answered: list[str] = []

        async def ask(n: int) -> None:
            answered.append((await call(r, Say(text=str(n))))["text"])

        for n in range(4):
            callers.start_soon(ask, n)
        await r.until(lambda: len(r.by) == 4)
        for name in MANY[:4]:
            r.down(CRASHED, name)
        # Four are left, so two may be tried: the others wait.
        await r.until(lambda: len(r.by) == 6)
        assert len(set(r.by[4:])) == 2
        assert r.router.lane("speaker").queued == 2
        r.hold.set()
    assert sorted(answered) == ["0", "1", "2", "3"]


async def test_least_loaded_instance_is_the_first_of_its_load() -> None:
    instances = [Instance(name, Generation(name, 1)) for name in MANY]
    loads = Loads(instances)
    assert (loads.accepting, loads.least(8)) == (0, None)
    for instance in instances:
        assert instance.generation is not None
        instance.generation.takes_calls = True
        loads.update(instance)
    assert (loads.accepting, loads.least(8)) == (8, instances[0])
    assert loads.least(0) is None
    assert instances[0].generation is not None
    instances[0].generation.takes_calls = False
    loads.update(instances[0])
    assert (loads.accepting, loads.least(8)) == (7, instances[1])
