"""Dispatches clients' calls: the front's own operations run here, all others go through the kernel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeVar, Unpack

import msgspec
import trio
from msgspec import structs

from proto import keys
from proto.approvals import ApprovalSettings, Rules, tool_of
from proto.errors import Executed, Forbidden, Kind, LinckiaError, Timeout, UnknownOperation
from proto.mounts import MountRequest
from proto.operation import CLIENT, Access, Operation, Params
from proto.origin import Origin
from proto.target import described
from proto.wire import frames, results
from proto.wire.dispatch import CallOptions, Dispatcher
from proto.wire.frames import Event
from proto.wire.front import SERVICE
from services.front import rate, refusals
from services.front.long_messages import turn
from services.runtime.calls import Outgoing

T = TypeVar("T")

LocalHandler = Callable[[Any, Origin], Awaitable[object]]
"""Runs one of the front's own operations: takes the parameters and who calls, returns the result."""

OWN: Final = Origin(SERVICE)
"""The origin of calls that a front makes for itself."""


class Events(Protocol):
    """The source of services' events for clients, and the sink of events between fronts."""

    def on_event(self, receive: Callable[[Event], Awaitable[None]]) -> None: ...

    def publish(self, topic: str, body: object) -> None: ...


async def run_locally(
    operation: Operation[Any], answer: Callable[[], Awaitable[T]], origin: Origin, *, limit_s: float | None = None
) -> T:
    """Run `answer` and return its result, with the checks that the kernel makes for calls of services.

    Raises:
        Forbidden: the caller or its grant does not allow the operation.
        Timeout: `limit_s`, by default the deadline of the operation, has passed.
    """
    if not operation.admits(origin.caller):
        raise Forbidden(f"{operation.name} may not be called by {origin.caller}")
    if origin.grant is not None and (refusal := operation.refusal(origin.grant)):
        refusals.note(origin, operation.name, Kind.FORBIDDEN.value, refusal)
        raise Forbidden(refusal)
    limit_s = operation.deadline_ms / 1000 if limit_s is None else limit_s
    with trio.move_on_after(limit_s):
        return await answer()
    executed = Executed.NO if operation.access is Access.READ else Executed.MAYBE
    raise Timeout(f"{operation.name}: did not finish within {limit_s:.3g} s", executed=executed)


class LinkDispatcher(Dispatcher):
    """`proto.wire.dispatch.Dispatcher` over the front's link to the kernel.

    Args:
        local: handlers of the front's own operations, by name.
        rules: which calls wait for an approval, and so take longer.
        parent: the id of the call being served, if calls are made on behalf of its caller.
    """

    def __init__(
        self,
        outgoing: Outgoing,
        local: Mapping[str, LocalHandler],
        rules: Rules | None = None,
        *,
        parent: int | None = None,
    ) -> None:
        self._outgoing = outgoing
        self._local = local
        self.rules = rules or Rules(ApprovalSettings())
        self._parent = parent

    def for_call(self, parent: int) -> LinkDispatcher:
        """Return a dispatcher for calls made while serving the call `parent`."""
        return LinkDispatcher(self._outgoing, self._local, self.rules, parent=parent)

    async def call(self, operation: Operation[Any], params: Params[Any], **options: Unpack[CallOptions]) -> object:
        """See `proto.wire.dispatch.Dispatcher.call`."""
        origin, limit_s = options["origin"], options.get("timeout_s")
        is_client = origin.caller == CLIENT
        if is_client and (limit := rate.current.get()) is not None:
            limit.call(operation.name, origin)
        try:
            if operation.service == SERVICE:
                handler = self._local.get(operation.name)
                if handler is None:
                    raise UnknownOperation(f"the front has no handler for {operation.name!r}")
                result = await run_locally(operation, lambda: handler(params, origin), origin, limit_s=limit_s)
                return msgspec.to_builtins(result)
            routed = operation.routed
            if origin.key:
                keys.checked(origin.key)
            if not origin.trace:
                origin = structs.replace(origin, trace=frames.new_trace())
            tool = tool_of(params.method, params.name) if isinstance(params, MountRequest) else ""
            waits = bool(self.rules) and is_client and self.rules.choose(routed, tool)
            answer = await self._outgoing.raw(
                routed.name, frames.pack_body(params), origin, parent=self._parent,
                limit_s=operation.deadline_ms / 1000 if limit_s is None else limit_s, target=described(params),
                client_requests=options.get("client_requests"),
                patience_s=self.rules.extra_s if waits else 0.0, outlasting=options.get("outlasting"),
            )  # fmt: skip
        except LinckiaError as error:
            raise operation.failure(error) from error.__cause__
        await turn(len(answer))
        value = operation.received(results.plain(routed, answer, written=options.get("written", False)))
        # The caller will encode it.
        await turn(len(answer))
        return value
