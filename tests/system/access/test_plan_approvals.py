"""Calls that are made later or by another call wait for a person each, and exactly the approved call is executed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.control.client import CallFailed
from tests.system.access.test_approvals import SERVICES, asking, change, file_of, pending
from tests.system.access.tokens import HttpClient, create
from tests.system.cli.clients import command
from tests.system.mounts.mounting import small
from tests.system.running import HTTP, RunningKernel, wait_until

EVERY = (*SERVICES, "front", "files", "compare", "watch", "tasks", "mounts")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("approvals")
    required = ["yaml_set", "mcp.one.append"]
    mcp = {"one": small()}
    with asking(folder, services=EVERY, options=HTTP, mcp=mcp, require=required) as running:
        root = str(file_of(running).parent)
        running.call("index", {"path": root, "async": False}, timeout_s=60)
        yield running


@pytest.fixture
def client(kernel: RunningKernel) -> Iterator[HttpClient]:
    """A client with a token, and the file as it was at first."""
    file_of(kernel).write_text("retries: 3\n")
    yield HttpClient(kernel, create(kernel, f"client-{file_of(kernel).stat().st_mtime_ns}"))
    for each in kernel.call("approval_list")["pending"]:
        kernel.call("approval_decide", {"id": each["id"], "approve": False})


def plan(kernel: RunningKernel, name: str, *outcomes: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    source = {"type": "filesystem.index", "config": {"path": str(file_of(kernel).parent)}}
    listed = [{"type": "tool", "tool": tool, "arguments": arguments} for tool, arguments in outcomes]
    return {"name": name, "sources": [source], "outcomes": listed}


def outcome(value: str) -> tuple[str, dict[str, Any]]:
    return "yaml_set", {"file": "{{entry.path}}", "path": "retries", "value": value}


def done(answer: Any) -> Any:
    result = answer.json["result"]
    assert not result.get("isError"), result
    return result["structuredContent"]


def approve(kernel: RunningKernel, waiting: dict[str, Any]) -> None:
    assert command(kernel.data_dir, "approve", waiting["id"]).returncode == 0


def test_each_call_of_a_plan_waits_and_changing_the_plan_changes_no_call_that_waits(
    kernel: RunningKernel, client: HttpClient
) -> None:
    done(client.tool("plans_create", plan(kernel, "two", outcome("4"), outcome("5"))))
    done(client.tool("plans_execute", {"name": "two"}))
    (first,) = pending(kernel)
    assert json.loads(first["preview"])["value"] == "4"
    done(client.tool("plans_update", plan(kernel, "two", outcome("666"), outcome("667"))))
    assert file_of(kernel).read_text() == "retries: 3\n"
    approve(kernel, first)
    (second,) = wait_until(lambda: [each for each in pending(kernel) if each["id"] != first["id"]])
    # The first call did exactly the change that was shown, and the second one waits although the first was approved.
    assert file_of(kernel).read_text() == "retries: 4\n"
    shown = json.loads(second["preview"])["value"]
    approve(kernel, second)
    wait_until(lambda: file_of(kernel).read_text() == f"retries: {shown}\n")


def first_ended(client: HttpClient, name: str) -> dict[str, Any] | None:
    """The first execution of a plan, once it has ended."""
    latest: dict[str, Any] = done(client.tool("plans_get", {"name": name}))["executions"][0]
    return None if latest["status"] == "running" else latest


@pytest.mark.parametrize("way", ["task", "timer", "execute in a task", "a plan in a task", "plan of execute"])
def test_no_detour_leads_round_an_approval(kernel: RunningKernel, client: HttpClient, way: str) -> None:
    given = change(kernel, 4)
    execute = {"operations": [{"op": "yaml_set", "params": given}]}
    nested = {"operation": "yaml_set", "arguments": given}
    name = f"by {way}".replace(" ", "-")
    match way:
        case "task":
            answers = [client.tool("tasks_start", nested)]
        case "timer":
            answers = [client.tool("schedule", {**nested, "at": "1s"})]
        case "execute in a task":
            answers = [client.tool("tasks_start", {"operation": "execute", "arguments": execute})]
        case "a plan in a task":
            client.tool("plans_create", plan(kernel, name, outcome("4")))
            answers = [client.tool("tasks_start", {"operation": "plans_execute", "arguments": {"name": name}})]
        case _:
            # Nobody calls it in a client's name, so this one does not even wait.
            done(client.tool("plans_create", plan(kernel, name, ("execute", execute))))
            done(client.tool("plans_execute", {"name": name}))
            ended = wait_until(lambda: first_ended(client, name))
            assert (ended["outcomes_applied"], ended["outcomes_failed"]) == (0, 1)
            assert "execute may not be called on behalf of a client" in ended["error"]
            assert file_of(kernel).read_text() == "retries: 3\n"
            return
    if all("error" not in each.json and not each.json["result"].get("isError") for each in answers):
        (waiting,) = pending(kernel, operation="yaml_set")
        assert file_of(kernel).read_text() == "retries: 3\n"
        kernel.call("approval_decide", {"id": waiting["id"], "approve": False})
        wait_until(lambda: not kernel.call("approval_list")["pending"])
    else:
        # It is refused, which is as good.
        assert way == "execute in a task", answers[-1].text
    assert file_of(kernel).read_text() == "retries: 3\n"


def test_a_mounted_tool_waits_when_a_task_calls_it(kernel: RunningKernel, client: HttpClient, tmp_path: Path) -> None:
    target = tmp_path / "appended"
    arguments = {"path": str(target), "text": "x"}
    wait_until(lambda: '"one_append"' in client.rpc("tools/list", {}).text.replace(": ", ":"))
    started = done(client.tool("tasks_start", {"operation": "one_append", "arguments": arguments}))
    (waiting,) = pending(kernel)
    assert (waiting["tool"], json.loads(waiting["preview"])) == ("mcp.one.append", arguments)
    assert not target.exists()
    approve(kernel, waiting)
    ended = done(client.tool("tasks_wait", {"id": started["id"], "timeout_s": 30}))
    assert ended["state"] == "completed", ended
    assert target.read_text() == "x\n"


def test_a_mounted_tool_in_a_plan_waits_or_is_refused(
    kernel: RunningKernel, client: HttpClient, tmp_path: Path
) -> None:
    target = tmp_path / "appended"
    made = client.tool("plans_create", plan(kernel, "mount", ("one_append", {"path": str(target), "text": "x"})))
    if not made.json["result"].get("isError"):
        done(client.tool("plans_execute", {"name": "mount"}))
        (waiting,) = pending(kernel)
        assert waiting["tool"] == "mcp.one.append"
    assert not target.exists()


def test_the_arguments_of_an_approval_are_not_another_call_s(kernel: RunningKernel, client: HttpClient) -> None:
    """An approval of one call does not let a different one through, whatever its key."""
    nested = {"operation": "yaml_set", "arguments": change(kernel, 4)}
    done(client.tool("tasks_start", nested))
    (waiting,) = pending(kernel)
    other = done(client.tool("tasks_start", {**nested, "arguments": change(kernel, 5)}))
    pending(kernel, 2)
    approve(kernel, waiting)
    wait_until(lambda: file_of(kernel).read_text() == "retries: 4\n")
    (left,) = pending(kernel)
    assert json.loads(left["preview"])["value"] == "5"
    done(client.tool("tasks_cancel", {"id": other["id"]}))
    with pytest.raises(CallFailed):
        kernel.call("approval_decide", {"id": waiting["id"], "approve": True})
    assert file_of(kernel).read_text() == "retries: 4\n"
