"""Services in one process over in-memory links, for tests: the real loop, the real handlers, no kernel and no process.

    async with services_in_process({"retrieve": retrieve.open_service}, tmp_path, roots=[…]) as bench:
        result = await bench.call(RetrievePut(…))

Calls from one service to another are passed between them as the kernel would; a service named in a declaration but
not given is Unavailable.  `bench.stop(name)` ends one as a crash would (its link closes), `bench.start(name)` brings
the next generation.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import trio

from proto import ops
from proto.errors import Cancelled, LinckiaError, Unavailable
from proto.operation import Params, operation_of
from proto.origin import Origin
from proto.wire import frames
from proto.wire.channel import Channel, LinkClosed
from proto.wire.frames import (
    Bye,
    ByeAck,
    Call,
    Cancel,
    Drain,
    Event,
    Fault,
    Progress,
    Ready,
    Return,
    Unfinished,
)
from proto.wire.launch import LaunchConfig
from services.runtime.calls import Outgoing
from services.runtime.handlers import OpenService
from services.runtime.loop import ServiceLoop
from services.runtime.roots import Roots
from tests.memory_link import memory_link

R = TypeVar("R")


class _Running:
    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.outgoing = Outgoing(channel, "client", 0)
        self.scope = trio.CancelScope()
        self.ready = trio.Event()
        self.ended = trio.Event()
        self.info: dict[str, str] = {}
        self.progress: list[Progress] = []
        self.events: list[Event] = []
        self.passed_on: dict[int, trio.CancelScope] = {}
        """Its calls of other services that are in flight."""


class Bench:
    """The services under test; `call` acts as a client, or as the service named by `caller`."""

    def __init__(self, services: Mapping[str, OpenService], folder: Path, roots: Roots,
                 settings: Mapping[str, dict[str, Any]], table: ops.Table, nursery: trio.Nursery) -> None:  # fmt: skip
        self._services = services
        self._folder = folder
        self._roots = roots
        self._settings = settings
        self._table = table
        self._nursery = nursery
        self._generations: dict[str, int] = {}
        self.running: dict[str, _Running] = {}
        self.failures: list[BaseException] = []

    async def start(self, name: str, *, mode: str = "") -> None:
        """Start the next generation and wait until it is ready."""
        self._generations[name] = self._generations.get(name, 0) + 1
        launch = LaunchConfig(
            service=name, module="", generation=self._generations[name], parent_pid=0, mode=mode,
            operations=tuple(op.name for op in self._table.of_service(name)),
            data_dir=str(self._folder / name), settings=self._settings.get(name, {}),
            roots=tuple(self._roots), read_only=tuple(self._roots.read_only), denied=self._roots.denied,
            denied_patterns=self._roots.patterns,
        )  # fmt: skip
        await trio.Path(launch.data_dir).mkdir(parents=True, exist_ok=True)
        ours, theirs = memory_link()
        channel = Channel(ours)
        running = self.running[name] = _Running(channel)

        async def serve() -> None:
            with running.scope:
                try:
                    await ServiceLoop(launch, theirs).run(self._services[name])
                except* LinkClosed:
                    pass
                except* Exception as group:  # noqa: BLE001  # `failures` is what tests look at
                    self.failures.append(group)
                finally:
                    ours.close()
                    running.ended.set()
                    running.ready.set()

        self._nursery.start_soon(serve)
        self._nursery.start_soon(channel.run_sender)
        self._nursery.start_soon(self._read, running)
        await running.ready.wait()
        if self.failures:
            raise self.failures[0]

    async def stop(self, name: str) -> None:
        """End the service as a crash would: nothing of it runs on, its link is closed."""
        running = self.running.pop(name)
        running.scope.cancel()
        await running.ended.wait()
        for call_id in tuple(running.outgoing.waiting):
            running.outgoing.answer(Fault(call_id, Unavailable(f"{name} died").failure))

    async def finish(self, name: str) -> None:
        """End the service in order, as the kernel does: drain, bye, bye-ack."""
        running = self.running.pop(name)
        running.channel.post(Drain(1000))
        await running.ended.wait()

    async def call(
        self, params: Params[R], *, timeout_s: float | None = None, session: str = "", caller: str = ""
    ) -> R:
        """Call an operation as a client would, in its MCP session of that name, or as the service `caller`; raises its
        LinckiaError."""
        op = operation_of(params)
        limit_s = op.deadline_ms / 1000 if timeout_s is None else timeout_s
        outgoing = self._running(op.service).outgoing
        try:
            packed = frames.pack_body(params)
            body = await outgoing.raw(
                op.name, packed, Origin(caller or outgoing.service, session, trace=frames.new_trace()), limit_s=limit_s
            )
        except LinckiaError as error:
            raise op.failure(error) from None
        return frames.typed(op, body)

    def _running(self, service: str) -> _Running:
        if service not in self.running:
            raise Unavailable(f"service {service} is not running")
        return self.running[service]

    async def _read(self, running: _Running) -> None:
        with contextlib.suppress(LinkClosed):
            while True:
                frame = await running.channel.receive()
                match frame:
                    case Ready(info=info):
                        running.info = info
                        running.ready.set()
                    case Return() | Fault():
                        running.outgoing.answer(frame)
                    case Unfinished(id=number, failure=failure):
                        # No lane exists that would pass it to the next generation.
                        running.outgoing.answer(Fault(number, failure))
                    case Progress():
                        running.progress.append(frame)
                    case Event():
                        running.events.append(frame)
                    case Call():
                        running.passed_on[frame.id] = trio.CancelScope()
                        self._nursery.start_soon(self._pass_on, running, frame)
                    case Cancel(id=number):
                        if (scope := running.passed_on.get(number)) is not None:
                            scope.cancel()
                    case Bye():
                        running.channel.post(ByeAck())
                    case _:
                        continue

    async def _pass_on(self, origin: _Running, call: Call) -> None:
        answer: Return | Fault = Fault(call.id, Cancelled(f"{call.op} was cancelled").failure)
        with origin.passed_on[call.id]:
            try:
                outgoing = self._running(self._table.find(call.op).service).outgoing
                body = await outgoing.raw(
                    call.op, call.params, Origin("client", trace=call.origin.trace), limit_s=call.left_ms / 1000
                )
                answer = Return(call.id, body)
            except LinckiaError as error:
                answer = Fault(call.id, error.failure)
        del origin.passed_on[call.id]
        with contextlib.suppress(LinkClosed):
            origin.channel.post(answer)


@contextlib.asynccontextmanager
async def services_in_process(
    services: Mapping[str, OpenService],
    folder: Path,
    *,
    roots: Sequence[Path] | Roots = (),
    settings: Mapping[str, dict[str, Any]] | None = None,
    ops_modules: Sequence[str] = (),
) -> AsyncIterator[Bench]:
    """Run `services` (name → open_service), started in the order given; each has its data in `folder/NAME`."""
    async with trio.open_nursery() as nursery:
        there = roots if isinstance(roots, Roots) else Roots(roots)
        bench = Bench(services, folder, there, settings or {}, ops.load(ops_modules), nursery)
        for name in services:
            await bench.start(name)
        yield bench
        nursery.cancel_scope.cancel()
