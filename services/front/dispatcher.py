"""Calls in clients' names: what the front itself answers, answered here; everything else through the kernel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
import trio

from proto import frames, grants, results
from proto.dispatch import ClientRequests, Dispatcher
from proto.errors import Forbidden, Kind, LinckiaError, Timeout, UnknownOperation
from proto.frames import Event
from proto.front import SERVICE
from proto.operation import CLIENT, Operation, Params
from proto.target import described
from services.front import rate, refusals
from services.front.session import current_peer, current_session
from services.runtime.calls import Outgoing

LONG_BYTES = 512 * 1024

LocalHandler = Callable[[Any, str], Awaitable[object]]
"""An operation that the front answers itself: parameters and caller to result."""


class Events(Protocol):
    """Where what services tell clients comes from, and what fronts tell one another goes to."""

    def on_event(self, receive: Callable[[Event], Awaitable[None]]) -> None: ...

    def publish(self, topic: str, body: object) -> None: ...


def check_grant(operation: Operation[Any]) -> None:
    """Raises Forbidden where the client that is served may not call it; the kernel checks what is not answered here."""
    grant = grants.current.get()
    if grant is not None and (refusal := operation.refusal(grant)):
        refusals.note(operation.name, Kind.FORBIDDEN.value, refusal)
        raise Forbidden(refusal)


class LinkDispatcher(Dispatcher):
    """`proto.dispatch.Dispatcher` over the link of a front.

    Args:
        parent: the call that is being served, where the calls are made for its caller.
    """

    def __init__(
        self, outgoing: Outgoing, local: dict[str, LocalHandler] | None = None, *, parent: int | None = None
    ) -> None:
        self._outgoing = outgoing
        self._local = {} if local is None else local
        self._parent = parent

    def for_call(self, parent: int) -> LinkDispatcher:
        """The same for calls that are made while serving this one."""
        return LinkDispatcher(self._outgoing, self._local, parent=parent)

    def serve_local(self, name: str, handler: LocalHandler) -> None:
        """This handler answers operation `name` (declared with the front as its service)."""
        self._local[name] = handler

    async def call(
        self,
        operation: Operation[Any],
        params: Params[Any],
        *,
        caller: str = "client",
        timeout_s: float | None = None,
        trace: str | None = None,
        client_requests: ClientRequests | None = None,
        written: bool = False,
    ) -> object:
        """See `proto.dispatch.Dispatcher.call`."""
        if caller == CLIENT:
            rate.count(operation.name)
        limit_s = operation.deadline_ms / 1000 if timeout_s is None else timeout_s
        if operation.service == SERVICE:
            return await self._call_local(operation, params, caller, limit_s)
        try:
            answer = await self._outgoing.raw(
                operation.name, frames.pack_body(params), limit_s=limit_s, parent=self._parent, trace=trace or "",
                caller=caller, session=current_session.get(), grant=grants.current.get(), target=described(params),
                peer=current_peer.get(),
                client_requests=client_requests,
            )  # fmt: skip
        except LinckiaError as error:
            raise operation.failure(error) from error.__cause__
        value = results.plain(operation, answer, written=written)
        if len(answer) > LONG_BYTES:
            # To decode it took milliseconds, and so does what comes next.
            await trio.lowlevel.checkpoint()
        return value

    async def _call_local(self, operation: Operation[Any], params: Params[Any], caller: str, limit_s: float) -> object:
        if not operation.admits(caller):
            raise Forbidden(f"{operation.name} may not be called by {caller}")
        check_grant(operation)
        handler = self._local.get(operation.name)
        if handler is None:
            raise UnknownOperation(f"there is nothing that answers {operation.name!r}")
        try:
            with trio.move_on_after(limit_s):
                return msgspec.to_builtins(await handler(params, caller))
            raise Timeout(f"{operation.name}: not done within {limit_s:.3g} s")
        except LinckiaError as error:
            raise operation.failure(error) from error.__cause__
