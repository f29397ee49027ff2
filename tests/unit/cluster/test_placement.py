"""Services run on this machine whenever the cluster cannot run them, and move there when it can."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

pytest.importorskip("cryptography", reason="certificates need linckia[ray]")

from kernel.configure.spec import ServiceSpec
from kernel.supervisor.cluster.driver import DriverDown
from kernel.supervisor.cluster.fallbacks import AGAIN_S, MAX_FAILURES
from kernel.supervisor.cluster.nodes import AVOID_S, MOVE_S, PLACE_S, ClusterPlacement, for_node
from kernel.supervisor.cluster.remote import RemoteProcess
from kernel.supervisor.placement import Running, cause_of
from proto.wire.cluster import (
    Ended,
    Kill,
    Node,
    Nodes,
    Prepare,
    Prepared,
    Resources,
    Start,
    Started,
    ToDriver,
)
from proto.wire.launch import Confinement
from services.cluster.certificates import Authority
from tests.unit.supervisor.stage import Stage, launch_config_of
from tests.unit.supervisor.world import service

AUTHORITY = Authority(datetime.datetime.now(datetime.UTC))


class ActedDriver:
    """`cluster.ClusterDriver` without Ray: `fails`, `hangs` and `takes_s` say what happens to requests."""

    address = "acted"
    restarts = 0

    def __init__(self) -> None:
        self.connected = True
        self.problem = ""
        self.fails = ""
        self.hangs = False
        self.takes_s = 0.0
        self.posted: list[ToDriver] = []
        self.requested: list[Prepare | Start] = []

    async def run(self) -> None:
        await trio.sleep_forever()

    async def request(self, message: ToDriver) -> Prepared | Started:
        assert isinstance(message, Prepare | Start)
        self.requested.append(message)
        await trio.sleep(self.takes_s if isinstance(message, Prepare) else 0)
        if self.fails:
            raise DriverDown(self.fails)
        if self.hangs:
            await trio.sleep_forever()
        if isinstance(message, Start):
            return Started(id=message.id, pid=42)
        own = AUTHORITY.for_kernel(message.name, datetime.datetime.now(datetime.UTC))
        return Prepared(
            id=message.id, node="abc", node_name="10.0.0.2/abc", host="127.0.0.1",
            certificate=own.certificate, key=own.key, authority=own.authority,
        )  # fmt: skip

    def post(self, message: ToDriver) -> None:
        self.posted.append(message)


class World:
    """A cluster placement over a stage."""

    def __init__(self, placement: ClusterPlacement, stage: Stage, driver: ActedDriver, moved: list[str]) -> None:
        self.placement, self.stage, self.driver, self.moved = placement, stage, driver, moved
        self.generation = 0

    async def start(self, spec: ServiceSpec | None = None) -> Running:
        self.generation += 1
        spec = spec or service("a")
        return await self.placement.start(spec, launch_config_of(spec, self.generation, ""))


def nodes(*ids: str) -> Nodes:
    return Nodes(
        nodes=[Node(id=each, name=f"10.0.0.2/{each}", num_cpus=1, num_gpus=0, memory_bytes=1) for each in ids],
    )


@pytest.fixture(autouse=True)
def _ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing connects here, so processes on nodes are ready at once."""
    monkeypatch.setattr(RemoteProcess, "until_ready", staticmethod(trio.lowlevel.checkpoint))


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    stage, driver, moved = Stage(), ActedDriver(), list[str]()
    placement = ClusterPlacement(stage, {"a": Resources()}, "acted", moved.append, driver=driver)
    async with trio.open_nursery() as nursery:
        await nursery.start(placement.run)
        placement.nodes_changed(nodes("abc"))
        yield World(placement, stage, driver, moved)
        for _, process in tuple(placement.processes.values()):
            process.close()
        nursery.cancel_scope.cancel()


