"""One call on its way through the router, with the client's session and the trace context (a W3C traceparent); the
process that it goes to; and those that are refused for a while, since generations crashed with them in flight."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import trio

from linckia.kernel.ports import ServiceState
from linckia.proto import frames
from linckia.proto.channel import Channel
from linckia.proto.dispatch import ClientRequests
from linckia.proto.errors import LinckiaError
from linckia.proto.frames import MAX_MESSAGE_BYTES, Progress
from linckia.proto.grants import Grant
from linckia.proto.operation import Operation

_given: Callable[[bytes], dict[str, object]] = frames.reader(dict[str, object])

Done = Callable[[bytes | LinckiaError], None]
"""Called once, with the result's body or the failure."""


class RoutedCall(msgspec.Struct, eq=False, kw_only=True):
    """A call, refused, queued or in flight.  All callbacks are synchronous and never block."""

    op: Operation[Any]
    params: bytes
    caller: str
    trace: str
    deadline: float
    limit_s: float
    """What the caller gave it, from when it came."""
    done: Done
    progress: Callable[[Progress], None] | None = None
    client_requests: ClientRequests | None = None
    session: str = ""
    """Of the client; an opaque name, no secret.  Empty where there is none, as for the command line."""
    grant: Grant | None = None
    """What the client may do for whom it is made, be it through another service; None for all."""
    target: str = ""
    """What it is about, in the words of who made it (`proto.target`)."""
    peer: str = ""
    """Where the client is."""
    for_client: bool = True
    """Whether a client waits for it, be it through another service; services make calls for themselves too."""
    frame_id: int = 0
    """Its number on the link while it is in flight; 0 otherwise."""
    generation: int = 0
    instance: str = ""
    deaths: int = 0
    """Generations that died with it in flight."""
    suspect: bool = False
    withdrawn: bool = False
    """Answered, or not wanted any more: `done` is not called again."""

    def is_repeatable(self) -> bool:
        """Whether the call may be sent again although it may have been executed."""
        if not self.op.idempotent:
            return False
        if not self.op.once_with:
            return True
        try:
            given = _given(self.params)
        except msgspec.DecodeError:
            return False
        return all(given.get(name) is None for name in self.op.once_with)


class Waiting:
    """What comes back to a caller in the kernel's own process, until the end of its call."""

    def __init__(self, client_requests: ClientRequests | None) -> None:
        self.finished = trio.Event()
        self.outcome: bytes | LinckiaError | None = None
        self._client_requests = client_requests

    def done(self, outcome: bytes | LinckiaError) -> None:
        self.outcome = outcome
        self.finished.set()

    def progress(self, frame: Progress) -> None:
        if self._client_requests is not None:
            self._client_requests.progress(frame.done, frame.total, frame.message)


class Limits(msgspec.Struct, frozen=True):
    """Back-pressure of one service: calls in flight in each instance, and calls that wait for a place."""

    in_flight: int
    queue: int


class Instance(msgspec.Struct, eq=False):
    """One process of the service, from generation to generation; `channel` is None while none takes calls."""

    name: str
    channel: Channel | None = None
    generation: int = 0
    in_flight: int = 0
    used: bool = False
    """Whether a client's call was sent to it since that was last asked."""
    tries_until: float = -math.inf
    """Until when a suspect that it was sent is to have it for itself."""
    busy_at: float = -math.inf
    """When it last had a call in hand, on trio's clock."""
    state: ServiceState = ServiceState.WAITING
    reason: str = "it has not been started yet"
    retry_at: float | None = None

    def is_hopeless(self, deadline: float) -> bool:
        """Whether a call of this deadline would wait for it in vain."""
        if self.state in (ServiceState.FAILED, ServiceState.STOPPED):
            return True
        return self.state is ServiceState.BACKOFF and self.retry_at is not None and self.retry_at > deadline


QUARANTINE_S = 600.0
"""For refusing a convicted request: longer than an agent's retries, short enough that a repair is noticed."""

ENTRIES = 1024
"""Convictions kept for one service, of `MAX_MESSAGE_BYTES` at most together; the oldest goes first."""


class _Conviction(NamedTuple):
    operation: str
    params: bytes
    until: float
    """On trio's clock."""


class Quarantine:
    """The convictions of one service."""

    def __init__(self) -> None:
        self._kept: collections.deque[_Conviction] = collections.deque()

    def convict(self, call: RoutedCall) -> None:
        """Refuse what it asks from now on."""
        self._kept.append(_Conviction(call.op.name, call.params, trio.current_time() + QUARANTINE_S))
        while len(self._kept) > ENTRIES or sum(len(each.params) for each in self._kept) > MAX_MESSAGE_BYTES:
            self._kept.popleft()

    def left_s(self, call: RoutedCall) -> float:
        """For how long a request that asks the same is refused still; 0 where none is."""
        now = trio.current_time()
        while self._kept and self._kept[0].until <= now:
            self._kept.popleft()
        # To compare is quick: of another length, or with another beginning, they are told apart at once.
        asked = call.op.name, call.params
        return next((each.until - now for each in self._kept if (each.operation, each.params) == asked), 0.0)
