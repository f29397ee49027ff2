"""Long calls of clients are tasks; whatever hinders that, the call itself is made."""

from __future__ import annotations

from typing import Any, Unpack

import msgspec
import pytest
import trio

from linckia.proto.approvals import ApprovalSettings, Rules
from linckia.proto.dispatch import CallOptions
from linckia.proto.errors import (
    Executed,
    InvalidParams,
    LinckiaError,
    MaybeExecuted,
    OperationError,
    Overloaded,
    Unavailable,
)
from linckia.proto.operation import Operation, Params, operation_of
from linckia.proto.ops.echo import EchoParams
from linckia.proto.ops.files.changes import DeleteFiles
from linckia.proto.ops.tasks import Task, TaskCancel, TaskFailure, TaskStart, TaskWait
from linckia.services.front.tasks import LongCalls, TaskHandle, Wanted, wanted_by, wanting

LONG = DeleteFiles(paths=["/a"])
RESULT = {"deleted": 1}


def task(state: Any = "working", **more: Any) -> Task:
    return Task(id="t1", operation="delete-files", state=state, started="2027-01-01T00:00:00Z", **more)


class Services:
    """Answers calls by their parameters, and records them."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[type[Any], Any] = {
            DeleteFiles: RESULT, EchoParams: {"message": "x"}, TaskStart: task(), TaskCancel: task("cancelled"),
            TaskWait: task("completed", result=RESULT),
        }  # fmt: skip
        self.made: list[Params[Any]] = []

    async def call(self, operation: Operation[Any], params: Params[Any], **options: Unpack[CallOptions]) -> object:
        self.made.append(params)
        answer = self.answers[type(params)]
        if isinstance(answer, LinckiaError):
            raise answer
        if callable(answer):
            await answer()
        return msgspec.to_builtins(answer)

    @property
    def names(self) -> list[str]:
        return [operation_of(params).name for params in self.made]


def long_calls(services: Services, *, waits: bool = True, require: tuple[str, ...] = ()) -> LongCalls:
    rules = Rules(ApprovalSettings(require=require))
    return LongCalls(services, lambda name, arguments: None, rules, waits=waits)


async def made(services: Services, params: Params[Any], wants: Wanted = Wanted.RESULT, **options: Any) -> object:
    with wanting(wants, operation_of(params)):
        return await long_calls(services, **options).call(operation_of(params), params)


async def test_a_long_call_is_a_task_and_a_short_one_is_not() -> None:
    services = Services()
    assert await made(services, LONG) == RESULT
    assert services.names == ["task_start", "task_wait"]
    assert services.made[0] == TaskStart(operation="delete-files", arguments=msgspec.to_builtins(LONG))
    services = Services()
    assert await made(services, EchoParams(message="x")) == {"message": "x"}
    assert services.names == ["mcp_echo"]


async def test_a_call_is_made_itself_where_clients_cannot_wait_or_it_needs_an_approval() -> None:
    for options in ({"waits": False}, {"require": ("destructive",)}):
        services = Services()
        assert await made(services, LONG, **options) == RESULT
        assert services.names == ["delete-files"]


@pytest.mark.parametrize(
    "error", [Unavailable("down"), Overloaded("full"), InvalidParams("too large", field="operation")]
)
async def test_a_call_is_made_itself_if_it_cannot_be_a_task(error: LinckiaError) -> None:
    services = Services()
    services.answers[TaskStart] = error
    assert await made(services, LONG) == RESULT
    assert services.names == ["task_start", "delete-files"]


async def test_a_call_that_may_have_become_a_task_is_not_made_again() -> None:
    services = Services()
    services.answers[TaskStart] = MaybeExecuted("died")
    with pytest.raises(MaybeExecuted):
        await made(services, LONG)
    assert services.names == ["task_start"]


async def test_a_call_that_takes_longer_names_its_task_or_is_one() -> None:
    services = Services()
    services.answers[TaskWait] = task()
    with pytest.raises(OperationError, match=r"task t1; call task_wait") as caught:
        await made(services, LONG)
    assert (caught.value.failure.executed, caught.value.failure.data) == (Executed.MAYBE, {"task": "t1"})
    assert await made(services, LONG, Wanted.EITHER) == TaskHandle(task())
    services.answers[TaskWait] = Unavailable("down")
    assert await made(services, LONG, Wanted.EITHER) == TaskHandle(task())


async def test_the_failure_of_a_task_is_that_of_its_call() -> None:
    services = Services()
    failure = TaskFailure(kind="operation", message="no such file", executed=Executed.NO, field="paths", code=-32001)
    services.answers[TaskWait] = task("failed", failure=failure)
    with pytest.raises(OperationError, match="no such file") as caught:
        await made(services, LONG)
    assert (caught.value.failure.field, caught.value.failure.code) == ("paths", -32001)


async def test_cancelling_the_wait_cancels_the_task() -> None:
    services = Services()
    services.answers[TaskWait] = trio.sleep_forever
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made, services, LONG)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert services.names == ["task_start", "task_wait", "task_cancel"]


async def test_a_client_cannot_name_the_operation_of_a_mounted_server() -> None:
    services = Services()
    for name in ("mcp_one.read", "mcp_one.change"):
        with pytest.raises(InvalidParams, match="name of a tool"):
            await made(services, TaskStart(operation=name, arguments={"method": "tools/call"}))
    assert services.made == []


async def test_any_call_is_a_task_if_its_client_asks() -> None:
    services = Services()
    assert await made(services, EchoParams(message="x"), Wanted.TASK) == TaskHandle(task())
    assert services.names == ["task_start"]


def test_what_a_client_wants_depends_on_its_request_and_its_revision() -> None:
    declared: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    assert wanted_by(None, {}, modern=True) is Wanted.RESULT
    assert wanted_by(None, declared, modern=True) is Wanted.EITHER
    assert wanted_by(None, declared, modern=False) is Wanted.RESULT
    assert wanted_by(True, {}, modern=False) is Wanted.TASK
    assert wanted_by(False, {}, modern=False) is Wanted.RESULT
    with pytest.raises(InvalidParams, match="true or false"):
        wanted_by(1, {}, modern=False)
