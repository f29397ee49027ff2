"""What a front refuses before there is a call, told to the kernel for its audit log: once, then as a count a minute.

A flood of bad tokens is a few lines in the log and no calls on the link.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import NamedTuple

import trio

from linckia.proto.errors import LinckiaError
from linckia.proto.frames import new_trace, pack_body
from linckia.proto.front import SERVICE
from linckia.proto.grants import current as current_grant
from linckia.proto.operation import operation_of
from linckia.proto.ops.kernel import KernelRefused
from linckia.proto.repeats import INTERVAL_S, Repeats
from linckia.services.front.protocol.session import STDIO, current_peer
from linckia.services.runtime.calls import Outgoing

CHARS = 500
"""Of each text."""

HTTP = "http"
"""Who asks without a token, or with one that is nobody's."""

QUEUE = 64


class _Kind(NamedTuple):
    who: str
    peer: str
    operation: str
    outcome: str


class Refusals:
    """Counts and tells; `run` must be running."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self._repeats: Repeats[_Kind] = Repeats(_Kind(HTTP, "", "http", "refused"))
        self._send, self._receive = trio.open_memory_channel[KernelRefused](QUEUE)
        self._news = trio.Event()

    def note(self, operation: str, outcome: str, message: str, target: str) -> None:
        """As the function `note`."""
        grant, peer = current_grant.get(), current_peer.get()
        who = grant.name if grant is not None else STDIO if peer == STDIO else HTTP
        kind = _Kind(who[:CHARS], peer[:CHARS], operation[:CHARS], outcome)
        if self._repeats.is_first(kind, trio.current_time()):
            self._tell(kind, message, target)
        self._news.set()

    def _tell(self, kind: _Kind, message: str, target: str = "", count: int = 1) -> None:
        # More than the kernel takes at the moment: those of this minute stay untold.
        with contextlib.suppress(trio.WouldBlock):
            told = KernelRefused(**kind._asdict(), target=target[:CHARS], message=message[:CHARS], count=count)
            self._send.send_nowait(told)

    async def run(self) -> None:
        """Until cancelled."""
        operation = operation_of(KernelRefused)
        limit_s = operation.deadline_ms / 1000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._count)
            async for told in self._receive:
                # A kernel that does not answer has other concerns.
                with contextlib.suppress(LinckiaError):
                    await self._outgoing.raw(
                        operation.name, pack_body(told), limit_s=limit_s, trace=new_trace(), caller=SERVICE
                    )

    async def _count(self) -> None:
        while True:
            await self._news.wait()
            self._news = trio.Event()
            await trio.sleep(INTERVAL_S)
            for kind, count in self._repeats.take(trio.current_time(), at_once=True):
                self._tell(kind, "the same again", count=count)


current: ContextVar[Refusals | None] = ContextVar("refusals", default=None)
"""Of this front."""


def note(operation: str, outcome: str, message: str, *, target: str = "") -> None:
    """The request that this task serves was refused: `outcome` names the kind."""
    if (refusals := current.get()) is not None:
        refusals.note(operation, outcome, message, target)
