"""One call on its way through the router, with the client's session and the trace context (a W3C traceparent)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import trio

from proto import frames
from proto.dispatch import ClientRequests
from proto.errors import LinckiaError
from proto.frames import Progress
from proto.grants import Grant
from proto.operation import Operation

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
