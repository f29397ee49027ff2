"""Adapters in this process, with the kernel played by the test: real servers, the real loop, an in-memory link."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import trio

from proto.errors import LinckiaError, Unavailable
from proto.mounts import CHANGE, Definitions, MountReply, MountRequest, operations_of, service_of
from proto.operation import operation_of
from proto.ops.mounts import MountsPut, MountsStored
from proto.origin import Origin
from proto.wire import frames
from proto.wire.channel import Channel, LinkClosed
from proto.wire.frames import (
    Bye,
    ByeAck,
    Call,
    Drain,
    Event,
    Fault,
    Log,
    Pong,
    Progress,
    Ready,
    Return,
    Unfinished,
)
from proto.wire.launch import LaunchConfig
from services.mounts.adapter import open_service
from services.runtime.calls import Outgoing
from services.runtime.loop import ServiceLoop
from tests.memory_link import memory_link

LIMIT_S = 60.0
Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class Client:
    """`services.runtime.dispatch.ClientRequests`: what reached the client of one call."""

    def __init__(self, ask: Ask | None) -> None:
        self.progressed: list[tuple[float, float | None, str | None]] = []
        self.logged: list[tuple[str, str]] = []
        self.asked = ask
        self.reported = trio.Event()

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self.progressed.append((done, total, message))
        self.reported.set()

    def log(self, level: str, logger: str, message: str) -> None:
        self.logged.append((level, message))

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self.asked is None:
            raise Unavailable("this client cannot be asked")
        return await self.asked(method, params)


class Adapter:
    """One generation of an adapter.

    Attributes:
        failure: what ended it, if that was an error.
        reported: `status` values sent before it was ready.
        definitions: the definitions sent to the registry, in order.
        silenced: whether the client's own `ask` cancels the call, as it does for modern clients.
    """

    def __init__(self, mount: str, nursery: trio.Nursery) -> None:
        self.operations = operations_of(mount)
        self.definitions: list[Definitions] = []
        self.put = trio.Event()
        self.events: list[Event] = []
        self.event = trio.Event()
        self.info: dict[str, str] = {}
        self.reported: list[dict[str, str]] = []
        self.failure: BaseException | None = None
        self.ended = trio.Event()
        self.ready = trio.Event()
        self.scope = trio.CancelScope()
        self.nursery = nursery
        ours, self.link = memory_link()
        self.channel = Channel(ours)
        self.ours = ours
        self.outgoing = Outgoing(self.channel, "client", 0)

    async def call(
        self, method: str, params: object = None, *, kind: str = CHANGE, session: str = "s", modern: bool = False,
        answers: object = None, capabilities: object = None, client: Client | None = None,
        ask: Ask | None = None, limit_s: float = LIMIT_S,
    ) -> MountReply:  # fmt: skip
        """Make a request as the router would. Raises LinckiaError."""
        written = params if isinstance(params, bytes) else msgspec.json.encode(params or {})
        request = MountRequest(
            method=method, params=written, modern=modern, answers=msgspec.json.encode(answers) if answers else b"",
            capabilities=b"" if capabilities is None else msgspec.json.encode(capabilities),
        )  # fmt: skip
        body = await self.outgoing.raw(
            self.operations[kind].name, frames.pack_body(request), Origin("client", session), limit_s=limit_s,
            client_requests=client or Client(ask),
        )  # fmt: skip
        reply: MountReply = frames.read_body(body, MountReply)
        return reply

    async def result(self, method: str, params: object = None, **options: Any) -> Any:
        """Return the decoded result of a request."""
        reply = await self.call(method, params, **options)
        assert isinstance(reply.result, msgspec.Raw), reply
        return msgspec.json.decode(reply.result)

    async def tool(self, name: str, arguments: object = None, **options: Any) -> str:
        """Return the text of a tool's result."""
        result = await self.result("tools/call", {"name": name, "arguments": arguments or {}}, **options)
        return str(result["content"][0]["text"])

    async def read(self) -> None:
        with contextlib.suppress(LinkClosed):
            while True:
                match await self.channel.receive():
                    case Ready(info=info):
                        self.info = info
                        self.ready.set()
                    case Pong(info=info):
                        self.reported.append(info)
                    case Return() | Fault() as frame:
                        self.outgoing.answer(frame)
                    case Unfinished(id=number, failure=failure):
                        self.outgoing.answer(Fault(number, failure))
                    case Progress() | Log() as frame:
                        self.outgoing.report(frame)
                    case Event() as event:
                        self.events.append(event)
                        self.event.set()
                        self.event = trio.Event()
                    case Call(op=frames.ASK_CLIENT) as question:
                        self.nursery.start_soon(self.outgoing.ask, question)
                    case Call() as call:
                        self._register(call)
                    case Bye():
                        self.channel.post(ByeAck())

    def _register(self, call: Call) -> None:
        assert call.op == operation_of(MountsPut).name
        params = msgspec.msgpack.decode(call.params, type=MountsPut)
        self.definitions.append(msgspec.json.decode(params.definitions, type=Definitions))
        self.channel.post(Return(call.id, frames.pack_body(MountsStored())))
        self.put.set()
        self.put = trio.Event()

    async def until_put(self, count: int) -> Definitions:
        """Wait until definitions were sent `count` times."""
        while len(self.definitions) < count:
            await self.put.wait()
        return self.definitions[-1]

    async def finish(self) -> None:
        """End it in order."""
        self.channel.post(Drain(1000))
        await self.ended.wait()


def cause_of(error: BaseException) -> str:
    """Return the message of the innermost error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


@contextlib.asynccontextmanager
async def adapter(
    folder: Path,
    *,
    mount: str = "test",
    is_ready: bool = True,
    meanwhile: Callable[[Adapter], Awaitable[None]] | None = None,
    **settings: Any,
) -> AsyncIterator[Adapter]:
    """Run an adapter with these settings. With `is_ready`, raises AssertionError if it does not become ready.
    `meanwhile` runs beside it, also while it starts."""
    async with trio.open_nursery() as nursery:
        running = Adapter(mount, nursery)
        data = folder / service_of(mount)
        data.mkdir(exist_ok=True)
        launch = LaunchConfig(
            service=service_of(mount), module="", generation=1, parent_pid=0, data_dir=str(data), roots=(),
            operations=tuple(op.name for op in running.operations.values()), settings={"mount": mount, **settings},
        )  # fmt: skip

        async def serve() -> None:
            try:
                with running.scope:
                    await ServiceLoop(launch, running.link).run(open_service)
            except* LinkClosed:
                pass
            except* Exception as group:  # noqa: BLE001  # tests look at it
                running.failure = group
            finally:
                running.ours.close()
                running.ended.set()
                running.ready.set()
                for number in tuple(running.outgoing.waiting):
                    running.outgoing.answer(Fault(number, Unavailable("the adapter died").failure))

        nursery.start_soon(serve)
        nursery.start_soon(running.channel.run_sender)
        nursery.start_soon(running.read)
        if meanwhile is not None:
            nursery.start_soon(meanwhile, running)
        with trio.fail_after(LIMIT_S):
            await running.ready.wait()
            if is_ready:
                assert running.failure is None, cause_of(running.failure)
            yield running
            running.scope.cancel()
            await running.ended.wait()
        nursery.cancel_scope.cancel()


__all__ = ["Adapter", "Client", "LinckiaError", "adapter", "cause_of"]
