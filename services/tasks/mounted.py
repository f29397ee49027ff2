"""Calls of tools of mounted servers as tasks: the calls are requests to their servers, the results are replies."""

from __future__ import annotations

from typing import Any

import msgspec

from proto.errors import OperationError
from proto.mounts import PREFIX, is_route
from proto.ops.tasks import Schedule, TaskStart


def is_mounted(asked: TaskStart | Schedule) -> bool:
    """Whether the call is a request to a mounted server, as fronts make of the name of a tool."""
    return is_route(asked.operation)


def name_of(asked: TaskStart | Schedule) -> str:
    """Return what the task is called: its operation, or the mounted server and the tool."""
    if not is_mounted(asked):
        return asked.operation
    mount = asked.operation.partition(".")[0].removeprefix(PREFIX)
    return f"{mount}_{asked.arguments.get('name', '')}"[:128]


def result_in(reply: bytes) -> bytes:
    """Return the result in a server's reply, as JSON. Raises OperationError: the reply is an error."""
    found = msgspec.json.decode(reply, type=dict[str, msgspec.Raw])
    if "error" not in found:
        return bytes(found.get("result", msgspec.Raw(b"{}")))
    error: Any = msgspec.json.decode(found["error"])
    error = error if isinstance(error, dict) else {}
    code = error.get("code")
    raise OperationError(
        str(error.get("message", "the server reported an error")), code=code if isinstance(code, int) else None
    )
