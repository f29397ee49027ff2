"""Tasks outlive the client that started them, their service and the kernel."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.control.client import CallFailed, Client
from tests.system.cli.clients import data_directory, linckia, stdio_client
from tests.system.running import RunningKernel, running, wait_until

SERVICES = ("front", "files", "watch", "tasks", "yaml", "echo")
FOLDERS, FILES = 120, 60


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    with data_directory(tmp_path / "data") as path:
        yield path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    for n in range(FOLDERS):
        (made / f"folder-{n}").mkdir(parents=True)
        for name in range(FILES):
            (made / f"folder-{n}" / str(name)).touch()
    (made / "list.yaml").write_text("a:\n  - x\n")
    return made


def kernel_of(data: Path, root: Path) -> Any:
    return running(data, [root], services=SERVICES, all_ready=False)


def waited(kernel: RunningKernel, id_: str) -> dict[str, Any]:
    found: dict[str, Any] = kernel.call("tasks_wait", {"id": id_, "timeout_s": 100}, timeout_s=110)
    return found


def test_another_client_gets_the_result_of_a_killed_client_s_task_after_a_kernel_kill(data: Path, root: Path) -> None:
    with kernel_of(data, root) as kernel:
        with stdio_client(data, str(root), services=",".join(SERVICES)) as client:
            client.initialize()
            arguments = {"operation": "index", "arguments": {"root": str(root), "async": False, "force": True}}
            started = client.call(2, "tasks_start", **arguments)["structuredContent"]
            assert started["state"] == "working"
            client.process.kill()
        kernel.process.send_signal(signal.SIGKILL)
        kernel.process.wait()
    with kernel_of(data, root), stdio_client(data, str(root), services=",".join(SERVICES)) as other:
        other.initialize()
        answer = other.call(2, "tasks_wait", id=started["id"], timeout_s=100)
        assert not answer["isError"], answer
        ended = answer["structuredContent"]
        assert (ended["state"], ended["operation"]) == ("completed", "files_index")
        assert ended["result"]["status"] == "completed"
        (listed,) = other.call(3, "tasks_list")["structuredContent"]["tasks"]
        assert listed["id"] == started["id"]


def test_a_task_that_is_not_idempotent_takes_effect_once_through_deaths_of_its_service(data: Path, root: Path) -> None:
    file = root / "list.yaml"
    with kernel_of(data, root) as kernel:
        arguments = {"operation": "yaml_append", "arguments": {"file": str(file), "path": "a", "value": "y"}}
        ids: list[str] = []
        for _ in range(8):
            with Client(data) as client:
                ids.append(client.call_named("tasks_start", arguments, key=f"key {len(ids)}")["id"])
            if (pid := kernel.service("tasks")["pid"]) is not None:
                os.kill(pid, signal.SIGKILL)
        assert [waited(kernel, id_)["state"] for id_ in ids] == ["completed"] * 8
        assert file.read_text() == "a:\n  - x\n" + "  - y\n" * 8


def test_a_failure_is_the_result_of_its_task(data: Path, root: Path) -> None:
    with kernel_of(data, root) as kernel:
        arguments = {"file": str(root / "none.yaml"), "path": "a", "value": "1"}
        id_ = kernel.call("tasks_start", {"operation": "yaml_set", "arguments": arguments})["id"]
        ended = waited(kernel, id_)
        assert ended["state"] == "failed"
        assert ended["failure"]["executed"] == "no"
        assert "none.yaml" in ended["failure"]["message"]


def test_wrong_calls_are_refused_before_they_are_tasks(data: Path, root: Path) -> None:
    with kernel_of(data, root) as kernel:
        for operation, arguments, named in (
            ("nothing", {}, "operation"),
            ("tasks_start", {}, "operation"),
            ("yaml_set", {"file": "x"}, "path"),
        ):
            with pytest.raises(CallFailed) as caught:
                kernel.call("tasks_start", {"operation": operation, "arguments": arguments})
            assert named in str(caught.value)
        with pytest.raises(CallFailed, match="tasks_list"):
            kernel.call("tasks_get", {"id": "0"})
        assert kernel.call("tasks_list")["total"] == 0


def test_a_cancelled_task_stops_its_operation(data: Path, root: Path) -> None:
    with kernel_of(data, root) as kernel:
        arguments = {"root": str(root), "async": False, "force": True}
        id_ = kernel.call("tasks_start", {"operation": "index", "arguments": arguments})["id"]
        cancelled = kernel.call("tasks_cancel", {"id": id_})
        assert cancelled["state"] == waited(kernel, id_)["state"]
        assert cancelled["state"] in ("cancelled", "completed")
        assert kernel.call("tasks_list")["tasks"][0]["state"] == cancelled["state"]


def test_a_timer_runs_once_although_its_service_and_the_kernel_are_killed(data: Path, root: Path) -> None:
    file = root / "list.yaml"
    with kernel_of(data, root) as kernel:
        call = {"operation": "yaml_append", "arguments": {"file": str(file), "path": "a", "value": "y"}}
        timer = kernel.call("schedule", {**call, "at": "2s"})
        every = kernel.call("schedule", {**call, "cron": "0 0 1 1 *", "missed": "skip"})
        assert [each["id"] for each in kernel.call("timers_list")["timers"]] == [timer["id"], every["id"]]
        os.kill(kernel.service("tasks")["pid"], signal.SIGKILL)
        kernel.process.send_signal(signal.SIGKILL)
        kernel.process.wait()
    with kernel_of(data, root) as kernel:
        (ran,) = wait_until(lambda: kernel.call("tasks_list")["tasks"], 60)
        assert waited(kernel, ran["id"])["state"] == "completed"
        assert file.read_text() == "a:\n  - x\n  - y\n"
        assert kernel.call("timers_cancel", {"id": every["id"]})["id"] == every["id"]
        assert kernel.call("timers_list") == {"timers": []}


def test_the_command_line_starts_a_task_and_prints_its_id(data: Path, root: Path) -> None:
    with kernel_of(data, root) as kernel:
        found = linckia(data, "call", "mcp_echo", '{"message": "hello"}', "--task")
        assert found.returncode == 0, found.stderr
        ended = waited(kernel, found.stdout.strip())
        assert (ended["operation"], ended["result"]) == ("mcp_echo", {"message": "hello"})


def test_arguments_that_look_like_placeholders_stay_as_they_are(data: Path, root: Path) -> None:
    with kernel_of(data, root) as kernel:
        arguments = {"message": "{{entry.path}}"}
        id_ = kernel.call("tasks_start", {"operation": "mcp_echo", "arguments": arguments})["id"]
        assert waited(kernel, id_)["result"] == arguments


def test_calls_of_a_plan_start_no_tasks(data: Path, root: Path) -> None:
    folder = root / "folder-0"
    with kernel_of(data, root) as kernel:
        kernel.call("index", {"path": str(folder), "async": False}, timeout_s=60)
        asked = {"operation": "mcp_one.read", "arguments": {"method": "tools/call"}}
        plan = {
            "name": "sly",
            "sources": [{"type": "filesystem.index", "config": {"path": str(folder)}}],
            "outcomes": [{"type": "tool", "tool": "tasks_start", "arguments": asked}],
        }
        kernel.call("plans_create", plan)
        kernel.call("plans_execute", {"name": "sly"})

        def execution() -> dict[str, Any] | None:
            found: dict[str, Any] = kernel.call("plans_get", {"name": "sly"})["executions"][0]
            return found if found["status"] != "running" else None

        found = wait_until(execution, 60)
        assert found["outcomes_applied"] == 0
        assert "cannot ask for further ones" in str(found)
        assert kernel.call("tasks_list")["total"] == 0
