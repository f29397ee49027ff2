"""The interface for making calls, implemented by the kernel's router and by its substitute in a front's process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, Required, TypedDict, Unpack

from proto.json_types import JsonObject
from proto.operation import Operation, Params
from proto.origin import Origin
from proto.wire.frames import Level


class ClientRequests(Protocol):
    """What a running call may request of its client. Synchronous methods never block."""

    def progress(self, done: float, total: float | None, message: str | None) -> None: ...

    def log(self, level: Level, logger: str, message: str) -> None: ...

    async def ask(self, method: str, params: dict[str, Any]) -> JsonObject:
        """Send a request to the client. Raises LinckiaError if it cannot be sent or is refused."""


class Outlasting(NamedTuple):
    """What becomes of a call that takes longer than its client waits.

    `hand_over` is called after `after_s`, with the call's number on the link; the call then goes on, until it is
    answered.
    """

    after_s: float
    hand_over: Callable[[int], Awaitable[None]]


class CallOptions(TypedDict, total=False):
    """Options of one call: who calls, the timeout (by default the operation's), the client, and what happens if the
    call takes long.

    With `written`, a result that its service has written as JSON is returned as `msgspec.Raw`, for callers that would
    only encode it again.
    """

    origin: Required[Origin]
    timeout_s: float | None
    client_requests: ClientRequests | None
    written: bool
    outlasting: Outlasting | None


class Dispatcher(Protocol):
    """Makes calls."""

    async def call(
        self, operation: Operation[object], params: Params[object], **options: Unpack[CallOptions]
    ) -> object:
        """Route one call and return its result as plain data. Cancelling this cancels the handler.

        Raises LinckiaError, whose kind says what happened and whether the work may have been done.
        """
