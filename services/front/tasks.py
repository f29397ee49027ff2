"""Calls of clients as tasks: those that ask for it, and those that may take longer than a client waits.

A long call goes on as a task when the client stops waiting for its answer, and needs neither this front nor the client
then. Everything here works on what the service `tasks` offers to all callers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from enum import Enum
from typing import Any, Final, Unpack

import msgspec
import trio

from linckia.proto.approvals import Rules
from linckia.proto.dispatch import CallOptions, Dispatcher
from linckia.proto.errors import Executed, Failure, InvalidParams, Kind, LinckiaError, OperationError, from_failure
from linckia.proto.front import SERVICE as FRONT
from linckia.proto.json_types import JsonObject
from linckia.proto.mounts import is_route
from linckia.proto.operation import CLIENT, Operation, Params, operation_of
from linckia.proto.ops.kernel import SERVICE as KERNEL
from linckia.proto.ops.tasks import Schedule, Task, TaskCancel, TaskFailure, TaskStart, TaskWait
from linckia.services.front.protocol.session import current_idempotency_key

META: Final = "io.linckia/task"
"""Member of `_meta`: in a request, true asks for a task; in a result, it is the task."""

EXTENSION: Final = "io.modelcontextprotocol/tasks"
"""Extension of revision 2026-07-28; see `services.front.protocol.tasks`."""

LONG_MS = 3600 * 1000
"""Calls with at least this deadline may take longer than clients wait."""

SHORT_WAIT_S = 1.0
"""How long a long call is waited for if its client can take a task instead of the result."""

_CANCEL_S = 5.0


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
    """Return what the client wants, by `_meta[META]` and its capabilities, both unchecked.

    Raises:
        InvalidParams: `_meta[META]` is not a boolean.
    """
    if not isinstance(meta, bool | None):
        raise InvalidParams(f"`_meta[{META!r}]` must be true or false", field="_meta")
    if meta:
        return Wanted.TASK
    return Wanted.EITHER if modern and declares(capabilities) else Wanted.RESULT


def declares(capabilities: Mapping[str, Any]) -> bool:
    """Whether the client declares the extension."""
    extensions = capabilities.get("extensions")
    return isinstance(extensions, Mapping) and EXTENSION in extensions


@contextlib.contextmanager
def wanting(what: Wanted, operation: Operation[Any]) -> Iterator[None]:
    """Make the call of the block as its client wants it.

    Raises:
        InvalidParams: the operation cannot be a task.
    """
    if operation.service == FRONT:
        if what is Wanted.TASK:
            raise InvalidParams(f"{operation.name} cannot be a task; call its steps with task_start", field="_meta")
        what = Wanted.RESULT
    token = wanted.set(what)
    try:
        yield
    finally:
        wanted.reset(token)


class LongCalls(Dispatcher):
    """A dispatcher that makes long calls of clients as tasks.

    Args:
        waits: whether clients know the tools of tasks, so that an error can name `task_wait`.
        mounted: returns the operation that calls a tool of a mounted server, and its parameters for these arguments;
            None if there is no such tool.
        rules: which calls wait for an approval, for which their clients may be asked, so that they are no tasks.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        mounted: Callable[[str, JsonObject], tuple[Operation[Any], Params[Any]] | None],
        rules: Rules,
        *,
        waits: bool,
    ) -> None:
        self._dispatcher = dispatcher
        self._mounted = mounted
        self._rules = rules
        self._waits = waits

    async def call(
        self, operation: Operation[object], params: Params[object], **options: Unpack[CallOptions]
    ) -> object:
        """See `proto.dispatch.Dispatcher.call`."""
        if options.get("caller", CLIENT) != CLIENT:
            return await self._dispatcher.call(operation, params, **options)
        if isinstance(params, TaskStart | Schedule):
            params = self._routed(params)
        match wanted.get():
            case Wanted.TASK:
                return TaskHandle(await self._start(operation, params, options))
            case Wanted.EITHER if self._is_long(operation):
                return await self._as_task(operation, params, options)
            case Wanted.RESULT if self._waits and self._is_long(operation):
                return await self._as_task(operation, params, options)
        return await self._dispatcher.call(operation, params, **options)

    def _is_long(self, operation: Operation[object]) -> bool:
        # With a key, every attempt must take the same way, even if tasks are unavailable for a while. The client can
        # repeat the call instead.
        has_key = current_idempotency_key.get() is not None
        return is_long(operation) and not has_key and not self._rules.choose(operation)

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
        return await self._call(operation_of(TaskStart), asked, trace=options.get("trace"))

    async def _as_task(self, operation: Operation[Any], params: Params[Any], options: CallOptions) -> object:
        """Return the result of a long call, or a task if it takes longer than the client waits."""
        try:
            task = await self._start(operation, params, options)
        except LinckiaError as error:
            if error.failure.executed is not Executed.NO:
                raise
            # It makes no task, for a reason that may not concern the call itself.
            return await self._dispatcher.call(operation, params, **options)
        limit = {"timeout_s": SHORT_WAIT_S} if wanted.get() is Wanted.EITHER else {}
        try:
            task = await self._call(
                operation_of(TaskWait), {"id": task.id, **limit}, trace=options.get("trace"),
                client_requests=options.get("client_requests"),
            )  # fmt: skip
        except trio.Cancelled:
            with trio.move_on_after(_CANCEL_S, shield=True), contextlib.suppress(LinckiaError):
                await self._call(operation_of(TaskCancel), {"id": task.id})
            raise
        except LinckiaError:
            # The task goes on, whatever became of the wait.
            return self._unfinished(operation, task)
        return self._unfinished(operation, task) if task.state == "working" else result_of(operation, task)

    def _unfinished(self, operation: Operation[Any], task: Task) -> object:
        if wanted.get() is Wanted.EITHER:
            return TaskHandle(task)
        raise OperationError(
            f"{operation.name} is still running, as task {task.id}; call task_wait with this id for its result, or "
            "task_cancel",
            executed=Executed.MAYBE, data={"task": task.id},
        )  # fmt: skip

    async def _call(
        self, operation: Operation[Task], arguments: Mapping[str, object], **options: Unpack[CallOptions]
    ) -> Task:
        """Make a call of the client, with arguments that it could have given."""
        value = await self._dispatcher.call(operation, operation.parse(arguments), **options)
        return msgspec.convert(value, Task)


def is_long(operation: Operation[Any]) -> bool:
    """Whether a call may take longer than clients wait, and can be made without its client."""
    return operation.deadline_ms >= LONG_MS and operation.service not in (FRONT, KERNEL) and not operation.asks


def result_of(operation: Operation[Any], task: Task) -> object:
    """Return the result of a task that has ended. Raises LinckiaError if it failed or was cancelled."""
    if task.failure is not None:
        raise from_failure(failure_of(task.failure))
    if task.state == "cancelled":
        message = f"{operation.name} was cancelled (task {task.id})"
        raise from_failure(Failure(kind=Kind.CANCELLED, message=message, executed=Executed.MAYBE))
    return value_of(operation, task)


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
