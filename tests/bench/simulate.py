"""The router and the supervisor with a pool of up to 1,000 workers on as many nodes, simulated on a mock clock.

The kernel's code is the real one. Nodes, workers and the network are simulated: service times, latency, slow nodes,
workers that are killed, crash or hang, and nodes that lose their power, singly and a rack at a time. Agents call
independently of one another (Poisson arrivals); one call in ten must not be repeated.

A call is lost if it never ends. It is answered wrongly if the answer belongs to another call, or if a call that must
not be repeated ran twice. Both must be 0. Waiting is the time from a call to the start of its work. Times of calls and
recoveries are simulated; the costs of the kernel's code are processor time.

    scripts/bench simulate [--workers N] [--agents N] [--seconds N] [--load SHARE] [--seed N] [--only runs|costs]
"""

from __future__ import annotations

import argparse
import collections
import itertools
import logging
import math
import os
import random
import signal
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio
import trio.testing

from kernel.configure.spec import ServiceSpec
from kernel.router.generation import Limits, ServiceState
from kernel.router.router import Router
from kernel.supervisor.placement import Exit, Running
from kernel.supervisor.processes import Activity
from kernel.supervisor.spawn import SpawnError
from kernel.supervisor.supervisor import Supervisor
from kernel.supervisor.zygote import ZygoteReport
from proto import ops
from proto.errors import LinckiaError
from proto.operation import operation_of
from proto.ops.observation import TimelineEvent
from proto.origin import Origin
from proto.wire import frames
from proto.wire.channel import Channel, Link, LinkClosed
from proto.wire.frames import AnyFrame, Bye, ByeAck, Call, Drain, Hello, Ping, Pong, Ready, Return
from proto.wire.launch import LaunchConfig
from tests.bench.parts.kernel_costs import POOL, instances, policy_cost_us, router_cost_us
from tests.memory_link import memory_link
from tests.unit.router.ops import Said, Say, Write

NO_PID = 1 << 24
"""Above all pids of Linux, so that the supervisor finds no process with the pid of a simulated worker."""

_AWAKE = {"simulation": frames.Backlog(done=0, total=1)}
"""Work that waits, so that a worker never rests: processes on nodes, which may lose their power, do not either."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The scenario to simulate. The load is the share of the workers' time that calls take if nothing fails."""

    workers: int = 1000
    agents: int = 1000
    seconds: float = 60.0
    load: float = 0.5
    rack: int = 50
    service_s: float = 0.4
    """Mean time of a call's work: a batch of passages on a CPU."""
    latency_s: float = 0.0005
    """One way, in a data centre."""
    start_s: float = 2.0
    """Time to start a worker, which loads a model."""
    repair_s: float = 20.0
    """Time after which a node without power is back."""
    fault_every_s: float = 1.0
    """Mean time between faults of single nodes."""
    faults: bool = True
    seed: int = 1


@dataclass(eq=False)
class Node:
    """A machine with at most one worker."""

    latency_s: float
    slowness: float = 1.0
    has_power: bool = True
    worker: Worker | None = None


