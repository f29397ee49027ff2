"""The operations that the kernel itself answers, for the operator, for clients and for services."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio

from proto import errors, frames, grants
from proto.errors import Cancelled, LinckiaError
from proto.frames import Call
from proto.grants import Grant
from proto.operation import Operation, Params

LocalHandler = Callable[[Any, str], Awaitable[object]]
"""A kernel operation: parameters and caller to result."""


class OwnOperations:
    """Their handlers, by name."""

    def __init__(self) -> None:
        self._handlers: dict[str, LocalHandler] = {}

    def serve(self, name: str, handler: LocalHandler) -> None:
        self._handlers[name] = handler

    async def call(self, operation: Operation[Any], params: Params[Any], caller: str, limit_s: float) -> object:
        """The result as plain data.  Raises LinckiaError."""
        handler = self._handlers.get(operation.name)
        if handler is None:
            raise errors.UnknownOperation(f"the kernel does not answer {operation.name!r}")
        try:
            with trio.move_on_after(limit_s):
                return msgspec.to_builtins(await handler(params, caller))
            raise errors.Timeout(f"{operation.name}: not done within {limit_s:.3g} s")
        except LinckiaError as error:
            raise operation.failure(error) from error.__cause__

    async def call_for(self, call: Call, operation: Operation[Any], caller: str, grant: Grant | None) -> object:
        """The same for a call that came over a link.  Raises LinckiaError."""
        grants.current.set(grant)
        try:
            params = frames.read_body(call.params, operation.params)
            params.check()
        except msgspec.DecodeError as error:
            raise errors.InvalidParams(f"{operation.name}: {error}") from None
        return await self.call(operation, params, caller, call.left_ms / 1000)


async def told(tell: Callable[..., None], operation: Operation[Any], work: Callable[[], Awaitable[object]]) -> object:
    """What `work` answers or raises, once the audit log has been told of it."""
    began = trio.current_time()
    outcome: object = Cancelled(f"{operation.name}: withdrawn by the caller")
    try:
        outcome = await work()
    except LinckiaError as error:
        outcome = error
        raise
    finally:
        tell(outcome, began=began)
    return outcome
