"""A placement without processes: actors in the same event loop, on memory links, under trio's mock clock."""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from kernel.configure.spec import ServiceSpec
from kernel.router.generation import Generation, ServiceState
from kernel.router.ports import Cause
from kernel.supervisor.placement import Exit, Running
from kernel.supervisor.processes import Activity
from kernel.supervisor.spawn import SpawnError
from kernel.supervisor.supervisor import ServiceReport, Supervisor
from kernel.supervisor.zygote import ZygoteReport
from proto.wire import frames
from proto.wire.channel import Channel, Link, LinkClosed
from proto.wire.frames import AnyFrame, Bye, ByeAck, Drain, Hello, Ping, Pong, Ready
from proto.wire.launch import LaunchConfig
from tests.memory_link import memory_link

MIB = 2**20


class Actor:
    """State and actions of a simulated service."""

    def __init__(self, launch: LaunchConfig, pid: int, link: Link) -> None:
        self.launch = launch
        self.pid = pid
        self.link = link
        self.channel = Channel(link)
        self.memory = 10 * MIB
        self.stopped = False
        self.answers_pings = True
        self.info = {"device": "cpu"}
        self.drains = True
        self.got: list[AnyFrame] = []
        self.signals: list[tuple[float, int]] = []
        self.dies_of: set[int] = {signal.SIGTERM, signal.SIGABRT}
        self.ended = trio.Event()
        self.exit = Exit()

    def die(self, code: int | None = None, number: int | None = None, last_words: str = "") -> None:
        if not self.ended.is_set():
            self.exit = Exit(code=code, signal=number, last_words=last_words)
            self.channel.close()
            self.ended.set()

    def hello(self, **changes: int | str) -> Hello:
        said = {"protocol": frames.PROTOCOL, "service": self.launch.service, "generation": self.launch.generation}
        return Hello(**{**said, "pid": self.pid, "operations": (), **changes})  # type: ignore[arg-type]  # a shorthand


Act = Callable[[Actor], Awaitable[None]]


async def behave(actor: Actor) -> None:
    """A well-behaved service."""
    actor.channel.post(actor.hello())
    actor.channel.post(Ready(actor.info))
    await serve(actor)


async def serve(actor: Actor) -> None:
    """Answer pings and drain on request."""
    while True:
        frame = await actor.channel.receive()
        actor.got.append(frame)
        match frame:
            case Ping(n=n) if actor.answers_pings:
                actor.channel.post(Pong(n, 3, actor.info))
            case Drain() if actor.drains:
                actor.channel.post(Bye())
            case ByeAck():
                actor.die(code=0)
                return
            case _:
                continue


class ActedProcess:
    """`placement.Running`."""

    how = "acted"
    node = ""
    handoff: socket.socket | None = None

    def __init__(self, actor: Actor, link: Link) -> None:
        self.actor = actor
        self.pid = actor.pid
        self.link = link
        self.closed = False

    async def wait(self) -> Exit:
        await self.actor.ended.wait()
        return self.actor.exit

    def became_ready(self) -> None:
        return

    def said_bye(self) -> None:
        return

    def signal(self, number: int) -> None:
        self.actor.signals.append((trio.current_time(), number))
        if number in self.actor.dies_of:
            self.actor.die(number=number)

    def kill(self) -> None:
        if not self.actor.ended.is_set():
            self.signal(signal.SIGKILL)
            self.actor.die(number=signal.SIGKILL)

    def is_stopped(self) -> bool:
        return self.actor.stopped

    def activity(self) -> Activity | None:
        return None

    def memory_bytes(self) -> int | None:
        return self.actor.memory

    async def tend(self, used: bool) -> None:
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        self.closed = True
        self.link.close()


