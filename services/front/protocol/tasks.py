"""The MCP extension `io.modelcontextprotocol/tasks` of revision 2026-07-28 (SEP-2663).

A client that declares it gets a task instead of the result of a long call, and polls it by `tasks/get`. The same tasks
can be used by the tools `tasks_get`, `tasks_wait` and `tasks_cancel`.

https://github.com/modelcontextprotocol/ext-tasks, `specification/draft/tasks.md`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from proto.errors import LinckiaError
from proto.json_types import JsonObject
from proto.mcp import MISSING_CAPABILITY, TASKS_EXTENSION
from proto.operation import Operation, operation_of
from proto.ops.tasks import Task, TaskCancel, TaskGet
from proto.vocabulary import current_name
from services.front.protocol import calls
from services.front.protocol.failures import as_tool_result, is_protocol_error
from services.front.protocol.sdk import Context, as_mcp_error, is_modern, request_of
from services.front.surfaces.surface import Surface
from services.front.tasks import declares, failure_of, value_of
from services.runtime.dispatch import Dispatcher

POLL_MS = 1000

_COMPLETE: JsonObject = {"resultType": "complete"}


class TaskParams(types.RequestParams):
    """Parameters of all methods; `tasks/update` may have more, which no task waits for."""

    task_id: str


def install(sdk: Server[JsonObject], surface: Surface, dispatcher: Dispatcher) -> None:
    """Serve the methods of the extension."""

    async def get(ctx: Context, params: TaskParams) -> JsonObject:
        return {**_COMPLETE, **detailed(surface, await _called(ctx, dispatcher, operation_of(TaskGet), params.task_id))}

    async def cancel(ctx: Context, params: TaskParams) -> JsonObject:
        await _called(ctx, dispatcher, operation_of(TaskCancel), params.task_id)
        return dict(_COMPLETE)

    async def update(ctx: Context, params: TaskParams) -> JsonObject:
        # Tasks ask their clients nothing, so there is nothing to do with answers.
        await _called(ctx, dispatcher, operation_of(TaskGet), params.task_id)
        return dict(_COMPLETE)

    sdk.extensions[TASKS_EXTENSION] = {}
    for method, handler in (("tasks/get", get), ("tasks/cancel", cancel), ("tasks/update", update)):
        sdk.add_request_handler(method, TaskParams, _for_declaring_clients(method, handler))


def created(task: Task) -> JsonObject:
    """Return a task as the result of the request that started it."""
    return {"resultType": "task", **_members(task)}


def detailed(surface: Surface, task: Task) -> JsonObject:
    """Return a task with the result, or the error, that its request would have got."""
    members = _members(task)
    operation = surface.callable.get(current_name(task.operation))
    match task.state:
        case "completed":
            # A mounted server's result is content already, and its tool may be gone.
            members["result"] = (
                task.result if operation is None else calls.whole_result(operation, value_of(operation, task))
            )
        case "failed":
            assert task.failure is not None
            failure = failure_of(task.failure)
            if operation is not None and is_protocol_error(operation, failure, modern=True):
                error = calls.as_error(failure)
                members["error"] = {"code": error.code, "message": error.message, "data": error.data}
            else:
                # A failure of a tool is its result.
                members |= {"status": "completed", "result": as_tool_result(failure)}
    return members


def capabilities_of(ctx: Context) -> JsonObject:
    """Return the capabilities that the client of a request declared."""
    declared = ctx.session.client_capabilities
    return {} if declared is None else declared.model_dump(by_alias=True, mode="json", exclude_none=True)


def _members(task: Task) -> JsonObject:
    members: JsonObject = {
        "taskId": task.id, "status": task.state, "createdAt": task.started, "lastUpdatedAt": task.ended or task.started,
        # It is kept for a time after its end, which is not known yet.
        "ttlMs": None, "pollIntervalMs": POLL_MS,
    }  # fmt: skip
    message = task.failure.message if task.failure is not None else _progress(task)
    return {**members, "statusMessage": message} if message else members


def _progress(task: Task) -> str:
    if task.progress is None:
        return ""
    total = "" if task.progress.total is None else f"/{task.progress.total:g}"
    return f"{task.progress.done:g}{total} {task.progress.message or ''}".strip()


_Handler = Callable[[Context, TaskParams], Awaitable[JsonObject]]


def _for_declaring_clients(method: str, handler: _Handler) -> Callable[[Context, TaskParams], Awaitable[Any]]:
    async def checked(ctx: Context, params: TaskParams) -> JsonObject:
        if not is_modern(ctx):
            raise MCPError(code=METHOD_NOT_FOUND, message="Method not found", data=method)
        if not declares(capabilities_of(ctx)):
            data: JsonObject = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
            message = f"{method} needs the client capability {TASKS_EXTENSION}"
            raise MCPError(code=MISSING_CAPABILITY, message=message, data=data)
        return await handler(ctx, params)

    return checked


async def _called(ctx: Context, dispatcher: Dispatcher, operation: Operation[Task], task_id: str) -> Task:
    try:
        params = operation.parse({"id": task_id})
        return msgspec.convert(await dispatcher.call(operation, params, origin=request_of(ctx).origin), Task)
    except LinckiaError as error:
        failed = calls.as_error(error.failure)
        if error.failure.field is not None:
            raise MCPError(code=INVALID_PARAMS, message=failed.message, data=failed.data) from None
        raise as_mcp_error(failed) from None
