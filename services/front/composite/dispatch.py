"""A dispatcher that answers the composite tools itself, for one surface, and passes every other call on."""

from __future__ import annotations

import trio

from proto.dispatch import ClientRequests, Dispatcher
from proto.errors import Executed, Forbidden, Timeout
from proto.frames import new_trace
from proto.front import SERVICE
from proto.operation import Access, Operation, Params
from proto.ops.front import Describe, Execute, Query, Session
from proto.surfaces.describe import describe
from proto.surfaces.steps import NAMES, Steps
from services.front.composite import run
from services.front.composite.answer import Composed
from services.front.dispatcher import check_grant


class Composites:
    """`proto.dispatch.Dispatcher`, the composite tools among what it calls.

    Their values are `Composed`, or with `plain`, as the operator's command line reads them, ordinary data.
    """

    def __init__(self, dispatcher: Dispatcher, steps: Steps, *, plain: bool = False) -> None:
        self._dispatcher = dispatcher
        self._steps = steps
        self._plain = plain

    async def call(
        self,
        operation: Operation[object],
        params: Params[object],
        *,
        caller: str = "client",
        timeout_s: float | None = None,
        trace: str | None = None,
        client_requests: ClientRequests | None = None,
        written: bool = False,
    ) -> object:
        """See `proto.dispatch.Dispatcher.call`."""
        if operation.service != SERVICE or operation.name not in NAMES:
            return await self._dispatcher.call(
                operation,
                params,
                caller=caller,
                timeout_s=timeout_s,
                trace=trace,
                client_requests=client_requests,
                written=written,
            )
        if not operation.admits(caller):
            raise Forbidden(f"{operation.name} may not be called by {caller}")
        check_grant(operation)
        # Steps of one call are known by it.
        trace = trace or new_trace()

        async def call_step(op: Operation[object], arguments: Params[object], own: ClientRequests | None) -> object:
            return await self.call(op, arguments, caller=caller, trace=trace, client_requests=own)

        limit_s = operation.deadline_ms / 1000 if timeout_s is None else timeout_s
        with trio.move_on_after(limit_s):
            value = await self._answer(params, call_step, client_requests)
            return value.plain() if self._plain and isinstance(value, Composed) else value
        executed = Executed.NO if operation.access is Access.READ else Executed.MAYBE
        raise Timeout(f"{operation.name}: not done within {limit_s:.3g} s", executed=executed)

    async def _answer(
        self, params: Params[object], call_step: run.CallStep, client_requests: ClientRequests | None
    ) -> object:
        match params:
            case Query():
                return await run.query(params, self._steps, call_step, client_requests)
            case Execute():
                return await run.execute(params, self._steps, call_step, client_requests)
            case Session():
                return await run.session(params, self._steps, call_step, client_requests)
            case Describe():
                return describe(self._steps, params.target, params.words)
            case _:
                raise TypeError(f"{type(params).__name__} is no composite operation")
