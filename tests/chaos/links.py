"""Faults in the links between kernel and services: frames that are lost or delayed.

A kernel imports this module if its settings name it (`LINKS`), and then has the operation `kernel_chaos`. A delayed
frame delays those after it: a link never reorders or repeats frames.
"""

from __future__ import annotations

import collections
import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import trio
from msgspec import Meta

from kernel.router.ports import Known, LocalHandler
from proto.operation import Params
from proto.ops.kernel import Done, ServiceName, operator
from proto.wire import frames
from proto.wire.channel import BACKLOG_BYTES, Channel, Link, LinkClosed
from proto.wire.frames import AnyFrame

LINKS: Final = {"LINCKIA_CHAOS": "true", "LINCKIA_CHAOS_MODULE": __name__}
"""The environment of a kernel in which faults can be injected; it must be able to import `tests`."""

_LOST = math.inf


@operator.write("kernel_chaos", idempotent=False, deadline_s=10, text="message")
class KernelChaos(Params[Done], frozen=True, kw_only=True):
    """Drop or delay the next frames to or from a service."""

    service: ServiceName
    direction: Annotated[Literal["to", "from"], Meta(description="Towards the service, or from it")] = "from"
    fault: Annotated[Literal["drop", "delay", "clear"], Meta(description="`clear` cancels planned faults")]
    count: Annotated[int, Meta(ge=1, le=1_000_000, description="How many frames")] = 1
    frame: Annotated[
        Literal["any", "call", "return", "fault", "progress", "cancel", "event", "ping", "pong", "ready", "part"],
        Meta(description="Only frames of this kind"),
    ] = "any"
    delay_ms: Annotated[int, Meta(ge=1, le=600_000, description="Delay of each frame")] = 1000


@dataclass
class _Planned:
    fault: KernelChaos
    left: int


class Injector:
    """The planned faults of one kernel (`kernel.router.ports.Injector`)."""

    def __init__(self) -> None:
        self._planned: list[_Planned] = []

    def handlers(self, known: Known) -> Mapping[type[Params[Any]], LocalHandler]:
        async def chaos(params: KernelChaos, caller: str) -> Done:
            known(params.service)
            self.plan(params)
            return Done(message=f"{params.fault} is planned for frames {params.direction} {params.service}")

        return {KernelChaos: chaos}

    def plan(self, fault: KernelChaos) -> None:
        """Apply a fault to frames from now on, in the current and later generations of the service."""
        if fault.fault == "clear":
            self._planned = [each for each in self._planned if each.fault.service != fault.service]
        else:
            self._planned.append(_Planned(fault, fault.count))

    def channel_to(self, service: str, link: Link) -> Channel:
        """Return the kernel's end of a link on which the faults happen."""
        return _Faulty(self, service, link)

    def take(self, service: str, direction: str, frame: AnyFrame) -> float:
        """Return the delay of this frame in seconds."""
        name = type(frame).__name__.lower()
        for each in self._planned:
            fault = each.fault
            if (fault.service, fault.direction) == (service, direction) and fault.frame in ("any", name):
                each.left -= 1
                if not each.left:
                    self._planned.remove(each)
                return _LOST if fault.fault == "drop" else fault.delay_ms / 1000
        return 0.0


class _Faulty(Channel):
    def __init__(self, injector: Injector, service: str, link: Link) -> None:
        super().__init__(link, frames.from_service, max_backlog_bytes=BACKLOG_BYTES, passes_on=True)
        self._injector = injector
        self._service = service
        self._held: collections.deque[tuple[float, AnyFrame]] = collections.deque()
        self._holds = trio.Event()

    def post(self, frame: AnyFrame) -> None:
        held_s = self._injector.take(self._service, "to", frame)
        if held_s == _LOST:
            return
        if held_s or self._held:
            self._held.append((trio.current_time() + held_s, frame))
            self._holds.set()
        else:
            super().post(frame)

    async def run_sender(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._release)
            await super().run_sender()
            nursery.cancel_scope.cancel()

    async def _release(self) -> None:
        while True:
            await self._holds.wait()
            while self._held:
                await trio.sleep_until(self._held[0][0])
                with contextlib.suppress(LinkClosed):
                    super().post(self._held[0][1])
                self._held.popleft()
            self._holds = trio.Event()

    async def receive(self) -> AnyFrame:
        while (held_s := self._injector.take(self._service, "from", frame := await super().receive())) == _LOST:
            pass
        if held_s:
            await trio.sleep(held_s)
        return frame