class Stage:
    """`placement.Placement`: `act` is what each generation does."""

    def __init__(self, act: Act = behave) -> None:
        self.act = act
        self.refuses: str | None = None
        self.actors: list[Actor] = []
        self.processes: list[ActedProcess] = []
        self.dismissed: list[str] = []
        self.renewed: list[str] = []
        self.forgotten: list[str] = []
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def start(self, spec: ServiceSpec, launch: LaunchConfig) -> Running:
        await trio.lowlevel.checkpoint()
        if self.refuses is not None:
            raise SpawnError(self.refuses)
        ours, theirs = memory_link()
        actor = Actor(launch, 1000 + len(self.actors), theirs)
        self.actors.append(actor)
        process = ActedProcess(actor, ours)
        self.processes.append(process)
        assert self._nursery is not None
        self._nursery.start_soon(self._play, actor)
        return process

    def zygote_reports(self) -> tuple[ZygoteReport, ...]:
        return ()

    def status(self) -> None:
        return None

    def dismiss(self, service: str) -> None:
        self.dismissed.append(service)

    def renew_log(self, service: str) -> None:
        self.renewed.append(service)

    def forget(self, service: str) -> None:
        self.forgotten.append(service)

    def prioritize(self, service: str) -> None:
        """No-op: nothing here is slow to start."""

    def standby_pid(self, service: str) -> int | None:
        return None

    async def _play(self, actor: Actor) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(actor.channel.run_sender)
            try:
                await self.act(actor)
            except LinkClosed:
                actor.die(code=3)
            await actor.ended.wait()
            nursery.cancel_scope.cancel()

    def actor(self, service: str = "a") -> Actor:
        """Return the latest generation's actor."""
        return next(actor for actor in reversed(self.actors) if actor.launch.service == service)


class Record:
    """`kernel.router.ports.GenerationSink`: a list of notifications."""

    def __init__(self) -> None:
        self.notifications: list[str] = []
        self.frames: list[AnyFrame] = []
        self.causes: list[Cause] = []
        self.retry_at: dict[str, float | None] = {}
        self.busy: set[str] = set()
        self.used: set[str] = set()
        """Services that have a client's call."""
        self.generations: dict[str, Generation] = {}
        """The latest generation of each service."""
        self.idle_at: dict[str, float] = {}
        self.at: dict[str, float] = {}

    def up(self, generation: Generation) -> None:
        self.generations[generation.service] = generation
        self.notifications.append(f"up {generation.service}{generation.number}")

    def frame(self, generation: Generation, frame: AnyFrame) -> None:
        self.notifications.append(f"frame {generation.service}{generation.number}")
        self.frames.append(frame)

    def was_used(self, service: str) -> bool:
        return service in self.used

    def idle_since(self, service: str) -> float | None:
        return None if service in self.busy else self.idle_at.get(service, -math.inf)

    def draining(self, generation: Generation) -> None:
        self.notifications.append(f"draining {generation.service}{generation.number}")

    def down(self, generation: Generation, cause: Cause) -> None:
        self.notifications.append(f"down {generation.service}{generation.number}")
        self.causes.append(cause)

    def gone(self, service: str) -> None:
        self.notifications.append(f"gone {service}")

    def state(self, service: str, state: ServiceState, reason: str, retry_at: float | None) -> None:
        self.notifications.append(f"{state} {service}")
        self.at[self.notifications[-1]] = trio.current_time()
        self.retry_at[service] = retry_at


class Troupe:
    """A running supervisor on a stage."""

    def __init__(self, supervisor: Supervisor, stage: Stage, record: Record) -> None:
        self.supervisor = supervisor
        self.stage = stage
        self.record = record

    async def ready(self, name: str = "a", after: int = 0) -> None:
        await self.supervisor.wait_for(name, {ServiceState.READY}, after_generation=after)

    def report(self, name: str = "a") -> ServiceReport:
        return next(report for report in self.supervisor.status().services if report.name == name)


def launch_config_of(spec: ServiceSpec, generation: int, mode: str) -> LaunchConfig:
    return LaunchConfig(
        service=spec.name, module=spec.module, generation=generation, operations=(), parent_pid=os.getpid(),
        data_dir="/nowhere", roots=(), mode=mode,
    )  # fmt: skip


@asynccontextmanager
async def staged(
    *specs: ServiceSpec,
    act: Act = behave,
    launch_config: Callable[[ServiceSpec, int, str], LaunchConfig] = launch_config_of,
) -> AsyncIterator[Troupe]:
    """A supervisor that runs `specs` on a stage; ended in order at the end."""
    stage, record = Stage(act), Record()
    supervisor = Supervisor(specs, (), record, launch_config, stage)
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        yield Troupe(supervisor, stage, record)
        await supervisor.shutdown()
        assert all(process.closed for process in stage.processes)
