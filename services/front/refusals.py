"""Reports requests that a front refuses before they become calls, for the kernel's audit log.

The first refusal of a kind is reported at once, repetitions as one count a minute.  A flood of bad tokens makes a few
lines in the log and hardly any traffic on the link.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import NamedTuple

import trio

from proto.errors import LinckiaError
from proto.grants import HTTP, STDIO
from proto.operation import operation_of
from proto.ops.kernel import KernelRefused
from proto.origin import Origin
from proto.repeats import INTERVAL_S, Repeats
from proto.wire.frames import new_trace, pack_body
from proto.wire.front import SERVICE
from services.runtime.calls import Outgoing

CHARS = 500
"""Longest text in a report, in characters; longer ones are truncated."""

QUEUE = 64
"""Reports that wait to be sent; further ones are dropped."""


class _Kind(NamedTuple):
    who: str
    peer: str
    operation: str
    outcome: str


class Refusals:
    """Counts refusals and reports them; `run` must be running."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self._repeats: Repeats[_Kind] = Repeats(_Kind(HTTP, "", "http", "refused"))
        self._send, self._receive = trio.open_memory_channel[KernelRefused](QUEUE)
        self._noted = trio.Event()

    def note(self, origin: Origin, operation: str, outcome: str, message: str, target: str) -> None:
        """See the function `note`."""
        grant, peer = origin.grant, origin.peer
        who = grant.name if grant is not None else STDIO if peer == STDIO else HTTP
        kind = _Kind(who[:CHARS], peer[:CHARS], operation[:CHARS], outcome)
        if self._repeats.is_first(kind, trio.current_time()):
            self._report(kind, message, target)
        self._noted.set()

    def _report(self, kind: _Kind, message: str, target: str = "", count: int = 1) -> None:
        # If the kernel is too slow for them, this minute's reports are dropped.
        with contextlib.suppress(trio.WouldBlock):
            report = KernelRefused(**kind._asdict(), target=target[:CHARS], message=message[:CHARS], count=count)
            self._send.send_nowait(report)

    async def run(self) -> None:
        """Send reports until cancelled."""
        operation = operation_of(KernelRefused)
        limit_s = operation.deadline_ms / 1000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._count)
            async for report in self._receive:
                # A report that the kernel does not accept is dropped.
                with contextlib.suppress(LinckiaError):
                    await self._outgoing.raw(
                        operation.name, pack_body(report), Origin(SERVICE, trace=new_trace()), limit_s=limit_s
                    )

    async def _count(self) -> None:
        while True:
            await self._noted.wait()
            self._noted = trio.Event()
            await trio.sleep(INTERVAL_S)
            for kind, count in self._repeats.take(trio.current_time(), at_once=True):
                self._report(kind, "the same again", count=count)


current: ContextVar[Refusals | None] = ContextVar("refusals", default=None)
"""The reporter of this front."""


def note(origin: Origin, operation: str, outcome: str, message: str, *, target: str = "") -> None:
    """Report that a request from `origin` was refused; `outcome` names the kind of refusal."""
    if (refusals := current.get()) is not None:
        refusals.note(origin, operation, outcome, message, target)