async def test_only_services_in_the_settings_run_on_nodes(autojump_clock: MockClock) -> None:
    async with world() as w:
        assert (await w.start(service("b"))).node == ""
        assert (await w.start()).node == "10.0.0.2/abc"
        [status] = w.placement.status().nodes
        assert status.services == ["a"]


@pytest.mark.parametrize("why", ["not connected", "refused", "no room"])
async def test_it_starts_here_in_bounded_time_if_the_cluster_cannot_run_it(autojump_clock: MockClock, why: str) -> None:
    async with world() as w:
        w.driver.connected = why != "not connected"
        w.driver.fails = "there is no such resource" if why == "refused" else ""
        w.driver.hangs = why == "no room"
        begun = trio.current_time()
        assert (await w.start()).node == ""
        assert trio.current_time() - begun <= PLACE_S
        # Nothing stays reserved.
        assert [each.id for each in w.driver.posted if isinstance(each, Kill)] == [
            each.id for each in w.driver.requested
        ]


async def test_it_stays_here_after_failures_in_a_row_until_a_node_is_new(autojump_clock: MockClock) -> None:
    async with world() as w:
        for _ in range(MAX_FAILURES):
            process = await w.start()
            assert isinstance(process, RemoteProcess)
            process.ended(Ended(id=1, code=1, last_words="there is no model"))
            assert (await process.wait()).last_words == "there is no model"
            process.close()
        assert (await w.start()).node == ""
        w.placement.nodes_changed(nodes("abc"))
        await trio.testing.wait_all_tasks_blocked()
        assert w.moved == []
        w.placement.nodes_changed(nodes("abc", "def"))
        await trio.testing.wait_all_tasks_blocked()
        assert w.moved == ["a"]
        assert (await w.start()).node


async def test_a_success_ends_the_row_of_failures(autojump_clock: MockClock) -> None:
    async with world() as w:
        for _ in range(2 * MAX_FAILURES):
            process = await w.start()
            assert isinstance(process, RemoteProcess)
            process.became_ready()
            process.ended(Ended(id=1, signal=9))
            await process.wait()
            process.close()


