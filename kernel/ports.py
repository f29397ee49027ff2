"""Where the parts of the kernel meet: the interfaces between supervisor and router.

The supervisor hands each generation's channel to a `GenerationSink` (the router); the command line makes calls through
`Calls` (the router).  None of them knows the other's inside.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from linckia.kernel.generation import Client, Generation
from linckia.proto.channel import Channel
from linckia.proto.frames import AnyFrame
from linckia.proto.link import Link
from linckia.proto.operation import Operation, Params

ROUTINE = {"routine": True}
"""`extra` of lines of the log that say what happens every day: the file has them, a terminal shows the others."""


class CauseKind(enum.StrEnum):
    """Why a generation ended, as the death tally keeps it."""

    EXIT = "exit"
    SIGNAL = "signal"
    OOM = "oom"
    HANG = "hang"
    MEMORY = "memory"
    DISK = "disk"
    THREADS = "threads"
    STARTUP_TIMEOUT = "startup_timeout"
    PROTOCOL = "protocol"
    SPAWN = "spawn"
    STOPPED = "stopped"
    RESTED = "rested"


class Cause(msgspec.Struct, frozen=True):
    """Why a generation ended: the sort, the exit code or signal number, and a sentence for people."""

    kind: CauseKind
    code: int | None = None
    text: str = ""

    @property
    def is_crash(self) -> bool:
        """A manual stop, a rest and an orderly end with code 0 are no crash."""
        wanted = self.kind in (CauseKind.STOPPED, CauseKind.RESTED)
        return not (wanted or (self.kind is CauseKind.EXIT and self.code == 0))

    @property
    def accuses(self) -> bool:
        """Whether what it was doing may have caused that: not where a signal of others killed it, or stopped it."""
        by_others = (CauseKind.SIGNAL, signal.SIGKILL), (CauseKind.HANG, signal.SIGSTOP)
        return self.is_crash and (self.kind, self.code) not in by_others


class ServiceState(enum.StrEnum):
    """`FAILED` is a crash loop past its intensity; `RESTING` has no process until it is called."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    BACKOFF = "backoff"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"
    RESTING = "resting"


class GenerationSink(Protocol):
    """What the supervisor tells the router.  All are synchronous and never block."""

    def up(self, generation: Generation) -> None:
        """The generation is READY: calls may be posted on its channel."""

    def frame(self, generation: Generation, frame: AnyFrame) -> None:
        """A frame that is none of the supervisor's own (calls, returns, items, progress, events, …) arrived."""

    def draining(self, generation: Generation) -> None:
        """No further calls to this generation; those in flight will still be answered."""

    def was_used(self, service: str) -> bool:
        """Whether a client's call, be it through another service, was in its hands since this was last asked."""

    def idle_since(self, service: str) -> float | None:
        """Since when (trio's clock) it has had no call and made none; None while it has, or calls wait for it."""

    def down(self, generation: Generation, cause: Cause) -> None:
        """The generation is dead; every frame it had sent has been delivered through `frame` before."""

    def state(self, service: str, state: ServiceState, reason: str, retry_at: float | None) -> None:
        """`retry_at` (trio's clock) is when the next start is tried, where one is planned."""


class Calls(Protocol):
    """Makes calls for the kernel's own user."""

    async def call(
        self, operation: Operation[Any], params: Params[Any], *, caller: str, timeout_s: float | None = None,
        client_requests: Client | None = None, written: bool = False,
    ) -> object:  # fmt: skip
        """See `Router.call`."""


LocalHandler = Callable[[Any, str], Awaitable[object]]
"""A kernel operation: parameters and caller to result."""

Known = Callable[[str], str]
"""The name of a service.  Raises InvalidParams if there is no such service."""


class Injector(Protocol):
    """The class of that name in the module that `chaos.module` names, one per kernel: injects faults into links."""

    def channel_to(self, service: str, link: Link) -> Channel:
        """The kernel's end of a link."""

    def handlers(self, known: Known) -> Mapping[type[Params[Any]], LocalHandler]:
        """Handlers of the operations that its module declares with the service `kernel`."""
