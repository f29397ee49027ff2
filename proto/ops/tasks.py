"""Operations of `tasks`: calls that go on without the client that made them, and their results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from proto.errors import Executed, InvalidParams
from proto.grants import Grant
from proto.later import LaterCall
from proto.operation import Family, Params, Role
from proto.wire.front import SERVICE as FRONT

SERVICE: Final = "tasks"

tool = Family(SERVICE)
internal = Family(SERVICE, role=Role.INTERNAL, callers=(FRONT,))

TaskId = Annotated[str, Meta(max_length=64, description="Id of the task")]
TaskState = Literal["working", "completed", "failed", "cancelled"]
Text64 = Annotated[str, Meta(max_length=64)]
Text128 = Annotated[str, Meta(max_length=128)]
Wait = Annotated[float, Meta(gt=0, le=600)]
Missed = Literal["once", "each", "skip"]


class TaskProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a task is, in units of its operation."""

    done: float
    total: float | None = None
    message: str | None = None


class TaskFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a task failed; `executed` says whether its work may have been done."""

    kind: str
    message: str
    executed: Executed
    field: Annotated[str, Meta(description="The parameter that is wrong")] = ""
    code: int | None = None
    details: dict[str, str] = {}


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


@tool.write("tasks_start", idempotent=False, deadline_s=30, within_roots=True)
class TaskStart(Params[Task], frozen=True, kw_only=True):
    """Start a call that goes on without you: it survives the end of this client and restarts of Linckia, and any later
    session can fetch its result. Use it for long work, then tasks_wait."""

    operation: Annotated[str, Meta(max_length=128, description="Name of the operation")]
    arguments: Annotated[dict[str, Any], Meta(description="Its arguments")] = {}

    def later_calls(self) -> Iterable[LaterCall]:
        return (LaterCall(self.operation, self.arguments),)

    def later_source(self) -> str:
        return f"task {self.operation}"


@internal.write("task_adopt", idempotent=False, deadline_s=10)
class TaskAdopt(Params[Task], frozen=True, kw_only=True):
    """Make a task of a call that is in flight and whose client no longer waits. It ends with Linckia's kernel."""

    operation: Annotated[str, Meta(max_length=128)]
    call: Annotated[str, Meta(max_length=64, description="From `kernel_name_call`")]
    grant: Annotated[Grant | None, Meta(description="The client's grant; null for the user of this machine")]


@tool.read("tasks_get", deadline_s=10, within_roots=True)
class TaskGet(Params[Task], frozen=True, kw_only=True):
    """Return a task as it is now, with its result once it has ended."""

    id: TaskId


@tool.read("tasks_list", deadline_s=10, within_roots=True)
class TaskListParams(Params[TaskList], frozen=True, kw_only=True):
    """List your tasks of the last 24 hours, also those of earlier sessions."""

    state: Annotated[TaskState | None, Meta(description="Only these")] = None
    limit: Annotated[int, Meta(ge=1, le=500, description="How many")] = 50


@tool.read("tasks_wait", deadline_s=660, within_roots=True)
class TaskWait(Params[Task], frozen=True, kw_only=True):
    """Wait until a task has ended, and return it with its result; after `timeout_s`, as it is by then."""

    id: TaskId
    timeout_s: Annotated[Wait | None, Meta(description="Seconds; by default `after_s` of the settings, 50")] = None


@tool.write("tasks_cancel", idempotent=True, deadline_s=30, within_roots=True)
class TaskCancel(Params[Task], frozen=True, kw_only=True):
    """Cancel a task. What it has done already remains done; a task that has ended stays as it is."""

    id: TaskId


class Timer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that is made later, once or again and again; each run is a task whose id begins with the timer's."""

    id: str
    operation: str
    next: Annotated[str, Meta(description="Next run, RFC 3339")]
    cron: str = ""
    time_zone: str = ""
    missed: Missed = "once"


class TimerList(msgspec.Struct, frozen=True, kw_only=True):
    """Your timers, the next one first."""

    timers: list[Timer]


@tool.write("timers_create", idempotent=False, deadline_s=30, within_roots=True)
class Schedule(Params[Timer], frozen=True, kw_only=True):
    """Schedule a call: once, later (`at`), or by a cron expression (`cron`). Each run is a task and takes effect once;
    tasks_list shows the runs."""

    operation: Annotated[str, Meta(max_length=128, description="Name of the operation")]
    arguments: Annotated[dict[str, Any], Meta(description="Its arguments")] = {}
    at: Annotated[Text64 | None, Meta(description="RFC 3339, or a time from now: 2h, 3 days")] = None
    cron: Annotated[Text128 | None, Meta(description="Minute, hour, day, month, weekday: 0 3 * * *")] = None
    time_zone: Annotated[str, Meta(max_length=64, description="Of `cron`, such as Europe/Berlin")] = "UTC"
    missed: Annotated[
        Missed, Meta(description="Runs missed while Linckia was off: made up for `once`, all (`each`), or not (`skip`)")
    ] = "once"

    def check(self) -> None:
        if (self.at is None) == (self.cron is None):
            raise InvalidParams("parameter `at`: give either `at` or `cron`", field="at")

    def later_calls(self) -> Iterable[LaterCall]:
        return (LaterCall(self.operation, self.arguments),)

    def later_source(self) -> str:
        return f"timer {self.operation}"


@tool.read("timers_list", deadline_s=10, within_roots=True)
class ScheduleList(Params[TimerList], frozen=True, kw_only=True):
    """List your timers."""


@tool.destroy("timers_cancel", idempotent=True, deadline_s=10, within_roots=True)
class ScheduleCancel(Params[Timer], frozen=True, kw_only=True):
    """Remove a timer. Runs that have begun go on."""

    id: Annotated[str, Meta(max_length=64, description="Id of the timer")]
