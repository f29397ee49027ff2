"""Calls in clients' names: what the front itself answers, answered here; everything else through the kernel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar, Unpack

import msgspec
import trio

from linckia.proto import frames, grants, results
from linckia.proto.dispatch import CallOptions, Dispatcher
from linckia.proto.errors import Executed, Forbidden, Kind, LinckiaError, Timeout, UnknownOperation
from linckia.proto.frames import Event
from linckia.proto.front import SERVICE
from linckia.proto.operation import CLIENT, Access, Operation, Params
from linckia.proto.target import described
from linckia.services.front import rate, refusals
from linckia.services.front.protocol.session import current_peer, current_session
from linckia.services.runtime.calls import Outgoing

T = TypeVar("T")

LONG_BYTES = 512 * 1024

LocalHandler = Callable[[Any, str], Awaitable[object]]
"""An operation that the front answers itself: parameters and caller to result."""


class Events(Protocol):
    """Where what services tell clients comes from, and what fronts tell one another goes to."""

    def on_event(self, receive: Callable[[Event], Awaitable[None]]) -> None: ...

    def publish(self, topic: str, body: object) -> None: ...


async def answered_here(
    operation: Operation[Any], answer: Callable[[], Awaitable[T]], *, caller: str = CLIENT, limit_s: float | None = None
) -> T:
    """What `answer` returns, held to the caller's rights and the deadline, as the kernel holds calls of
    services.  Raises Forbidden, Timeout."""
    if not operation.admits(caller):
        raise Forbidden(f"{operation.name} may not be called by {caller}")
    grant = grants.current.get()
    if grant is not None and (refusal := operation.refusal(grant)):
        refusals.note(operation.name, Kind.FORBIDDEN.value, refusal)
        raise Forbidden(refusal)
    limit_s = operation.deadline_ms / 1000 if limit_s is None else limit_s
    with trio.move_on_after(limit_s):
        return await answer()
    executed = Executed.NO if operation.access is Access.READ else Executed.MAYBE
    raise Timeout(f"{operation.name}: not done within {limit_s:.3g} s", executed=executed)


class LinkDispatcher(Dispatcher):
    """`proto.dispatch.Dispatcher` over the link of a front.

    Args:
        local: what answers the front's own operations, by name.
        parent: the call that is being served, where the calls are made for its caller.
    """

    def __init__(self, outgoing: Outgoing, local: Mapping[str, LocalHandler], *, parent: int | None = None) -> None:
        self._outgoing = outgoing
        self._local = local
        self._parent = parent

    def for_call(self, parent: int) -> LinkDispatcher:
        """The same for calls that are made while serving this one."""
        return LinkDispatcher(self._outgoing, self._local, parent=parent)

    async def call(self, operation: Operation[Any], params: Params[Any], **options: Unpack[CallOptions]) -> object:
        """See `proto.dispatch.Dispatcher.call`."""
        caller, limit_s = options.get("caller", CLIENT), options.get("timeout_s")
        if caller == CLIENT:
            rate.count(operation.name)
        try:
            if operation.service == SERVICE:
                handler = self._local.get(operation.name)
                if handler is None:
                    raise UnknownOperation(f"there is nothing that answers {operation.name!r}")
                result = await answered_here(operation, lambda: handler(params, caller), caller=caller, limit_s=limit_s)
                return msgspec.to_builtins(result)
            answer = await self._outgoing.raw(
                operation.name, frames.pack_body(params), parent=self._parent, trace=options.get("trace") or "",
                limit_s=operation.deadline_ms / 1000 if limit_s is None else limit_s, caller=caller,
                session=current_session.get(), grant=grants.current.get(), target=described(params),
                peer=current_peer.get(), client_requests=options.get("client_requests"),
            )  # fmt: skip
        except LinckiaError as error:
            raise operation.failure(error) from error.__cause__
        value = results.plain(operation, answer, written=options.get("written", False))
        if len(answer) > LONG_BYTES:
            # To decode it took milliseconds, and so does what comes next.
            await trio.lowlevel.checkpoint()
        return value