class Worker:
    """A simulated worker: `placement.Running`. It does one call at a time, in the order of arrival."""

    how = "simulated"
    handoff: socket.socket | None = None

    node = ""

    def __init__(self, launch: LaunchConfig, node: Node, pid: int, world: World) -> None:
        self.launch = launch
        self.machine = node
        self.pid = pid
        self.world = world
        ours, theirs = memory_link()
        self.link: Link = ours
        self.channel = Channel(theirs)
        self.hangs = False
        self._free_at = 0.0
        self._serving = 0
        self._ended = trio.Event()
        self._exit = Exit()

    async def live(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.channel.run_sender)
            nursery.start_soon(self._serve, nursery)
            await self._ended.wait()
            nursery.cancel_scope.cancel()

    async def _serve(self, nursery: trio.Nursery) -> None:
        launch = self.launch
        self.say(Hello(frames.PROTOCOL, launch.service, launch.generation, self.pid, ()))
        self.say(Ready({}))
        try:
            while True:
                frame = await self.channel.receive()
                if not self.machine.has_power or self.hangs:
                    continue
                match frame:
                    case Call():
                        nursery.start_soon(self._work, frame)
                    case Ping(n=n):
                        self.say(Pong(n, self._serving, {}, _AWAKE))
                    case Drain():
                        self.say(Bye())
                    case ByeAck():
                        self.die(code=0)
                        return
                    case _:
                        continue
        except LinkClosed:
            self.die(code=3)

    async def _work(self, call: Call) -> None:
        self._serving += 1
        scenario, node = self.world.scenario, self.machine
        begin = max(trio.current_time() + node.latency_s, self._free_at)
        work_s = self.world.random.expovariate(1 / scenario.service_s) * node.slowness
        self._free_at = begin + work_s
        await trio.sleep_until(begin)
        text = str(frames.read_body(call.params)["text"])
        self.world.began(text, repeatable=call.op != operation_of(Write).name)
        await trio.sleep_until(begin + work_s + node.latency_s)
        self._serving -= 1
        self.say(
            Return(call.id, frames.pack_body(Said(text=text, generation=call.generation, caller=call.origin.caller)))
        )

    def say(self, frame: AnyFrame) -> None:
        if self.machine.has_power and not self.hangs and not self._ended.is_set():
            self.channel.post(frame)

    def die(self, code: int | None = None, number: int | None = None) -> None:
        if not self._ended.is_set():
            self._exit = Exit(code=code, signal=number)
            if self.machine.worker is self:
                self.machine.worker = None
            self.channel.close()
            self._ended.set()

    async def wait(self) -> Exit:
        await self._ended.wait()
        return self._exit

    def said_bye(self) -> None:
        """See `Running`."""

    def became_ready(self) -> None:
        return

    def signal(self, number: int) -> None:
        # A node without power does nothing.
        if self.machine.has_power:
            self.die(number=number)

    def kill(self) -> None:
        """Give it up, even if its node does not answer."""
        self.die(number=signal.SIGKILL)

    def is_stopped(self) -> bool:
        return False

    def activity(self) -> Activity | None:
        return None

    def memory_bytes(self) -> int | None:
        return None

    async def tend(self, used: bool) -> None:
        return

    def close(self) -> None:
        self.link.close()


