"""Long calls of clients are made like others; one that outlasts its client's patience becomes a task."""

from __future__ import annotations

from typing import Any, Unpack

import msgspec
import pytest

from proto.approvals import ApprovalSettings, Rules
from proto.errors import Executed, InvalidParams, LinckiaError, OperationError, Overloaded, Unavailable
from proto.grants import Grant
from proto.operation import Operation, Params, operation_of
from proto.ops.kernel import KernelNameCall
from proto.ops.tasks import Task, TaskAdopt, TaskStart
from proto.origin import Origin
from services.echo.operations import EchoParams
from services.files.operations.changes import DeleteFiles
from services.front.tasks import SHORT_WAIT_S, LongCalls, TaskHandle, Wanted, wanted_by, wanting
from services.runtime.dispatch import CallOptions

LONG = DeleteFiles(paths=["/a"])
RESULT = {"deleted": 1}
NUMBER = 7
BECAME_TASK = OperationError("still running", executed=Executed.MAYBE, data={"task": "t1"})


def task(state: Any = "working", **more: Any) -> Task:
    return Task(id="t1", operation="files_delete", state=state, started="2027-01-01T00:00:00Z", **more)


class Services:
    """Scripted answers to calls, by their parameters; also records the calls. With `outlasts`, long calls outlast their
    clients.
    """

    def __init__(self, *, outlasts: bool = False, **answers: Any) -> None:
        self.outlasts = outlasts
        self.waited_s: float | None = None
        self.answers: dict[type[Any], Any] = {
            DeleteFiles: RESULT, EchoParams: {"message": "x"}, TaskStart: task(), KernelNameCall: "name",
            TaskAdopt: task(),
        }  # fmt: skip
        self.made: list[Params[Any]] = []

    async def call(self, operation: Operation[Any], params: Params[Any], **options: Unpack[CallOptions]) -> object:
        self.made.append(params)
        if (long := options.get("outlasting")) is not None:
            self.waited_s = long.after_s
            if self.outlasts:
                await long.hand_over(NUMBER)
        answer = self.answers[type(params)]
        if isinstance(answer, LinckiaError):
            raise answer
        return msgspec.to_builtins(answer)

    @property
    def names(self) -> list[str]:
        return [operation_of(params).name for params in self.made]


def long_calls(services: Services, *, waits: bool = True, require: tuple[str, ...] = ()) -> LongCalls:
    rules = Rules(ApprovalSettings(require=require))
    return LongCalls(services, lambda name, arguments: None, rules, waits=waits, after_s=50)


async def made(
    services: Services, params: Params[Any], wants: Wanted = Wanted.RESULT, grant: Grant | None = None, **options: Any
) -> object:
    origin = Origin("client", grant=grant)
    with wanting(wants, operation_of(params)):
        return await long_calls(services, **options).call(operation_of(params), params, origin=origin)


async def test_a_call_that_ends_in_time_does_not_become_a_task() -> None:
    for params, wants, waited_s in (
        (LONG, Wanted.RESULT, 50), (LONG, Wanted.EITHER, SHORT_WAIT_S), (EchoParams(message="x"), Wanted.EITHER, None),
    ):  # fmt: skip
        services = Services()
        assert await made(services, params, wants) == services.answers[type(params)]
        assert services.names == [operation_of(params).name]
        assert services.waited_s == waited_s


async def test_a_call_does_not_become_a_task_where_clients_cannot_wait_or_it_needs_an_approval() -> None:
    for options in ({"waits": False}, {"require": ("destructive",)}):
        services = Services(outlasts=True)
        assert await made(services, LONG, **options) == RESULT
        assert services.names == ["files_delete"]


async def test_a_call_that_outlasts_its_client_is_adopted_for_the_owner_of_its_token() -> None:
    services = Services(outlasts=True)
    services.answers[DeleteFiles] = BECAME_TASK
    grant = Grant("ci", surfaces=("core",), id="0123")
    with pytest.raises(OperationError, match="still running"):
        await made(services, LONG, grant=grant)
    assert services.made[1:] == [
        KernelNameCall(call=NUMBER), TaskAdopt(operation="files_delete", call="name", grant=grant)
    ]  # fmt: skip


async def test_a_client_that_can_take_a_task_gets_it_instead_of_an_error() -> None:
    services = Services(outlasts=True)
    services.answers[DeleteFiles] = BECAME_TASK
    assert await made(services, LONG, Wanted.EITHER) == TaskHandle(task())


async def test_another_failure_that_names_a_task_is_a_failure() -> None:
    services = Services(outlasts=True)
    services.answers[DeleteFiles] = OperationError("no", data={"task": "t2"})
    with pytest.raises(OperationError, match="no"):
        await made(services, LONG, Wanted.EITHER)


@pytest.mark.parametrize("error", [Unavailable("down"), Overloaded("full"), InvalidParams("ended", field="call")])
@pytest.mark.parametrize("at", [KernelNameCall, TaskAdopt])
async def test_a_call_that_cannot_become_a_task_continues(error: LinckiaError, at: type[Any]) -> None:
    for wants in (Wanted.RESULT, Wanted.EITHER):
        services = Services(outlasts=True)
        services.answers[at] = error
        assert await made(services, LONG, wants) == RESULT


async def test_a_client_cannot_name_the_operation_of_a_mounted_server() -> None:
    services = Services()
    for name in ("mcp_one.read", "mcp_one.change"):
        with pytest.raises(InvalidParams, match="name of a tool"):
            await made(services, TaskStart(operation=name, arguments={"method": "tools/call"}))
    assert services.made == []


async def test_any_call_is_a_task_if_its_client_asks() -> None:
    services = Services()
    assert await made(services, EchoParams(message="x"), Wanted.TASK) == TaskHandle(task())
    assert services.names == ["tasks_start"]


def test_a_client_s_wish_for_a_task_depends_on_request_and_revision() -> None:
    declared: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    assert wanted_by(None, {}, modern=True) is Wanted.RESULT
    assert wanted_by(None, declared, modern=True) is Wanted.EITHER
    assert wanted_by(None, declared, modern=False) is Wanted.RESULT
    assert wanted_by(True, {}, modern=False) is Wanted.TASK
    assert wanted_by(False, {}, modern=False) is Wanted.RESULT
    with pytest.raises(InvalidParams, match="true or false"):
        wanted_by(1, {}, modern=False)
