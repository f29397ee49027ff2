"""An attacker in a service: frames that the kernel receives as the service's own.

A kernel whose settings name this module (`IMPLANT`) has the operation `kernel_implant`. The real service keeps running
next to its attacker: its own traffic is unchanged, and it never receives the answers to forged calls.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import trio
from msgspec import Meta

from kernel.router.ports import Known, LocalHandler
from proto import errors
from proto.operation import Params
from proto.ops.kernel import Done, ServiceName, operator
from proto.origin import Origin
from proto.wire import frames
from proto.wire.channel import BACKLOG_BYTES, Channel, Link
from proto.wire.frames import AnyFrame, Call, Fault, Return

IMPLANT: Final = {"LINCKIA_CHAOS": "true", "LINCKIA_CHAOS_MODULE": __name__}
"""The environment of a kernel with this module; it must be able to import `tests`."""

_FIRST_ID = 1 << 50
"""First number of forged calls, which no service reaches by itself."""


@operator.write("kernel_implant", idempotent=False, deadline_s=30)
class KernelImplant(Params[Done], frozen=True, kw_only=True):
    """Call an operation as a compromised service would; `kernel_implanted` returns the result."""

    service: ServiceName
    operation: str
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    caller: Annotated[str, Meta(description="On whose behalf; the service's own by default")] = ""
    during: Annotated[
        str, Meta(description="Wait until the service serves a call of this operation, and call as part of it")
    ] = ""


@operator.read("kernel_implanted", deadline_s=30)
class KernelImplanted(Params[Any], frozen=True, kw_only=True):
    """Return the answer to the latest forged call, once it has arrived."""


@dataclass
class _Forged:
    wanted: KernelImplant
    answered: trio.Event
    answer: Return | Fault | None = None
    parent: int | None = None


class Injector:
    """The attackers of one kernel (`kernel.router.ports.Injector`)."""

    def __init__(self) -> None:
        self._waiting: list[_Forged] = []
        self._sent: dict[int, _Forged] = {}
        self._channels: dict[str, _TakenOver] = {}
        self._latest: _Forged | None = None
        self._ids = itertools.count(_FIRST_ID)

    def handlers(self, known: Known) -> Mapping[type[Params[Any]], LocalHandler]:
        async def implant(params: KernelImplant, caller: str) -> Done:
            self._latest = _Forged(params, trio.Event())
            self._waiting.append(self._latest)
            if not params.during:
                self._channels[params.service].reading.cancel()
            return Done(message="the call waits for its moment")

        async def implanted(params: KernelImplanted, caller: str) -> Any:
            forged = self._latest
            assert forged is not None
            await forged.answered.wait()
            if isinstance(forged.answer, Fault):
                raise errors.from_failure(forged.answer.failure)
            assert forged.answer is not None
            return frames.read_body(forged.answer.body)

        return {KernelImplant: implant, KernelImplanted: implanted}

    def channel_to(self, service: str, link: Link) -> Channel:
        self._channels[service] = channel = _TakenOver(self, service, link)
        return channel

    def delivered(self, service: str, call: Call) -> None:
        for forged in self._waiting:
            if (forged.wanted.service, forged.wanted.during) == (service, call.op):
                forged.parent = call.id

    def forge(self, service: str) -> list[Call]:
        """Return the calls that the attacker makes now."""
        ripe = [
            each
            for each in self._waiting
            if each.wanted.service == service and (each.parent is not None or not each.wanted.during)
        ]
        calls = []
        for each in ripe:
            self._waiting.remove(each)
            self._sent[number := next(self._ids)] = each
            wanted = each.wanted
            calls.append(
                Call(
                    id=number, op=wanted.operation, params=frames.pack_body(wanted.params), left_ms=20_000,
                    origin=Origin(wanted.caller or service, trace=frames.new_trace()), generation=1, parent=each.parent,
                )
            )  # fmt: skip
        return calls

    def answered(self, frame: Return | Fault) -> bool:
        if (forged := self._sent.pop(frame.id, None)) is None:
            return False
        forged.answer = frame
        forged.answered.set()
        return True


class _TakenOver(Channel):
    def __init__(self, injector: Injector, service: str, link: Link) -> None:
        super().__init__(link, frames.from_service, max_backlog_bytes=BACKLOG_BYTES, passes_on=True)
        self._injector = injector
        self._service = service
        self.reading = trio.CancelScope()
        self._ready: collections.deque[AnyFrame] = collections.deque()

    def post(self, frame: AnyFrame) -> None:
        if isinstance(frame, Return | Fault) and self._injector.answered(frame):
            return
        if isinstance(frame, Call):
            self._injector.delivered(self._service, frame)
        super().post(frame)

    async def receive(self) -> AnyFrame:
        while not self._ready:
            with trio.CancelScope() as self.reading:
                self._ready.append(await super().receive())
            # Placed before an answer that arrived meanwhile, so that the served call is still in flight.
            self._ready.extendleft(self._injector.forge(self._service))
        return self._ready.popleft()