async def test_it_is_ready_on_a_node_before_the_one_here_ends(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.driver.connected = False
        await w.start()
        w.driver.connected = True
        w.placement.lost()
        w.placement.nodes_changed(nodes("abc"))
        await trio.testing.wait_all_tasks_blocked()
        assert (w.moved, [type(each) for each in w.driver.requested]) == (["a"], [Prepare, Start])
        assert (await w.start()).node
        # It is that one.
        assert len(w.driver.requested) == 2


async def test_a_process_for_another_generation_is_not_used(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.driver.connected = False
        await w.start()
        w.driver.connected = True
        w.placement.nodes_changed(nodes("def"))
        await trio.testing.wait_all_tasks_blocked()
        w.generation += 1
        assert (await w.start()).node
        assert len(w.driver.requested) == 4
        assert Kill(id=w.driver.requested[0].id) in w.driver.posted


async def test_it_is_not_restarted_until_a_node_has_room(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.driver.connected = False
        await w.start()
        w.driver.connected, w.driver.hangs = True, True
        w.placement.nodes_changed(nodes("def"))
        await trio.sleep(MOVE_S + 1)
        assert w.moved == []
        w.driver.hangs = False
        w.placement.nodes_changed(nodes("def"))
        await trio.testing.wait_all_tasks_blocked()
        assert w.moved == ["a"]


async def test_nothing_is_placed_on_a_lost_node_for_a_while(autojump_clock: MockClock) -> None:
    async with world() as w:
        process = await w.start()
        assert isinstance(process, RemoteProcess)
        process.ended(Ended(id=1))
        await process.wait()
        # Here, it starts sooner.
        assert (await w.start()).node == ""
        for expected in (["abc"], []):
            assert (await w.start()).node
            [*_, request] = (each for each in w.driver.requested if isinstance(each, Prepare))
            assert request.avoid == expected
            await trio.sleep(AVOID_S)


async def test_after_the_loss_of_its_node_it_moves_with_the_next_report(autojump_clock: MockClock) -> None:
    async with world() as w:
        process = await w.start()
        assert isinstance(process, RemoteProcess)
        process.ended(Ended(id=1))
        await process.wait()
        assert (await w.start()).node == ""
        w.placement.nodes_changed(nodes("abc"))
        await trio.testing.wait_all_tasks_blocked()
        assert w.moved == ["a"]
        assert (await w.start()).node


async def test_a_process_that_is_not_used_is_ended(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.driver.connected = False
        await w.start()
        w.driver.connected = True
        w.placement.nodes_changed(nodes("def"))
        await trio.sleep(2 * PLACE_S)
        assert w.driver.posted == [Kill(id=w.driver.requested[0].id)]


async def test_services_on_nodes_are_restarted_when_the_head_is_lost(autojump_clock: MockClock) -> None:
    async with world() as w:
        await w.start()
        w.driver.connected, w.driver.problem = False, "the head is gone"
        w.placement.lost()
        assert w.moved == ["a"]
        assert (await w.start()).node == ""
        assert w.placement.status().problem == "the head is gone"


async def test_a_lost_node_accuses_no_call(autojump_clock: MockClock) -> None:
    async with world() as w:
        process = await w.start()
        assert isinstance(process, RemoteProcess)
        process.ended(Ended(id=1, last_words="the actor died"))
        cause = cause_of(await process.wait(), None)
        assert "node 10.0.0.2/abc" in cause.text
        assert (cause.is_crash, cause.accuses) == (True, False)


async def test_an_orderly_end_is_not_taken_for_a_lost_node_if_the_report_is_late(autojump_clock: MockClock) -> None:
    async with world() as w:
        process = await w.start()
        assert isinstance(process, RemoteProcess)
        process.became_ready()
        process.said_bye()
        process.link.close()
        process._nng.gone.set()
        assert cause_of(await process.wait(), None).is_crash is False
        assert (await w.start()).node


async def test_a_killed_process_has_ended_although_its_node_does_not_answer(autojump_clock: MockClock) -> None:
    async with world() as w:
        process = await w.start()
        process.kill()
        ended = await process.wait()
        assert (ended.signal, "did not answer" in ended.lost) == (9, True)
        assert (await w.start()).node == ""


@pytest.mark.parametrize(
    ("modes", "mode", "gpus", "expected"),
    [
        ((), "", 1, ""),
        (("cpu",), "cpu", 1, "cuda"),
        (("cpu",), "cpu", 0, "cpu"),
        (("cuda", "cpu"), "cuda", 1, "cuda"),
        (("cuda", "cpu"), "cuda", 0, "cpu"),
        # It fell back from CUDA after failures.
        (("cuda", "cpu"), "cpu", 1, "cpu"),
    ],
    ids=str,
)
def test_reserved_gpus_decide_the_mode(modes: tuple[str, ...], mode: str, gpus: float, expected: str) -> None:
    spec = service("a", modes=modes)
    launch = launch_config_of(spec, 1, mode)
    found = for_node(launch, spec, Resources(num_gpus=gpus))
    assert found.mode == expected
    assert found.confinement is None


def test_the_sandbox_allows_the_gpu_with_the_mode() -> None:
    import msgspec

    spec = service("a", modes=("cuda", "cpu"))
    launch = msgspec.structs.replace(launch_config_of(spec, 1, "cuda"), confinement=Confinement(gpu=True))
    walls = for_node(launch, spec, Resources()).confinement
    assert walls is not None
    assert not walls.gpu


async def test_a_move_waits_longer_for_a_busy_node_than_a_start(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.driver.takes_s = 2 * PLACE_S
        assert (await w.start()).node == ""
        await trio.sleep(AGAIN_S)
        w.placement.nodes_changed(nodes("abc"))
        await trio.sleep(2 * PLACE_S + 1)
        assert w.moved == ["a"]
        assert (await w.start()).node == "10.0.0.2/abc"
