"""A router with real service loops at the other end of in-memory links; the rig plays the supervisor."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
import trio

from kernel.router.generation import Generation, Limits, ServiceState, Undecoded
from kernel.router.ports import Cause, CauseKind
from kernel.router.record import AuditLog
from kernel.router.router import Router
from proto import ops
from proto.approvals import Rules
from proto.errors import OperationError
from proto.grants import Grant
from proto.operation import Params, operation_of
from proto.origin import Origin
from proto.wire import frames
from proto.wire.channel import Channel, LinkClosed
from proto.wire.frames import Hello, Written
from proto.wire.launch import LaunchConfig
from services.runtime.calls import Outgoing
from services.runtime.handlers import Context, Environment, Handlers, OpenService
from services.runtime.loop import ServiceLoop
from tests.memory_link import memory_link
from tests.unit.router.ops import Put, Relay, Said, Say, Secret, Write

KILLED = Cause(CauseKind.SIGNAL, 9, "killed by signal 9")
STOPPED = Cause(CauseKind.HANG, 19, "was stopped by a signal (SIGSTOP)")
CRASHED = Cause(CauseKind.SIGNAL, 11, "segmentation fault")


class Rig:
    """`hold` makes handlers wait; `seen` is what reached a handler, in order, and `by` which instance."""

    def __init__(
        self,
        nursery: trio.Nursery,
        limits: Limits,
        speakers: Sequence[str],
        fronts: Sequence[str],
        audit: AuditLog | None = None,
        rules: Rules | None = None,
    ) -> None:
        self.table = ops.load(["tests.unit.router.ops"])
        self.router = Router(
            self.table, {"speaker": limits, "relay": Limits(8, 8)}, {"speaker": speakers}, fronts=fronts, audit=audit,
            rules=rules,
        )  # fmt: skip
        self.outgoing: dict[str, Outgoing] = {}
        """How each service makes its calls."""
        self.nursery = nursery
        self.hold = trio.Event()
        self.hold.set()
        self.seen: list[str] = []
        self.stopped: list[str] = []
        self.lingering = trio.Event()
        """Until this is set, cancelled handlers do not end, like those that wait for a thread."""
        self.lingering.set()
        self.arrived = trio.Event()
        self.by: list[str] = []
        self.of_its_own: Callable[[Say], Awaitable[Said]] | None = None
        self.generations: dict[str, Generation] = {}
        """The latest generation of each service."""
        self._scopes: dict[str, trio.CancelScope] = {}

    async def up(self, service: str = "speaker") -> None:
        number = self.generations[service].number + 1 if service in self.generations else 1
        generation = self.generations[service] = Generation(service, number)
        launch = LaunchConfig(
            service=service,
            module="",
            generation=number,
            operations=tuple(op.name for op in self.table.of_service(service.split("-", maxsplit=1)[0])),
            parent_pid=0,
            data_dir="/nonexistent",
            roots=(),
        )
        ours, theirs = memory_link()
        channel = generation.channel = Channel(ours)
        scope = trio.CancelScope()
        open_service: OpenService = {"speaker": self._speaker, "relay": self._relay}[service.split("-", maxsplit=1)[0]]
        ready = trio.Event()

        async def serve() -> None:
            with scope, contextlib.suppress(BaseExceptionGroup):
                await ServiceLoop(launch, theirs).run(open_service)

        async def read() -> None:
            with contextlib.suppress(LinkClosed):
                while True:
                    frame = await channel.receive()
                    if type(frame).__name__ == "Ready":
                        self.router.up(generation)
                        self.router.state(service, ServiceState.READY, "", None)
                        ready.set()
                    elif not isinstance(frame, Hello):
                        self.router.frame(generation, frame)

        self._scopes[service] = scope
        self.nursery.start_soon(serve)
        self.nursery.start_soon(channel.run_sender)
        self.nursery.start_soon(read)
        await ready.wait()

    def down(self, cause: Cause = KILLED, service: str = "speaker") -> None:
        generation = self.generations[service]
        self._scopes.pop(service).cancel()
        assert generation.channel is not None
        generation.channel.close()
        self.router.down(generation, cause)
        self.router.state(service, ServiceState.STARTING, "restarting", None)

    def drain(self, service: str = "speaker") -> None:
        """Drain as on an external signal: the router is not notified."""
        channel = self.generations[service].channel
        assert channel is not None
        channel.post(frames.Drain(0))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for an arrival that makes `condition` true."""
        while not condition():
            self.arrived = trio.Event()
            await self.arrived.wait()

    @contextlib.asynccontextmanager
    async def _speaker(self, env: Environment) -> AsyncIterator[Handlers]:
        handlers = Handlers()
        self.outgoing["speaker"] = env.outgoing

        async def answer(text: str, ctx: Context) -> Said:
            self.seen.append(text)
            self.by.append(env.service)
            self.arrived.set()
            try:
                await self.hold.wait()
            except trio.Cancelled:
                self.stopped.append(text)
                self.arrived.set()
                with trio.CancelScope(shield=True):
                    await self.lingering.wait()
                raise
            if text == "fail":
                raise OperationError("it failed", field="text")
            grant = ctx.grant.name if ctx.grant is not None else ""
            return Said(text=text, generation=env.generation, caller=ctx.caller, grant=grant)

        @handlers.handle(Say)
        async def say(params: Say, ctx: Context) -> Said | Written:
            ctx.progress(1, 2, "half")
            said = await answer(params.text, ctx)
            if not params.text.startswith("written"):
                return said
            written = msgspec.json.encode(said)
            return Written(msgspec.json.format(written) if params.text.endswith("on lines") else written)

        @handlers.handle(Write)
        async def write(params: Write, ctx: Context) -> Said:
            return await answer(params.text, ctx)

        @handlers.handle(Put)
        async def put(params: Put, ctx: Context) -> Said:
            return await answer(params.text, ctx)

        @handlers.handle(Secret)
        async def secret(params: Secret, ctx: Context) -> Said:
            return await answer(params.text, ctx)

        yield handlers

    @contextlib.asynccontextmanager
    async def _relay(self, env: Environment) -> AsyncIterator[Handlers]:
        handlers = Handlers()
        self.of_its_own = env.call
        self.outgoing["relay"] = env.outgoing

        @handlers.handle(Relay)
        async def relay(params: Relay, ctx: Context) -> Said:
            if params.text == "ask":
                answer = await ctx.ask_client("elicitation/create", {"message": "well?"})
                return Said(text=str(answer["content"]), generation=env.generation, caller=ctx.caller)
            if params.text == "widen":
                body = frames.pack_body(Say(text="widened"))
                wider = Origin("relay", grant=Grant("wider"))
                said: Said = frames.read_body(
                    await env.outgoing.raw("test.say", body, wider, limit_s=5, parent=ctx.id), Said
                )
                return said
            if params.text.startswith("secret"):
                return await ctx.call(Secret(text=params.text))
            return await ctx.call(Say(text=params.text))

        yield handlers


@contextlib.asynccontextmanager
async def rig(
    *,
    in_flight: int = 8,
    queue: int = 8,
    up: bool = True,
    speakers: Sequence[str] = ("speaker",),
    fronts: Sequence[str] = (),
    audit: AuditLog | None = None,
    wait_s: float | None = None,
    grow_after_s: float | None = None,
    rules: Rules | None = None,
) -> AsyncIterator[Rig]:
    async with trio.open_nursery() as nursery:
        made = Rig(nursery, Limits(in_flight, queue, wait_s, grow_after_s), speakers, fronts, audit, rules)
        await nursery.start(made.router.run)
        if up:
            for name in speakers:
                await made.up(name)
        try:
            yield made
        finally:
            made.lingering.set()
        nursery.cancel_scope.cancel()


CLIENT = Origin("client")


async def call(r: Rig, params: Params[Any], *, origin: Origin = CLIENT, **options: Any) -> Any:
    """Call as a client; `options` are passed to `Router.call`."""
    answer = await r.router.call(operation_of(params), params, origin=origin, **options)
    return frames.read_body(answer.body) if isinstance(answer, Undecoded) else answer
