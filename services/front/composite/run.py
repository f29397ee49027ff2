"""Runs the composite tools: a pipeline that reads, a batch that changes, an action of a session.

Each step is an ordinary call, with its operation's deadline and retries and its own place in the service's queue.  If
the client cancels, the running step is cancelled and no further one begins.
"""

from __future__ import annotations

from typing import Protocol, Unpack

from msgspec import Raw, structs

from proto import keys
from proto.approvals import Rules
from proto.errors import InvalidParams, LinckiaError, UnknownOperation
from proto.json_types import JsonObject
from proto.operation import REFERENCES, Operation, Params
from proto.outcomes import counted, per_item
from proto.suggestions import did_you_mean
from proto.wire.frames import new_trace
from proto.wire.front import SERVICE
from services.front import terse
from services.front.composite.answer import Composed, as_json, composed, direct, failed, sized
from services.front.composite.plan import Planned, check, plan
from services.front.excerpt import excerpt
from services.front.operations.steps import CallMounted, Describe, Execute, Query, Session
from services.front.protocol.calls import run_locally
from services.front.protocol.failures import as_failure
from services.front.surfaces.describe import describe
from services.front.surfaces.steps import DOCUMENTS, NAMES, Category, Steps
from services.front.tool_search import ToolSearches
from services.runtime.dispatch import CallOptions, ClientRequests, Dispatcher


class CallStep(Protocol):
    """Calls the operation of one step on behalf of the tool's caller; `key` replaces the caller's."""

    async def __call__(
        self,
        operation: Operation[object],
        arguments: Params[object],
        own: ClientRequests | None,
        key: str | None = None,
    ) -> object: ...


async def query(
    params: Query, steps: Steps, call: CallStep, client_requests: ClientRequests | None, *, is_terse: bool
) -> Composed:
    """Run reading steps in order, until one fails.

    Args:
        is_terse: whether members of results that say nothing are left out.

    Raises:
        InvalidParams: a step is wrong; none has run.
        LinckiaError: the only step failed.
    """
    planned = plan(Category.QUERY, steps, params.steps, "steps", chained=True)
    if len(planned) == 1:
        (only,) = planned
        arguments = only.params({})
        value = await call(only.operation, arguments, client_requests)
        return direct(only.operation, _bounded(steps, params.max_tokens, only, arguments, value, is_terse))
    entries: list[JsonObject] = []
    completed = size = 0
    previous: object = {}
    for index, step in enumerate(planned):
        step_requests = _begin(client_requests, index, len(planned), step)
        result: object
        try:
            arguments = step.params(previous)
            value = await call(step.operation, arguments, step_requests)
            result = sized(_bounded(steps, params.max_tokens, step, arguments, value, is_terse), size)
            is_error = _is_error(step.operation, value)
            size += len(bytes(result))
        except Exception as error:  # noqa: BLE001  # a step's failure is its entry in the result
            result, is_error = failed(as_failure(error, step.operation.name)), True
        entries.append({"stepIndex": index, "op": step.name, "result": result, "isError": is_error})
        if is_error:
            break
        completed += 1
        if index + 1 < len(planned) and planned[index + 1].references:
            previous = as_json(value)
    return composed({"steps": entries, "totalSteps": len(planned), "completedSteps": completed})


async def execute(
    params: Execute, steps: Steps, call: CallStep, client_requests: ClientRequests | None, key: str, *, is_terse: bool
) -> Composed:
    """Run changing operations in order.  Raises InvalidParams if one of them is wrong; then none has run."""
    planned = plan(Category.EXECUTE, steps, params.operations, "operations", chained=False)
    if key:
        keys.checked(key)
    results: list[Raw] = []
    partly = failures = size = 0
    for index, step in enumerate(planned):
        step_requests = _begin(client_requests, index, len(planned), step)
        try:
            arguments = step.params({})
            # The steps that were done are not done again, and their answers make the same answer.
            value = await call(step.operation, arguments, step_requests, keys.derived(key, str(index)))
            success, trouble = _judged(step.operation, value)
            value = _bounded(steps, params.max_tokens, step, arguments, value, is_terse)
        except Exception as error:  # noqa: BLE001  # an operation's failure is its entry in the result
            success, trouble = False, ""
            entry = sized({"op": step.name, "success": False, **failed(as_failure(error, step.operation.name))})
        else:
            entry = _done(step, value, size, success=success, trouble=trouble)
        results.append(entry)
        size += len(bytes(entry))
        failures += not success
        partly += success and bool(trouble)
        if not success and not params.continueOnError:
            break
    succeeded = len(results) - failures - partly
    answer = {"results": results, "totalOps": len(planned), "succeeded": succeeded, "failed": failures}
    if partly:
        answer["partlyFailed"] = partly
    return composed(answer, is_error=failures > 0)


async def session(params: Session, steps: Steps, call: CallStep, client_requests: ClientRequests | None) -> Composed:
    """Run one action.

    Raises:
        InvalidParams: the action is unknown, or its parameters are wrong.
        LinckiaError: the action failed.
    """
    operation = steps.session.get(params.action or "")
    if operation is None:
        fault = "missing required parameter `action`" if params.action is None else f"unknown action `{params.action}`"
        raise InvalidParams(f"{fault}; the actions are: {', '.join(steps.session)}", field="action")
    action = check(
        operation,
        params.action or "",
        {},
        params.params or {},
        "session",
        chained=False,
        reference=steps.surface in REFERENCES,
    )
    return direct(operation, await call(operation, action.params({}), client_requests))


