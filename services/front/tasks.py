"""Calls of clients as tasks: those that ask for it, and those that take longer than a client waits.

A long call is made like any other. If it still runs when its client stops waiting, the service `tasks` takes it over,
and the client gets the task's id; from then on the call needs neither this front nor the client.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from enum import Enum
from typing import Any, Unpack

import msgspec

from proto.approvals import Rules
from proto.errors import Failure, InvalidParams, Kind, LinckiaError
from proto.json_types import JsonObject
from proto.mcp import TASK, TASKS_EXTENSION
from proto.mounts import is_route
from proto.operation import CLIENT, Operation, Params, operation_of
from proto.ops.kernel import SERVICE as KERNEL
from proto.ops.kernel import KernelNameCall
from proto.ops.tasks import Schedule, Task, TaskAdopt, TaskFailure, TaskStart
from proto.wire.front import OWN
from proto.wire.front import SERVICE as FRONT
from services.runtime.dispatch import CallOptions, Dispatcher, Outlasting

LONG_MS = 3600 * 1000
"""Calls with at least this deadline may take longer than clients wait."""

SHORT_WAIT_S = 1.0
"""How long a long call is waited for if its client can take a task instead of the result."""


class Wanted(Enum):
    """What the client of the request understands or asks for."""

    RESULT = "result"
    TASK = "task"
    """It asks for a task instead of the result."""
    EITHER = "either"
    """It can take a task instead of the result, if the call is long."""


wanted: ContextVar[Wanted] = ContextVar("wanted", default=Wanted.RESULT)


class TaskHandle(msgspec.Struct, frozen=True):
    """The task that a call has become, instead of its result."""

    task: Task


def wanted_by(meta: object, capabilities: Mapping[str, Any], *, modern: bool) -> Wanted:
    """Return what the client wants, by `_meta[TASK]` and its capabilities, both unchecked.

    Raises:
        InvalidParams: `_meta[TASK]` is not a boolean.
    """
    if not isinstance(meta, bool | None):
        raise InvalidParams(f"`_meta[{TASK!r}]` must be true or false", field="_meta")
    if meta:
        return Wanted.TASK
    return Wanted.EITHER if modern and declares(capabilities) else Wanted.RESULT


def declares(capabilities: Mapping[str, Any]) -> bool:
    """Whether the client declares the extension."""
    extensions = capabilities.get("extensions")
    return isinstance(extensions, Mapping) and TASKS_EXTENSION in extensions


@contextlib.contextmanager
def wanting(what: Wanted, operation: Operation[Any]) -> Iterator[None]:
    """Make the call of the block as its client wants it.

    Raises:
        InvalidParams: the operation cannot be a task.
    """
    if operation.service == FRONT:
        if what is Wanted.TASK:
            raise InvalidParams(f"{operation.name} cannot be a task; call its steps with tasks_start", field="_meta")
        what = Wanted.RESULT
    token = wanted.set(what)
    try:
        yield
    finally:
        wanted.reset(token)


class LongCalls(Dispatcher):
    """A dispatcher that makes tasks of long calls of clients.

    Args:
        waits: whether clients know the tools of tasks, so that an error can name `tasks_wait`.
        mounted: returns the operation that calls a tool of a mounted server, and its parameters for these arguments;
            None if there is no such tool.
        rules: which calls wait for an approval, for which their clients may be asked, so that they are no tasks.
        after_s: how long clients wait.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        mounted: Callable[[str, JsonObject], tuple[Operation[Any], Params[Any]] | None],
        rules: Rules,
        *,
        waits: bool,
        after_s: float,
    ) -> None:
        self._dispatcher = dispatcher
        self._mounted = mounted
        self._rules = rules
        self._waits = waits
        self._after_s = after_s

    async def call(
        self, operation: Operation[object], params: Params[object], **options: Unpack[CallOptions]
    ) -> object:
        """See `services.runtime.dispatch.Dispatcher.call`."""
        if options["origin"].caller != CLIENT:
            return await self._dispatcher.call(operation, params, **options)
        if isinstance(params, TaskStart | Schedule):
            params = self._routed(params)
        what = wanted.get()
        if what is Wanted.TASK:
            return TaskHandle(await self._start(operation, params, options))
        if is_long(operation) and (self._waits or what is Wanted.EITHER) and not self._rules.choose(operation):
            return await self._outlasting(operation, params, options, is_either=what is Wanted.EITHER)
        return await self._dispatcher.call(operation, params, **options)

    def _routed(self, params: TaskStart | Schedule) -> TaskStart | Schedule:
        """Replace the name of a tool of a mounted server, which only fronts know."""
        found = self._mounted(params.operation, params.arguments)
        if found is None and is_route(params.operation):
            # A tool's hints and the settings of its server choose the operation, not the client.
            raise InvalidParams("`operation`: give the name of a tool of the mounted server", field="operation")
        if found is None:
            return params
        route, request = found
        return msgspec.structs.replace(params, operation=route.name, arguments=msgspec.to_builtins(request))

    async def _start(self, operation: Operation[Any], params: Params[Any], options: CallOptions) -> Task:
        asked = {"operation": operation.routed.name, "arguments": msgspec.to_builtins(params)}
        start = operation_of(TaskStart)
        return msgspec.convert(await self._dispatcher.call(start, start.parse(asked), origin=options["origin"]), Task)

    async def _outlasting(
        self, operation: Operation[Any], params: Params[Any], options: CallOptions, *, is_either: bool
    ) -> object:
        """Make a call that goes on as a task if its client stops waiting for it."""
        adopted: Task | None = None

        async def hand_over(number: int) -> None:
            # The call goes on either way. If it became a task, the kernel answers it with an error that says so.
            nonlocal adopted
            grant = options["origin"].grant
            with contextlib.suppress(LinckiaError):
                name = await self._own(KernelNameCall(call=number))
                found = await self._own(TaskAdopt(operation=operation.name, call=str(name), grant=grant))
                adopted = msgspec.convert(found, Task)

        options["outlasting"] = Outlasting(SHORT_WAIT_S if is_either else self._after_s, hand_over)
        try:
            return await self._dispatcher.call(operation, params, **options)
        except LinckiaError as error:
            if is_either and adopted is not None and error.failure.data.get("task") == adopted.id:
                return TaskHandle(adopted)
            raise

    async def _own(self, params: Params[Any]) -> object:
        return await self._dispatcher.call(operation_of(params), params, origin=OWN)


def is_long(operation: Operation[Any]) -> bool:
    """Whether a call may take longer than clients wait, and can go on without its client."""
    return operation.deadline_ms >= LONG_MS and operation.service not in (FRONT, KERNEL) and not operation.asks


def value_of(operation: Operation[Any], task: Task) -> object:
    """Return what the operation of a completed task returned."""
    result = task.result
    # A task's result is always an object.
    is_wrapped = operation.wraps_result and result is not None and result.keys() == {"result"}
    return result["result"] if is_wrapped and result is not None else result


def failure_of(failed: TaskFailure) -> Failure:
    """Return the failure of a task as its call would have reported it."""
    return Failure(
        kind=Kind(failed.kind), message=failed.message, executed=failed.executed, field=failed.field or None,
        code=failed.code, data=failed.details,
    )  # fmt: skip
