"""The interface between supervisor and router, and those of handlers in the kernel.

The supervisor passes each generation's channel to a `GenerationSink` (the router), and does not know its internals.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from kernel.router.generation import Generation, ServiceState
from proto.operation import Params
from proto.wire.channel import Channel, Link
from proto.wire.frames import AnyFrame

ROUTINE = {"routine": True}
"""`extra` for routine log lines: they are written to the log file but not shown on a terminal."""


class CauseKind(enum.StrEnum):
    """Kind of reason for which a generation ended, as counted in the tally of deaths."""

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
    """Why a generation ended: the kind, the exit code or signal number, and a sentence for people."""

    kind: CauseKind
    code: int | None = None
    text: str = ""

    @property
    def is_crash(self) -> bool:
        """Whether the end was a crash, rather than a manual stop, a rest, or an exit with code 0."""
        wanted = self.kind in (CauseKind.STOPPED, CauseKind.RESTED)
        return not (wanted or (self.kind is CauseKind.EXIT and self.code == 0))

    @property
    def accuses(self) -> bool:
        """Whether its calls may have caused the end: not if an external signal killed or stopped it."""
        by_others = (CauseKind.SIGNAL, signal.SIGKILL), (CauseKind.HANG, signal.SIGSTOP)
        return self.is_crash and (self.kind, self.code) not in by_others


class GenerationSink(Protocol):
    """Receives the supervisor's notifications. All methods are synchronous and never block."""

    def up(self, generation: Generation) -> None:
        """The generation is READY, and calls may be posted on its channel."""

    def frame(self, generation: Generation, frame: AnyFrame) -> None:
        """A frame arrived that the supervisor does not handle itself (calls, returns, items, progress, events, …)."""

    def draining(self, generation: Generation) -> None:
        """The generation accepts no more calls; calls in flight will still be answered."""

    def was_used(self, service: str) -> bool:
        """Return whether it has handled a client's call, directly or for another service, since the last check."""

    def idle_since(self, service: str) -> float | None:
        """Return the time (trio's clock) since which it has neither had nor made calls; None if it has any."""

    def down(self, generation: Generation, cause: Cause) -> None:
        """The generation is dead. All frames it sent have been delivered through `frame`."""

    def gone(self, service: str) -> None:
        """The service was removed, and its last generation has ended."""

    def state(self, service: str, state: ServiceState, reason: str, retry_at: float | None) -> None:
        """The service's state changed. `retry_at` (trio's clock) is the time of the next start, if one is planned."""


LocalHandler = Callable[[Any, str], Awaitable[object]]
"""Handler of a kernel operation: takes the parameters and the caller, returns the result."""

Known = Callable[[str], str]
"""Returns the name if such a service exists. Raises InvalidParams if not."""


class Injector(Protocol):
    """The class named `Injector` in the module set by `chaos.module`, created once per kernel: injects link faults."""

    def channel_to(self, service: str, link: Link) -> Channel:
        """Return the kernel's end of a link."""

    def handlers(self, known: Known) -> Mapping[type[Params[Any]], LocalHandler]:
        """Return handlers for the operations that its module declares with service `kernel`."""
