"""The composite tools at work: a pipeline that reads, a batch that changes, an action of a session.

A step is an ordinary call: it has the deadline of its operation, its retries, its place in the service's queue; a
client that cancels withdraws the step that runs, and no further one begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Unpack

from msgspec import Raw

from linckia.proto.dispatch import CallOptions, ClientRequests, Dispatcher
from linckia.proto.errors import InvalidParams, LinckiaError
from linckia.proto.frames import new_trace
from linckia.proto.front import SERVICE
from linckia.proto.json_types import JsonObject
from linckia.proto.operation import CLIENT, Operation, Params
from linckia.proto.ops.front import Describe, Execute, Query, Session
from linckia.proto.surfaces.describe import describe
from linckia.proto.surfaces.steps import DOCUMENTS, NAMES, Category, Steps
from linckia.services.front.composite.answer import Composed, as_json, composed, direct, failed, sized
from linckia.services.front.composite.plan import Planned, check, plan
from linckia.services.front.dispatcher import answered_here
from linckia.services.front.excerpt import excerpt
from linckia.services.front.protocol.failures import as_failure

CallStep = Callable[[Operation[object], Params[object], ClientRequests | None], Awaitable[object]]
"""Calls the operation of one step for the caller of the tool."""


async def query(params: Query, steps: Steps, call: CallStep, client_requests: ClientRequests | None) -> Composed:
    """Read in steps.  Raises InvalidParams: a step cannot run; none has; LinckiaError: of the only step."""
    planned = plan(Category.QUERY, steps, params.steps, "steps", chained=True)
    if len(planned) == 1:
        (only,) = planned
        arguments = only.params({})
        value = await call(only.operation, arguments, client_requests)
        return direct(only.operation, _bounded(steps, params.max_tokens, only, arguments, value))
    entries: list[JsonObject] = []
    completed = size = 0
    previous: object = {}
    for index, step in enumerate(planned):
        step_requests = _begin(client_requests, index, len(planned), step)
        result: object
        try:
            arguments = step.params(previous)
            value = await call(step.operation, arguments, step_requests)
            result = sized(_bounded(steps, params.max_tokens, step, arguments, value), size)
            is_error = _is_error(step.operation, value)
            size += len(bytes(result))
        except Exception as error:  # noqa: BLE001  # a step's failure is its entry in the answer
            result, is_error = failed(as_failure(error, step.operation.name)), True
        entries.append({"stepIndex": index, "op": step.name, "result": result, "isError": is_error})
        if is_error:
            break
        completed += 1
        if index + 1 < len(planned) and planned[index + 1].references:
            previous = as_json(value)
    return composed({"steps": entries, "totalSteps": len(planned), "completedSteps": completed})


async def execute(params: Execute, steps: Steps, call: CallStep, client_requests: ClientRequests | None) -> Composed:
    """Change in order.  Raises InvalidParams: an operation cannot be done; none has been."""
    planned = plan(Category.EXECUTE, steps, params.operations, "operations", chained=False)
    results: list[Raw] = []
    succeeded = size = 0
    for index, step in enumerate(planned):
        step_requests = _begin(client_requests, index, len(planned), step)
        try:
            arguments = step.params({})
            value = await call(step.operation, arguments, step_requests)
            success = not _is_error(step.operation, value) and not (
                isinstance(value, dict) and value.get("success") is False
            )
            value = _bounded(steps, params.max_tokens, step, arguments, value)
        except Exception as error:  # noqa: BLE001  # an operation's failure is its entry in the answer
            success = False
            entry = sized({"op": step.name, "success": False, **failed(as_failure(error, step.operation.name))})
        else:
            entry = _done(step, value, size, success=success)
        results.append(entry)
        size += len(bytes(entry))
        succeeded += success
        if not success and not params.continueOnError:
            break
    failures = len(results) - succeeded
    answer = {"results": results, "totalOps": len(planned), "succeeded": succeeded, "failed": failures}
    return composed(answer, is_error=failures > 0)


async def session(params: Session, steps: Steps, call: CallStep, client_requests: ClientRequests | None) -> Composed:
    """One action.  Raises InvalidParams: there is no such action, or its parameters are wrong; LinckiaError: of the
    action."""
    operation = steps.session.get(params.action or "")
    if operation is None:
        said = "missing required parameter `action`" if params.action is None else f"unknown action `{params.action}`"
        raise InvalidParams(f"{said}; the actions are: {', '.join(steps.session)}", field="action")
    action = check(operation, params.action or "", {}, params.params or {}, "session", chained=False)
    return direct(operation, await call(operation, action.params({}), client_requests))


def _bounded(steps: Steps, max_tokens: int | None, step: Planned, arguments: Params[object], value: object) -> object:
    """The result of a step as the client gets it; the next step gets the whole."""
    if step.operation.is_content or (steps.surface == DOCUMENTS and max_tokens is None):
        return value
    return excerpt(step.operation, arguments, value, max_tokens, kept=steps.surface != DOCUMENTS)


def _is_error(operation: Operation[object], value: object) -> bool:
    """Whether the result itself says that it is one of failure, as content of a tool may."""
    return operation.is_content and isinstance(value, dict) and value.get("isError") is True


def _done(step: Planned, value: object, size: int, *, success: bool) -> Raw:
    """The entry of an operation that was done; a result too long for the answer is left out, and the entry says so."""
    own = {"op": step.name, "success": success}
    flat = isinstance(value, dict) and all(value.get(key, said) == said for key, said in own.items())
    try:
        return sized({**own, **value} if flat and isinstance(value, dict) else {**own, "result": value}, size)
    except LinckiaError as error:
        return sized({**own, "result_omitted": str(error)})


def _begin(client_requests: ClientRequests | None, index: int, count: int, step: Planned) -> ClientRequests | None:
    if client_requests is None or count == 1:
        return client_requests
    return _StepRequests(client_requests, index, count, step.name)


_HALF_WAY = 100.0
"""Where a step that does not know its end stands half-way, in its own units."""


class _StepRequests:
    """`proto.dispatch.ClientRequests` for one step of several: each is one unit of the call's progress, in order."""

    def __init__(self, call: ClientRequests, index: int, count: int, name: str) -> None:
        self.log = call.log
        self.ask = call.ask
        self._call = call
        self._index = index
        self._count = count
        self._name = name
        call.progress(index, count, name)

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        # Short of the whole: that is reached when the result is there, and is the next step's beginning.
        part = done / total if total else done / (done + _HALF_WAY) if done > 0 else 0.0
        text = self._name if message is None else f"{self._name}: {message}"
        self._call.progress(self._index + min(max(part, 0.0), 0.999), self._count, text)


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
                    return await query(params, self._steps, call_step, options.get("client_requests"))
                case Execute():
                    return await execute(params, self._steps, call_step, options.get("client_requests"))
                case Session():
                    return await session(params, self._steps, call_step, options.get("client_requests"))
                case Describe():
                    return describe(self._steps, params.target, params.words)
            raise TypeError(f"{type(params).__name__} is no composite operation")

        value = await answered_here(operation, answer, caller=caller, limit_s=options.get("timeout_s"))
        return value.plain() if self._plain and isinstance(value, Composed) else value
