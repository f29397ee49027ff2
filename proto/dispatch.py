"""How calls are made: the interface of the kernel's router, and of what stands for it in the process of a front."""

from __future__ import annotations

from typing import Any, Protocol, TypedDict, Unpack

from linckia.proto.frames import Level
from linckia.proto.json_types import JsonObject
from linckia.proto.operation import Operation, Params


class ClientRequests(Protocol):
    """What a running call may want of the client that made it.  Synchronous ones never block."""

    def progress(self, done: float, total: float | None, message: str | None) -> None: ...

    def log(self, level: Level, logger: str, message: str) -> None: ...

    async def ask(self, method: str, params: dict[str, Any]) -> JsonObject:
        """A request to the client.  Raises LinckiaError where it cannot be made or is refused."""


class CallOptions(TypedDict, total=False):
    """Of one call: who makes it (`client`), its time (by default the operation's), its trace, and its client.

    With `written`, a result that its service has written as JSON comes as such, a `msgspec.Raw`: for callers that
    would only encode it again.
    """

    caller: str
    timeout_s: float | None
    trace: str | None
    client_requests: ClientRequests | None
    written: bool


class Dispatcher(Protocol):
    """Makes calls."""

    async def call(
        self, operation: Operation[object], params: Params[object], **options: Unpack[CallOptions]
    ) -> object:
        """Route one call and wait for its result, as plain data; cancelling this cancels the handler.

        Raises LinckiaError: of the kind that says what happened and whether the work may have been done.
        """