class Farm:
    """`placement.Placement`: starts each worker on a free node with power."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pids = itertools.count(NO_PID)
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def start(self, spec: ServiceSpec, launch: LaunchConfig) -> Running:
        await trio.sleep(self._world.scenario.start_s * self._world.random.uniform(0.8, 1.2))
        node = next((node for node in self._world.nodes if node.worker is None and node.has_power), None)
        if node is None:
            raise SpawnError("no node is free")
        worker = node.worker = Worker(launch, node, next(self._pids), self._world)
        assert self._nursery is not None
        self._nursery.start_soon(worker.live)
        return worker

    def zygote_reports(self) -> tuple[ZygoteReport, ...]:
        return ()

    def status(self) -> None:
        return None

    def dismiss(self, service: str) -> None: ...

    def forget(self, service: str) -> None: ...

    def renew_log(self, service: str) -> None: ...

    def prioritize(self, service: str) -> None: ...

    def standby_pid(self, service: str) -> int | None:
        return None


@dataclass
class Figures:
    """What a simulation found; times are simulated, in seconds."""

    calls: int = 0
    ended: int = 0
    right: int = 0
    wrong: int = 0
    failures: collections.Counter[str] = field(default_factory=collections.Counter)
    """Failed calls by kind, of those that may be repeated and those that may not."""
    waits: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    deaths: collections.Counter[str] = field(default_factory=collections.Counter)
    recoveries: list[float] = field(default_factory=list)
    """From a fault to the next READY of the worker, including the time until the fault was noticed."""
    faults: collections.Counter[str] = field(default_factory=collections.Counter)
    ready_s: float = 0.0
    """Time from the start until all workers were READY."""
    left: int = 0
    """Calls that the router still had, in its queue or in flight, after all had ended."""
    real_s: float = 0.0

    @property
    def lost(self) -> int:
        return self.calls - self.ended + self.left

    @property
    def in_time(self) -> float:
        """Share of the calls that were answered, and within their deadline."""
        return self.right / self.calls if self.calls else 1.0

    @property
    def repeatable_failures(self) -> int:
        return sum(count for kind, count in self.failures.items() if kind.startswith("read:"))


class World:
    """Nodes, the agents, and what happens to them."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.random = random.Random(scenario.seed)
        # A tenth of the nodes is spare.
        count = scenario.workers + max(1, scenario.workers // 10) + scenario.rack
        self.nodes = [Node(scenario.latency_s * self.random.uniform(0.5, 1.5)) for _ in range(count)]
        self.figures = Figures()
        self._began: collections.Counter[str] = collections.Counter()
        self._called_at: dict[str, float] = {}
        self._hurt_at: dict[str, float] = {}
        self._numbers = itertools.count()

    def began(self, text: str, *, repeatable: bool) -> None:
        self._began[text] += 1
        if not repeatable and self._began[text] > 1:
            self.figures.wrong += 1
        if (at := self._called_at.get(text)) is not None:
            self.figures.waits.append(trio.current_time() - at)

    def witness(self, event: TimelineEvent) -> None:
        if event.kind == "died":
            self.figures.deaths[event.cause] += 1
            self._hurt_at.setdefault(event.service, trio.current_time())
        elif event.kind == "recovered" and (at := self._hurt_at.pop(event.service, None)) is not None:
            self.figures.recoveries.append(trio.current_time() - at)

    async def simulate(self) -> Figures:
        begun = time.perf_counter()
        scenario = self.scenario
        names = instances(scenario.workers)
        spec = ServiceSpec(name=POOL, module="simulated", standby=False)
        limits = Limits(spec.in_flight, spec.queue)
        router = Router(ops.load(["tests.unit.router.ops"]), {POOL: limits}, {POOL: names})
        specs = tuple(ServiceSpec(name=name, module="simulated", standby=False) for name in names)
        supervisor = Supervisor(specs, (), router, _launch, Farm(self))
        supervisor.witness = self.witness
        router.wake_with(supervisor.wanted)
        async with trio.open_nursery() as nursery:
            await nursery.start(router.run)
            started_at = trio.current_time()
            await nursery.start(supervisor.run)
            for name in names:
                await supervisor.wait_for(name, {ServiceState.READY})
            self.figures.ready_s = trio.current_time() - started_at
            async with trio.open_nursery() as agents:
                until = trio.current_time() + scenario.seconds
                for _ in range(scenario.agents):
                    agents.start_soon(self._agent, router, until, agents)
                if scenario.faults:
                    agents.start_soon(self._single_faults, until)
                    agents.start_soon(self._rack_faults)
            lane = router.lane(POOL)
            await trio.sleep(scenario.repair_s)
            self.figures.left = lane.in_flight + lane.queued
            await supervisor.shutdown()
            nursery.cancel_scope.cancel()
        self.figures.real_s = time.perf_counter() - begun
        return self.figures

    async def _agent(self, router: Router, until: float, nursery: trio.Nursery) -> None:
        scenario = self.scenario
        each_s = scenario.agents * scenario.service_s / (scenario.workers * scenario.load)
        while True:
            await trio.sleep(self.random.expovariate(1 / each_s))
            if trio.current_time() >= until:
                return
            nursery.start_soon(self._call, router)

    async def _call(self, router: Router) -> None:
        number = next(self._numbers)
        text, figures = str(number), self.figures
        params = Write(text=text) if number % 10 == 0 else Say(text=text)
        figures.calls += 1
        self._called_at[text] = called_at = trio.current_time()
        try:
            answer = await router.call(operation_of(params), params, origin=Origin("client"))
        except LinckiaError as error:
            figures.failures[f"{'write' if number % 10 == 0 else 'read'}: {error.kind}"] += 1
        else:
            if isinstance(answer, dict) and answer["text"] == text:
                figures.right += 1
            else:
                figures.wrong += 1
            figures.answers.append(trio.current_time() - called_at)
        figures.ended += 1

    async def _single_faults(self, until: float) -> None:
        with trio.move_on_at(until):
            for kind in itertools.cycle(("kill", "power", "crash", "hang", "slow")):
                await trio.sleep(self.random.expovariate(1 / self.scenario.fault_every_s))
                if busy := [node for node in self.nodes if node.worker is not None]:
                    self._strike(kind, self.random.choice(busy))

    async def _rack_faults(self) -> None:
        """Two racks: the power of one fails, and the workers of another are killed."""
        for kind in ("power", "kill"):
            await trio.sleep(self.scenario.seconds / 3)
            first = self.random.randrange(max(1, self.scenario.workers - self.scenario.rack))
            for node in self.nodes[first : first + self.scenario.rack]:
                self._strike(kind, node)

    def _strike(self, kind: str, node: Node) -> None:
        self.figures.faults[kind] += 1
        worker = node.worker
        if worker is not None and kind != "slow":
            self._hurt_at.setdefault(worker.launch.service, trio.current_time())
        match kind:
            case "power":
                node.has_power = False
                trio.lowlevel.spawn_system_task(self._repair, node)
            case "slow":
                node.slowness = 4.0
            case _ if worker is None:
                return
            case "kill":
                worker.die(number=signal.SIGKILL)
            case "crash":
                worker.die(number=signal.SIGSEGV)
            case "hang":
                worker.hangs = True

    async def _repair(self, node: Node) -> None:
        await trio.sleep(self.scenario.repair_s)
        if node.worker is not None:
            node.worker.die(number=signal.SIGKILL)
        node.has_power = True


def _launch(spec: ServiceSpec, generation: int, mode: str) -> LaunchConfig:
    return LaunchConfig(
        service=spec.name, module=spec.module, generation=generation, operations=(), parent_pid=os.getpid(),
        data_dir="/nonexistent", roots=(), mode=mode,
    )  # fmt: skip


def simulate(scenario: Scenario) -> Figures:
    """Run a simulation on a mock clock that jumps whenever nothing is left to do."""
    random.seed(scenario.seed)
    return trio.run(World(scenario).simulate, clock=trio.testing.MockClock(autojump_threshold=0))


def quantile(values: Sequence[float], share: float) -> float:
    found = sorted(values)
    return found[min(len(found) - 1, math.ceil(share * len(found)) - 1)] if found else math.nan


def _print_run(scenario: Scenario, figures: Figures) -> None:
    print(
        f"\n{scenario.workers} workers, {scenario.agents} agents, {scenario.seconds:g} s at {scenario.load:.0%} load, "
        f"{'faults: ' + _counted(figures.faults) if scenario.faults else 'no faults'}"
    )
    rows = [
        ("calls", f"{figures.calls}"),
        ("lost", f"{figures.lost}"),
        ("answered wrongly, or run twice", f"{figures.wrong}"),
        ("answered in time", f"{figures.in_time:.4%}"),
        ("failed", _counted(figures.failures) or "none"),
        ("waiting p50, p99", f"{quantile(figures.waits, 0.5):.3f}, {quantile(figures.waits, 0.99):.3f} s"),
        (
            "answer p50, p99, longest",
            f"{quantile(figures.answers, 0.5):.3f}, {quantile(figures.answers, 0.99):.3f}, "
            f"{max(figures.answers, default=math.nan):.3f} s",
        ),
        ("deaths", _counted(figures.deaths) or "none"),
        (
            "fault to READY p50, longest",
            f"{quantile(figures.recoveries, 0.5):.1f}, {max(figures.recoveries, default=math.nan):.1f} s",
        ),
        ("all READY after", f"{figures.ready_s:.1f} s"),
        ("real time", f"{figures.real_s:.1f} s"),
    ]
    for name, value in rows:
        print(f"  {name:<32}{value}")


def _counted(counts: collections.Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _print_costs() -> None:
    print("\nProcessor time of the kernel's own code, µs (median of 3)")
    print(f"  {'workers':>8}{'router, a call':>16}{'one rests':>12}{'policy, a death':>18}")
    for workers in (1, 10, 100, 1000):
        call = statistics.median(router_cost_us(workers) for _ in range(3))
        rests = statistics.median(router_cost_us(workers, resting=True) for _ in range(3))
        death = statistics.median(policy_cost_us(workers) for _ in range(3))
        print(f"  {workers:>8}{call:>16.1f}{rests:>12.1f}{death:>18.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulates the router and the supervisor with many workers.")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--load", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("runs", "costs"))
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if asked.only != "costs":
        for faults in (False, True):
            scenario = Scenario(
                workers=asked.workers, agents=asked.agents, seconds=asked.seconds, load=asked.load, seed=asked.seed,
                rack=max(1, asked.workers // 20), faults=faults,
            )  # fmt: skip
            _print_run(scenario, simulate(scenario))
    if asked.only != "runs":
        _print_costs()


if __name__ == "__main__":
    main()
