"""Faults that tests have injected into the links between kernel and services: frames that are lost or come late.

Only in a kernel that was started with `[chaos] allowed = true`. Frames that are held back hold back those after them:
a link never changes their order, nor says anything twice.
"""

from __future__ import annotations

import collections
import contextlib
import math
from dataclasses import dataclass

import trio

from linckia.proto import frames
from linckia.proto.channel import BACKLOG_BYTES, Channel
from linckia.proto.frames import AnyFrame
from linckia.proto.link import Link, LinkClosed
from linckia.proto.ops.kernel import KernelChaos

_LOST = math.inf


@dataclass
class _Planned:
    fault: KernelChaos
    left: int


class Faults:
    """What is planned."""

    def __init__(self) -> None:
        self._planned: list[_Planned] = []

    def plan(self, fault: KernelChaos) -> None:
        """In force for frames from now on, in the present and in later generations of the service."""
        if fault.fault == "clear":
            self._planned = [each for each in self._planned if each.fault.service != fault.service]
        else:
            self._planned.append(_Planned(fault, fault.count))

    def channel_to(self, service: str, link: Link) -> Channel:
        """The kernel's end of a link, on which they happen."""
        return _Faulty(self, service, link)

    def take(self, service: str, direction: str, frame: AnyFrame) -> float:
        """How long this frame is held back, in seconds."""
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
    def __init__(self, faults: Faults, service: str, link: Link) -> None:
        super().__init__(link, frames.from_service, max_backlog_bytes=BACKLOG_BYTES)
        self._faults = faults
        self._service = service
        self._held: collections.deque[tuple[float, AnyFrame]] = collections.deque()
        self._holds = trio.Event()

    def post(self, frame: AnyFrame) -> None:
        held_s = self._faults.take(self._service, "to", frame)
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
        while (held_s := self._faults.take(self._service, "from", frame := await super().receive())) == _LOST:
            pass
        if held_s:
            await trio.sleep(held_s)
        return frame
