"""The gate in front of the services: calls that the settings choose wait until a person has approved them.

The gate is in the kernel, since a front may be taken over. The service `approvals` stores pending approvals and asks
people; while it is down, such calls wait or fail.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import msgspec
import trio
from msgspec import structs

from kernel.chronicle.isolation import isolated
from kernel.router.generation import MAX_SEARCHED_BYTES, RoutedCall
from kernel.router.record import KERNEL, who
from proto import errors
from proto.approvals import Rules, tool_of
from proto.errors import Executed, Forbidden, Internal, LinckiaError
from proto.mounts import MountRequest
from proto.operation import CLIENT, operation_of
from proto.ops.approvals import ApprovalWait, Decision
from proto.origin import Origin
from proto.wire import frames

SHOWN_BYTES = 4_096
"""How much of parameters that are too long to be sent is shown."""


class _Tool(msgspec.Struct):
    method: str = ""
    name: str = ""


_tool: Callable[[bytes], _Tool] = frames.reader(_Tool)


class Gate:
    """Has calls wait for their approval.

    Args:
        call: `Router.call`.
    """

    def __init__(self, rules: Rules, call: Callable[..., Awaitable[object]]) -> None:
        self._rules = rules
        self._call = call

    def holds(self, call: RoutedCall) -> bool:
        """Return whether this call has to wait."""
        if call.origin.caller != CLIENT:
            return False
        tool: str | None = ""
        if self._rules.depends_on_tool(call.op):
            tool = _tool_of(call.params)
        return self._rules.choose(call.op, tool)

    async def approved(self, call: RoutedCall) -> None:
        """Wait until the call is approved; its deadline counts from then.

        Raises:
            Forbidden: it was denied.
            LinckiaError: the service `approvals` could not be asked.
        """
        began, settings = trio.current_time(), self._rules.settings
        try:
            answer = await self._call(
                operation_of(ApprovalWait),
                await self._asked(call),
                origin=Origin(KERNEL, trace=call.origin.trace),
                timeout_s=self._rules.extra_s,
                client_requests=call.client_requests if settings.elicit else None,
            )
        except LinckiaError as error:
            text = f"{call.op.name} needs an approval: {error}"
            raise errors.from_failure(
                structs.replace(error.failure, message=text[: errors.MESSAGE_CHARS], executed=Executed.NO)
            ) from None
        decision = msgspec.convert(answer, Decision)
        now = trio.current_time()
        call.approval, call.decided_by, call.held_s = decision.id, decision.by, now - began
        if not decision.approved:
            why = f": {decision.reason}" if decision.reason else ""
            raise Forbidden(f"{call.op.name} was denied by {decision.by}{why}")
        call.deadline = now + call.limit_s

    async def submit(self, call: RoutedCall, holding: trio.CancelScope, submit: Callable[[RoutedCall], None]) -> None:
        """Submit a call once it is approved."""
        text = f"{call.op.name} failed in the kernel; its log has the details"
        failure: LinckiaError | None = Internal(text, executed=Executed.NO)
        with holding, isolated(f"the approval of {call.op.name}"):
            try:
                await self.approved(call)
                failure = None
            except LinckiaError as error:
                failure = error
            if failure is None and not call.withdrawn:
                call.holding = None
                try:
                    submit(call)
                except LinckiaError as error:
                    failure = error
        if failure is not None and not call.withdrawn:
            call.withdrawn, call.holding = True, None
            call.done(call.op.failure(failure))

    async def _asked(self, call: RoutedCall) -> ApprovalWait:
        settings, params, digest, origin = self._rules.settings, bytes(call.params), "", call.origin
        size = len(params)
        if size > MAX_SEARCHED_BYTES:
            # Hashing the largest takes a quarter of a second.
            digest = await trio.to_thread.run_sync(_digest, params)
            params = params[:SHOWN_BYTES]
        return ApprovalWait(
            wait=call.span,
            operation=call.op.name,
            is_mounted=call.op.params is MountRequest,
            who=who(origin)[:500],
            client="" if origin.grant is None else origin.grant.identity(),
            session=origin.session,
            source="" if origin.mandate is None else origin.mandate.source[:500],
            target=call.target,
            params=params,
            size=size,
            digest=digest,
            key=origin.key,
            timeout_s=settings.timeout_s,
            allow_on_time_out=settings.default == "allow",
            elicit=settings.elicit and call.client_requests is not None,
        )


def _digest(params: bytes) -> str:
    return hashlib.blake2b(params, digest_size=32).hexdigest()


def _tool_of(params: bytes) -> str | None:
    """Return the tool in a request for a mounted server; "" if it calls none, None if that cannot be seen."""
    if len(params) > MAX_SEARCHED_BYTES:
        return None
    try:
        found = _tool(bytes(params))
    except msgspec.DecodeError:
        return None
    return tool_of(found.method, found.name)
