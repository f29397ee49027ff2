"""Operations of `tasks`: calls that go on without the client that made them, and their results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from linckia.proto.errors import Executed
from linckia.proto.later import LaterCall
from linckia.proto.operation import Family, Params

SERVICE: Final = "tasks"

tool = Family(SERVICE)

TaskId = Annotated[str, Meta(max_length=64, description="Id of the task")]
TaskState = Literal["working", "completed", "failed", "cancelled"]


class TaskProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a task is, in units of its operation."""

    done: float
    total: float | None = None
    message: str | None = None


class TaskFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task failed; `executed` says whether its work may have been done."""

    kind: str
    message: str
    executed: Executed


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that goes on by itself. Once it has ended, it has a `result` or a `failure` for 24 hours. A result that is
    no object is the member `result` of one."""

    id: str
    operation: str
    state: TaskState
    started: Annotated[str, Meta(description="RFC 3339")]
    ended: str = ""
    progress: TaskProgress | None = None
    result: Annotated[dict[str, Any] | None, Meta(description="What the operation returned")] = None
    failure: TaskFailure | None = None


class TaskList(msgspec.Struct, frozen=True, kw_only=True):
    """The latest tasks first, without results; `total` counts all."""

    tasks: list[Task]
    total: int


@tool.write("task_start", idempotent=False, deadline_s=30, within_roots=True)
class TaskStart(Params[Task], frozen=True, kw_only=True):
    """Start a call that goes on without you: it survives the end of this client and restarts of Linckia, and any later
    session can fetch its result. Use it for long work (index, documents_add of a folder, download), then task_wait."""

    operation: Annotated[str, Meta(max_length=128, description="Name of the operation")]
    arguments: Annotated[dict[str, Any], Meta(description="Its arguments")] = {}

    def later_calls(self) -> Iterable[LaterCall]:
        return (LaterCall(self.operation, self.arguments),)

    def later_source(self) -> str:
        return f"task {self.operation}"


@tool.read("task_get", deadline_s=10, within_roots=True)
class TaskGet(Params[Task], frozen=True, kw_only=True):
    """Return a task as it is now, with its result once it has ended."""

    id: TaskId


@tool.read("task_list", deadline_s=10, within_roots=True)
class TaskListParams(Params[TaskList], frozen=True, kw_only=True):
    """List your tasks of the last 24 hours, also those of earlier sessions."""

    state: Annotated[TaskState | None, Meta(description="Only these")] = None
    limit: Annotated[int, Meta(ge=1, le=500, description="How many")] = 50


@tool.read("task_wait", deadline_s=660, within_roots=True)
class TaskWait(Params[Task], frozen=True, kw_only=True):
    """Wait until a task has ended, and return it with its result; after `timeout_s`, as it is by then."""

    id: TaskId
    timeout_s: Annotated[float, Meta(gt=0, le=600, description="How long to wait")] = 50.0


@tool.write("task_cancel", idempotent=True, deadline_s=30, within_roots=True)
class TaskCancel(Params[Task], frozen=True, kw_only=True):
    """Cancel a task. What it has done already remains done; a task that has ended stays as it is."""

    id: TaskId
