"""A router and a supervisor over services that are acted: memory links, no process, trio's mock clock."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import trio

from kernel.configure.spec import Backoff, ServiceSpec
from kernel.router.generation import Limits, ServiceState
from kernel.router.router import Router
from kernel.supervisor.supervisor import ServiceReport, Supervisor
from proto import ops
from proto.errors import Cancelled
from proto.wire import frames
from proto.wire.frames import Bye, ByeAck, Call, Cancel, Drain, Fault, Ping, Pong, Ready, Return
from tests.unit.router.ops import Said
from tests.unit.supervisor.stage import MIB, Actor, Stage, launch_config_of
from tests.unit.supervisor.world import service

POOL = ("speaker", "speaker-2")
PATIENT = {"intensity": 10**9, "backoff": Backoff(healthy_after_s=0)}
"""However often a service dies, it is started again at once."""

LIMITED = {"memory_limit_bytes": 100 * MIB}
RESTS_S = 3.0

FRAIL_RETRY_S = 5.0
FRAIL = {"intensity": 1, "period_s": 60.0, "backoff": Backoff(base_s=0.5, retry_s=FRAIL_RETRY_S, healthy_after_s=2.0)}
"""A second death in a minute is a crash loop, which is tried again after five seconds."""


MORE = ("front", "frail")


class Defects(logging.Handler):
    """What the kernel calls a defect of its own while it is installed: no service can be the reason for one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "defect" in record.getMessage() or record.exc_info:
            self.found.append(self.format(record))

    def __enter__(self) -> Defects:
        logging.getLogger("linckia").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("linckia").removeHandler(self)


class Acted:
    """The acted services: `held` are the calls that each generation has and has not answered."""

    def __init__(self) -> None:
        self.stage = Stage(self._act)
        self.holds = False
        self.received: dict[int, list[Return | Fault]] = {}
        self.held: dict[int, dict[int, Call]] = {}
        self.delivered: list[Call] = []
        self.deaf: set[int] = set()

    async def _act(self, actor: Actor) -> None:
        held = self.held[actor.pid] = {}
        received = self.received[actor.pid] = []
        actor.channel.post(actor.hello())
        actor.channel.post(Ready())
        while True:
            frame = await actor.channel.receive()
            match frame:
                case Ping() if actor.pid in self.deaf:
                    continue
                case Ping(n=n):
                    actor.channel.post(Pong(n, len(held)))
                case Drain():
                    actor.channel.post(Bye())
                case ByeAck():
                    actor.die(code=0)
                    return
                case Call() if self.holds:
                    held[frame.id] = frame
                    self.delivered.append(frame)
                case Call():
                    actor.channel.post(said(frame))
                case Cancel(id=number) if held.pop(number, None) is not None:
                    actor.channel.post(Fault(number, Cancelled("cancelled").failure))
                case Return() | Fault():
                    received.append(frame)
                case _:
                    continue

    def alive(self) -> list[Actor]:
        return [actor for actor in self.stage.actors[-8:] if not actor.ended.is_set() and actor.pid in self.held]


def said(call: Call) -> Return:
    """The answer to a call of `tests.unit.router.ops`."""
    return Return(call.id, frames.pack_body(Said(text="heard", generation=call.generation, caller=call.origin.caller)))


class Kernel:
    """Router and supervisor, running."""

    def __init__(self, limits: Limits, *, more: bool) -> None:
        self.acted = Acted()
        table = ops.load(["tests.unit.router.ops"])
        names = (*POOL, "relay", *MORE) if more else (*POOL, "relay")
        lanes = {"speaker": limits, "relay": limits, **({name: limits for name in MORE} if more else {})}
        self.router = Router(table, lanes, {"speaker": POOL}, fronts=("front",))
        own = {"relay": {**PATIENT, "rests_after_s": RESTS_S}, "frail": FRAIL} if more else {}
        specs: tuple[ServiceSpec, ...] = tuple(
            service(name, **own.get(name, PATIENT), **(LIMITED if more else {})) for name in names
        )
        self.supervisor = Supervisor(specs, (), self.router, launch_config_of, self.acted.stage)
        self.router.wake_with(self.supervisor.wanted)

    async def ready(self, names: Collection[str] = (*POOL, "relay"), after: int = 0) -> None:
        for name in names:
            await self.supervisor.wait_for(name, {ServiceState.READY}, after_generation=after)

    def report(self, name: str) -> ServiceReport:
        return next(report for report in self.supervisor.status().services if report.name == name)


@asynccontextmanager
async def kernel(limits: Limits | None = None, *, more: bool = False) -> AsyncIterator[Kernel]:
    """One that runs, its services READY; ended in order.  With `more`, also a front and a service that may fail for
    good, and one of the others rests."""
    made = Kernel(limits or Limits(4, 8), more=more)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.router.run)
        await nursery.start(made.supervisor.run)
        await made.ready()
        yield made
        await made.supervisor.shutdown()
        nursery.cancel_scope.cancel()
