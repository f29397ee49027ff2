"""A dispatcher that answers the composite tools itself, for one surface, and passes every other call on."""

from __future__ import annotations

from typing import Unpack

from proto.dispatch import CallOptions, ClientRequests, Dispatcher
from proto.frames import new_trace
from proto.front import SERVICE
from proto.operation import CLIENT, Operation, Params
from proto.ops.front import Describe, Execute, Query, Session
from proto.surfaces.describe import describe
from proto.surfaces.steps import NAMES, Steps
from services.front.composite import run
from services.front.composite.answer import Composed
from services.front.dispatcher import answered_here


class Composites:
    """`proto.dispatch.Dispatcher`, the composite tools among what it calls.

    Their values are `Composed`, or with `plain`, as the operator's command line reads them, ordinary data.
    """

    def __init__(self, dispatcher: Dispatcher, steps: Steps, *, plain: bool = False) -> None:
        self._dispatcher = dispatcher
        self._steps = steps
        self._plain = plain

    async def call(
        self, operation: Operation[object], params: Params[object], **options: Unpack[CallOptions]
    ) -> object:
        """See `proto.dispatch.Dispatcher.call`."""
        if operation.service != SERVICE or operation.name not in NAMES:
            return await self._dispatcher.call(operation, params, **options)
        caller = options.get("caller", CLIENT)
        # Steps of one call are known by it.
        trace = options.get("trace") or new_trace()

        async def call_step(op: Operation[object], arguments: Params[object], own: ClientRequests | None) -> object:
            return await self.call(op, arguments, caller=caller, trace=trace, client_requests=own)

        async def answer() -> object:
            match params:
                case Query():
                    return await run.query(params, self._steps, call_step, options.get("client_requests"))
                case Execute():
                    return await run.execute(params, self._steps, call_step, options.get("client_requests"))
                case Session():
                    return await run.session(params, self._steps, call_step, options.get("client_requests"))
                case Describe():
                    return describe(self._steps, params.target, params.words)
            raise TypeError(f"{type(params).__name__} is no composite operation")

        value = await answered_here(operation, answer, caller=caller, limit_s=options.get("timeout_s"))
        return value.plain() if self._plain and isinstance(value, Composed) else value
