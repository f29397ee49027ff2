"""A call on its way through the router, and those who wait for it in the kernel's own process."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import trio
from msgspec import structs

from proto import errors
from proto.errors import Executed, Failure, LinckiaError
from proto.operation import Access, Operation
from proto.origin import Origin
from proto.wire import frames
from proto.wire.frames import Level, Progress

if TYPE_CHECKING:
    from kernel.router.generation import Generation

MAX_DECODED_BYTES = 64 * 1024
"""Largest body that the kernel decodes, which takes some milliseconds at most."""

served: ContextVar[RoutedCall | None] = ContextVar("served", default=None)
"""The call that a service was serving when it made the call that the kernel handles in this task."""

answering: ContextVar[RoutedCall | None] = ContextVar("answering", default=None)
"""The call of a service that the kernel itself handles in this task."""

MAX_QUESTION_BYTES = 1024 * 1024
"""Maximum size of a service's question to a client."""

MAX_SEARCHED_BYTES = 1024 * 1024
"""Largest body in which the kernel looks for single fields."""

_NULL = msgspec.Raw(frames.encode(None))

Done = Callable[[bytes | LinckiaError], None]
"""Called once, with the body of the result or with the failure."""


class Undecoded(msgspec.Struct, frozen=True):
    """A result too large for the kernel to decode, with its original body."""

    body: bytes


class Client(Protocol):
    """What a running call may request of its client. `progress` and `log` never block."""

    def progress(self, done: float, total: float | None, message: str | None) -> None: ...

    def log(self, level: Level, logger: str, message: str) -> None: ...

    async def ask(self, question: bytes) -> bytes:
        """Return the answer to a `frames.Question`, both as bodies. Raises LinckiaError."""


@cache
def _reads(names: tuple[str, ...]) -> Callable[[bytes], object]:
    """Return a decoder for only these fields of a body."""
    members = [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in names]
    return frames.reader(msgspec.defstruct("Members", members))


class RoutedCall(msgspec.Struct, eq=False, kw_only=True):
    """A call that is queued, in flight or refused. All callbacks are synchronous and never block."""

    op: Operation[Any]
    params: bytes
    origin: Origin
    """Who calls, as far as the maker of the call may say so."""
    deadline: float
    limit_s: float
    """Time that the caller allowed, from the call's arrival."""
    done: Done
    progress: Callable[[Progress], None] | None = None
    progressed: Progress | None = None
    """The latest progress, for a task that takes the call over."""
    client_requests: Client | None = None
    target: str = ""
    """What the call is about, as described by its maker (`proto.target`)."""
    maker: Generation | None = None
    """The generation that makes the call; None for the kernel itself."""
    for_client: bool = True
    """Whether a client waits for it, directly or through another service; services also make calls for themselves."""
    frame_id: int = 0
    """Its number on the link while in flight; otherwise 0."""
    generation: Generation | None = None
    """The generation to which it was last sent."""
    sent_at: float | None = None
    """Time at which it was last sent to a process, on trio's clock."""
    span: str = ""
    """Its own span id in the trace, and that of its caller ("" if the trace began with it)."""
    parent_span: str = ""
    deaths: int = 0
    """Number of generations that died with it in flight."""
    suspect: bool = False
    withdrawn: bool = False
    """Whether it is answered or no longer wanted, so that `done` must not be called again."""
    holding: trio.CancelScope | None = None
    """Scope of its wait for an approval, while it has not been submitted."""
    approval: str = ""
    """Id of the approval that it waited for; "" if it needed none."""
    decided_by: str = ""
    """Who approved or denied it."""
    held_s: float = 0.0
    """How long it waited for that."""

    @property
    def executed(self) -> Executed:
        """NO for a call that was never delivered, otherwise MAYBE."""
        return Executed.MAYBE if self.deaths else Executed.NO

    def of_all_times(self, failure: Failure) -> Failure:
        """Do not report a repeated write as not executed just because its last attempt did nothing."""
        if self.deaths and self.op.access is not Access.READ and failure.executed is Executed.NO:
            return structs.replace(failure, executed=Executed.MAYBE)
        return failure

    def is_repeatable(self) -> bool:
        """Return whether the call may be sent again although it may have been executed."""
        if self.origin.key:
            return True
        if not self.op.idempotent:
            return False
        if not self.op.once_with:
            return True
        if len(self.params) > MAX_SEARCHED_BYTES:
            return False
        try:
            given = _reads(tuple(self.op.once_with))(bytes(self.params))
        except msgspec.DecodeError:
            return False
        return all(getattr(given, name) in (msgspec.UNSET, _NULL) for name in self.op.once_with)


class Reports:
    """`Client` for a call made on behalf of a service, which wants its progress only."""

    def __init__(self, report: Callable[[Progress], None]) -> None:
        self._report = report

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self._report(Progress(0, done, total, message))

    def log(self, level: Level, logger: str, message: str) -> None:
        """No-op: the service's own log has it."""

    async def ask(self, question: bytes) -> bytes:
        raise errors.Unavailable("no client is connected that can be asked")


class Waiting:
    """Receives replies for a caller in the kernel's own process, until its call ends."""

    def __init__(self, client_requests: Client | None) -> None:
        self.finished = trio.Event()
        self.outcome: bytes | LinckiaError | None = None
        self._client_requests = client_requests

    def done(self, outcome: bytes | LinckiaError) -> None:
        self.outcome = outcome
        self.finished.set()

    def progress(self, frame: Progress) -> None:
        if self._client_requests is not None:
            self._client_requests.progress(frame.done, frame.total, frame.message)
