"""A supervisor over real processes, with a sink that records what the router would receive."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import trio

from kernel.configure.spec import ServiceSpec, ZygoteSpec
from kernel.router.generation import Generation, ServiceState
from kernel.router.ports import Cause
from kernel.supervisor.local import LocalPlacement
from kernel.supervisor.supervisor import ServiceReport, Supervisor
from proto.operation import Params, operation_of
from proto.origin import Origin
from proto.wire import frames
from proto.wire.channel import Channel
from proto.wire.frames import AnyFrame, Call, Fault, Return
from proto.wire.launch import LaunchConfig
from tests.system.support.ops import Echo, Misbehave

OPERATIONS = tuple(sorted(operation_of(params).name for params in (Echo, Misbehave)))
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

LIGHT = ZygoteSpec(name="light", preload=("tests.system.support.service",), wait_s=20)
"""Waits longer than by default, since loading is slow on a busy machine."""


def trial(name: str = "trial", **changes: Any) -> ServiceSpec:
    """The test service, with quick pings and without a standby, so that restarts use its zygote."""
    spec = ServiceSpec(
        name=name, module="tests.system.support.service", zygote="light", ping_interval_s=0.05, standby=False
    )
    return msgspec.structs.replace(spec, **changes)


class Sink:
    """`kernel.router.ports.GenerationSink`: records notifications, and makes calls."""

    def __init__(self) -> None:
        self.channels: dict[str, Channel] = {}
        self.notifications: list[tuple[str, str, int]] = []
        self.causes: dict[tuple[str, int], Cause] = {}
        self.states: list[tuple[float, str, ServiceState]] = []
        self.frames: list[AnyFrame] = []
        self.used: set[str] = set()
        self.idle: set[str] = set()
        self._ids = itertools.count(1)
        self._answers: dict[int, Callable[[Return | Fault], None]] = {}
        self.changed = trio.lowlevel.ParkingLot()

    def up(self, generation: Generation) -> None:
        assert generation.channel is not None
        self.channels[generation.service] = generation.channel
        self._note("up", generation)

    def frame(self, generation: Generation, frame: AnyFrame) -> None:
        self.frames.append(frame)
        if isinstance(frame, Return | Fault) and frame.id in self._answers:
            self._answers.pop(frame.id)(frame)

    def gone(self, service: str) -> None:
        """Nothing is removed here."""

    def was_used(self, service: str) -> bool:
        used, self.used = service in self.used, self.used - {service}
        return used

    def idle_since(self, service: str) -> float | None:
        return -math.inf if service in self.idle else None

    def draining(self, generation: Generation) -> None:
        self._note("draining", generation)

    def down(self, generation: Generation, cause: Cause) -> None:
        self.channels.pop(generation.service, None)
        self.causes[generation.service, generation.number] = cause
        self._note("down", generation)

    def state(self, service: str, state: ServiceState, reason: str, retry_at: float | None) -> None:
        self.states.append((trio.current_time(), service, state))

    def _note(self, what: str, generation: Generation) -> None:
        self.notifications.append((what, generation.service, generation.number))
        self.changed.unpark_all()

    async def until(self, what: str, service: str, generation: int) -> None:
        while (what, service, generation) not in self.notifications:
            await self.changed.park()

    def post(self, params: Params[Any], service: str = "trial") -> int:
        """Make a call without waiting for its answer."""
        number = next(self._ids)
        self.used.add(service)
        name = operation_of(params).name
        self.channels[service].post(
            Call(number, name, frames.pack_body(params), 10_000, Origin("client", trace=TRACE), 0)
        )
        return number

    async def call(self, params: Params[Any], service: str = "trial") -> Return | Fault:
        """Make a call and wait for its answer."""
        answered = trio.Event()
        answers: list[Return | Fault] = []
        number = self.post(params, service)

        def receive(frame: Return | Fault) -> None:
            answers.append(frame)
            answered.set()

        self._answers[number] = receive
        await answered.wait()
        return answers[0]

    async def said(self, params: Params[Any], service: str = "trial") -> str:
        """The text of the answer."""
        answer = await self.call(params, service)
        assert isinstance(answer, Return), answer
        text = msgspec.msgpack.decode(answer.body)["text"]
        assert isinstance(text, str)
        return text


class Rig:
    """A running supervisor and its sink."""

    def __init__(self, supervisor: Supervisor, sink: Sink, folder: Path) -> None:
        self.supervisor = supervisor
        self.sink = sink
        self.folder = folder

    def report(self, name: str = "trial") -> ServiceReport:
        return next(report for report in self.supervisor.status().services if report.name == name)

    async def ready(self, name: str = "trial", after: int = 0) -> ServiceReport:
        """Wait until a generation after `after` is READY."""
        await self.supervisor.wait_for(name, {ServiceState.READY}, after_generation=after)
        return self.report(name)

    def starts(self, name: str = "trial") -> list[float]:
        """Return the start time of each generation."""
        return [at for at, service, state in self.sink.states if (service, state) == (name, ServiceState.STARTING)]

    def log(self, name: str = "trial") -> str:
        return (self.folder / "logs" / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def pid(self, name: str = "trial") -> int:
        pid = self.report(name).pid
        assert pid is not None
        return pid


def launch_config(
    folder: Path, settings: dict[str, Any] | None = None
) -> Callable[[ServiceSpec, int, str], LaunchConfig]:
    def launch(spec: ServiceSpec, generation: int, mode: str) -> LaunchConfig:
        return LaunchConfig(
            service=spec.name,
            module=spec.module,
            generation=generation,
            operations=OPERATIONS,
            parent_pid=os.getpid(),
            data_dir=str(folder / spec.name),
            roots=(),
            mode=mode,
            settings=settings or {},
            memory_limit_bytes=spec.memory_limit_bytes,
        )

    return launch


@contextlib.asynccontextmanager
async def supervised(
    folder: Path,
    *specs: ServiceSpec,
    zygotes: tuple[ZygoteSpec, ...] = (LIGHT,),
    settings: dict[str, Any] | None = None,
) -> AsyncIterator[Rig]:
    """A running supervisor, shut down in order on exit."""
    sink = Sink()
    logs = folder / "logs"
    placement = LocalPlacement(zygotes, logs)
    hasty = tuple(msgspec.structs.replace(spec, standby_first_s=0) for spec in specs)
    supervisor = Supervisor(hasty, zygotes, sink, launch_config(folder, settings), placement)
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        try:
            yield Rig(supervisor, sink, folder)
        finally:
            with trio.CancelScope(shield=True):
                await supervisor.shutdown()


def is_alive(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


def exists(pid: int) -> bool:
    """Return whether the process exists, even as a zombie."""
    return Path(f"/proc/{pid}").exists()


def open_files(pid: int) -> set[str]:
    """Return the paths of the files, other than devices, that a process has open."""
    targets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        # The process may close one between the listing and the look.
        with contextlib.suppress(FileNotFoundError):
            targets.add(os.readlink(entry))
    return {target for target in targets if target.startswith("/") and not target.startswith("/dev")}