def _bounded(
    steps: Steps,
    max_tokens: int | None,
    step: Planned,
    arguments: Params[object],
    value: object,
    is_terse: bool,
) -> object:
    """Return the result of a step as the client gets it, shortened if needed; the next step gets the whole result."""
    if step.operation.is_content or (steps.surface == DOCUMENTS and max_tokens is None):
        return value
    if is_terse:
        value = terse.builtins(step.operation, value)
    return excerpt(step.operation, arguments, value, max_tokens, has_scratchpad=steps.surface != DOCUMENTS)


def _is_error(operation: Operation[object], value: object) -> bool:
    """Whether the result is tool content with `isError`."""
    return operation.is_content and isinstance(value, dict) and value.get("isError") is True


def _judged(operation: Operation[object], value: object) -> tuple[bool, str]:
    """Return whether a changing step succeeded, and what went wrong in it, if it says so for each item.

    It failed if no item was done, and succeeded in part if some were.
    """
    if _is_error(operation, value) or (isinstance(value, dict) and value.get("success") is False):
        return False, ""
    declared = per_item(operation.result)
    if declared is None or not isinstance(value, dict):
        return True, ""
    done, failures = counted(declared, value)
    if not failures:
        return True, ""
    total = done + failures
    return done > 0, f"{failures} of {total} {'item' if total == 1 else 'items'} failed; see `{declared.details}`"


def _done(step: Planned, value: object, size: int, *, success: bool, trouble: str) -> Raw:
    """Return the entry of a completed operation; a result too long for the answer is omitted, and the entry says so."""
    own: JsonObject = {"op": step.name, "success": success, **({"error": trouble} if trouble else {})}
    flat = isinstance(value, dict) and all(value.get(key, expected) == expected for key, expected in own.items())
    try:
        return sized({**own, **value} if flat and isinstance(value, dict) else {**own, "result": value}, size)
    except LinckiaError as error:
        return sized({**own, "result_omitted": str(error)})


def _begin(client_requests: ClientRequests | None, index: int, count: int, step: Planned) -> ClientRequests | None:
    if client_requests is None or count == 1:
        return client_requests
    return _StepRequests(client_requests, index, count, step.name)


_HALF_WAY = 100.0
"""Progress, in the step's own units, that counts as half-way if the step gives no total."""


class _StepRequests:
    """`services.runtime.dispatch.ClientRequests` for one step of several: each is one unit of the call's progress, in
    order."""

    def __init__(self, call: ClientRequests, index: int, count: int, name: str) -> None:
        self.log = call.log
        self.ask = call.ask
        self._call = call
        self._index = index
        self._count = count
        self._name = name
        call.progress(index, count, name)

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        # Always less than one unit: a whole unit means that the step has ended and the next one begins.
        part = done / total if total else done / (done + _HALF_WAY) if done > 0 else 0.0
        text = self._name if message is None else f"{self._name}: {message}"
        self._call.progress(self._index + min(max(part, 0.0), 0.999), self._count, text)


def _step_count(params: object) -> int:
    match params:
        case Query():
            return len(params.steps or ())
        case Execute():
            return len(params.operations or ())
    return 1


class Composites:
    """A `services.runtime.dispatch.Dispatcher` that also runs the composite tools.

    Composite tools return `Composed`; with `plain` they return ordinary data, for the operator's command line.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        steps: Steps,
        searches: ToolSearches | None = None,
        *,
        plain: bool = False,
        rules: Rules | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._rules = rules
        self._steps = steps
        self._searches = searches
        self._plain = plain
        self._is_terse = not plain and steps.surface not in REFERENCES

    async def call(
        self, operation: Operation[object], params: Params[object], **options: Unpack[CallOptions]
    ) -> object:
        """See `services.runtime.dispatch.Dispatcher.call`."""
        if operation.service != SERVICE or operation.name not in NAMES:
            return await self._dispatcher.call(operation, params, **options)
        origin = options["origin"]
        if not origin.trace:
            # All steps of a call share its trace.
            origin = structs.replace(origin, trace=new_trace())

        async def call_step(
            operation: Operation[object],
            arguments: Params[object],
            own: ClientRequests | None,
            key: str | None = None,
        ) -> object:
            of_step = origin if key is None else structs.replace(origin, key=key)
            return await self.call(operation, arguments, origin=of_step, client_requests=own)

        client_requests = options.get("client_requests")

        async def answer() -> object:
            match params:
                case Query():
                    return await query(params, self._steps, call_step, client_requests, is_terse=self._is_terse)
                case Execute():
                    return await execute(
                        params, self._steps, call_step, client_requests, origin.key, is_terse=self._is_terse
                    )
                case Session():
                    return await session(params, self._steps, call_step, client_requests)
                case CallMounted():
                    found = self._steps.find(params.name)
                    if found is None or not found[1].is_foreign:
                        near = did_you_mean(params.name, self._steps.names())
                        raise UnknownOperation(f"unknown operation {params.name!r}{near}", field="name")
                    mounted = found[1]
                    return await call_step(mounted, mounted.parse(params.arguments), client_requests)
                case Describe():
                    ranked, is_likely = None, True
                    if self._searches is not None and params.target is None and params.words:
                        ranked, is_likely = await self._searches.ranked(self._steps, params.words)
                    return describe(self._steps, params.target, params.words, ranked, is_likely=is_likely)
            raise TypeError(f"{type(params).__name__} is not a composite operation")

        limit_s = options.get("timeout_s")
        if limit_s is None and self._rules:
            # Each step may have to wait for an approval.
            limit_s = operation.deadline_ms / 1000 + _step_count(params) * self._rules.extra_s
        value = await run_locally(operation, answer, origin, limit_s=limit_s)
        return value.plain() if self._plain and isinstance(value, Composed) else value
