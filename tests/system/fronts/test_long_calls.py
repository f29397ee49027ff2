"""Calls that take longer than their client waits go on as tasks, which any client can follow, and cancel."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.cli.clients import StdioClient, data_directory
from tests.system.running import RunningKernel, running, wait_until

OPERATIONS = '''
import msgspec

from proto.operation import Family, Params

tool = Family("waiting")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the file said."""

    text: str


@tool.write("wait_for_file", idempotent=False, deadline_s=3600)
class WaitForFile(Params[Found], frozen=True, kw_only=True):
    """Wait until there is a file in the folder of the service, and return its text; an empty one is a failure."""

    file: str
'''

MAIN = """
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from proto.errors import OperationError
from services.runtime.handlers import Context, Environment, Handlers
from waiting.operations import Found, WaitForFile


@asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    handlers = Handlers()

    @handlers.handle(WaitForFile)
    async def wait(params: WaitForFile, ctx: Context) -> Found:
        path = env.data_dir / params.file
        with (env.data_dir / "calls").open("a") as calls:
            calls.write(params.file + "\\\\n")
        try:
            while not path.exists():
                ctx.progress(1, 2, "waiting")
                await trio.sleep(0.05)
        except trio.Cancelled:
            (env.data_dir / (params.file + ".cancelled")).touch()
            raise
        if not (text := path.read_text()):
            raise OperationError("the file is empty", field="file")
        return Found(text=text)

    yield handlers
"""

MODERN = "2026-07-28"
EXTENSION = "io.modelcontextprotocol/tasks"


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    with data_directory(tmp_path / "data") as path:
        yield path


@pytest.fixture
def kernel(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningKernel]:
    package = tmp_path / "packages" / "waiting"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "operations.py").write_text(OPERATIONS)
    (package / "main.py").write_text(MAIN.replace("\\\\n", "\\n"))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("LINCKIA_TASKS__AFTER_S", "0.5")
    with running(
        data, options=("--no-http", "--with", "waiting"), services=("front", "tasks"), all_ready=False
    ) as made:
        # Otherwise a call may go on as a task before it has begun.
        made.wait_ready("waiting")
        yield made


@pytest.fixture
def client(kernel: RunningKernel, data: Path) -> Iterator[StdioClient]:
    found = StdioClient(data, services="tasks")
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


def own(data: Path, name: str) -> Path:
    return data / "services" / "waiting" / name


def meta(**more: Any) -> dict[str, Any]:
    capabilities: dict[str, Any] = {"extensions": {EXTENSION: {}}}
    prefix = "io.modelcontextprotocol/"
    return {f"{prefix}protocolVersion": MODERN, f"{prefix}clientCapabilities": capabilities, **more}


def test_a_call_that_takes_longer_continues_as_a_task(data: Path, client: StdioClient) -> None:
    client.initialize()
    result = client.call(2, "wait_for_file", file="a")
    assert result["isError"]
    task = result["_meta"]["linckia/failure"]["details"]["task"]
    assert f"task {task}; call tasks_wait" in result["content"][0]["text"]
    working = client.call(3, "tasks_get", id=task)["structuredContent"]
    assert (working["state"], working["operation"]) == ("working", "wait_for_file")
    # What the call reports reaches its task a moment after the task has begun.
    numbers = itertools.count(100)
    progress = wait_until(lambda: client.call(next(numbers), "tasks_get", id=task)["structuredContent"].get("progress"))
    assert progress == {"done": 1, "total": 2, "message": "waiting"}
    client.send(
        {"jsonrpc": "2.0", "id": 4, "method": "tools/call",
         "params": {"name": "tasks_wait", "arguments": {"id": task, "timeout_s": 60}}}
    )  # fmt: skip
    own(data, "a").write_text("text")
    ended = client.receive(1)[4]["result"]["structuredContent"]
    assert (ended["state"], ended["result"]) == ("completed", {"text": "text"})
    assert own(data, "calls").read_text() == "a\n"


def test_a_call_that_ends_in_time_has_its_ordinary_result(data: Path, client: StdioClient) -> None:
    client.initialize()
    client.call(2, "wait_for_file", file="started")
    own(data, "a").write_text("text")
    assert client.call(3, "wait_for_file", file="a")["structuredContent"] == {"text": "text"}
    own(data, "b").touch()
    failed = client.call(4, "wait_for_file", file="b")
    assert failed["content"][0]["text"] == "the file is empty"
    assert failed["_meta"]["linckia/failure"]["field"] == "file"
    # The kernel would wait for the first call at its end.
    own(data, "started").write_text("text")


def test_progress_reaches_the_client_and_its_cancellation_the_call(data: Path, client: StdioClient) -> None:
    client.initialize()
    call = {"name": "wait_for_file", "arguments": {"file": "a"}, "_meta": {"progressToken": "p"}}
    client.send({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
    assert client.process.stdout is not None
    progress = json.loads(client.process.stdout.readline())
    assert progress["params"] == {"progressToken": "p", "progress": 1, "total": 2, "message": "waiting"}
    client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})
    wait_until(own(data, "a.cancelled").exists)
    assert client.call(3, "tasks_list")["structuredContent"]["tasks"] == []


def test_a_task_that_a_call_became_is_cancelled_with_the_call(data: Path, client: StdioClient) -> None:
    client.initialize()
    task = client.call(2, "wait_for_file", file="a")["_meta"]["linckia/failure"]["details"]["task"]
    assert client.call(3, "tasks_cancel", id=task)["structuredContent"]["state"] == "cancelled"
    assert own(data, "a.cancelled").exists()


def test_a_task_that_a_call_became_outlives_its_client_its_front_and_the_service_of_tasks(
    kernel: RunningKernel, data: Path, client: StdioClient
) -> None:
    client.initialize()
    task = client.call(2, "wait_for_file", file="a")["_meta"]["linckia/failure"]["details"]["task"]
    client.process.kill()
    client.process.communicate()
    for name in ("front", "tasks"):
        kernel.kill(name)
    other = StdioClient(data, services="tasks")
    try:
        other.initialize()
        assert other.call(2, "tasks_get", id=task)["structuredContent"]["state"] == "working"
        own(data, "a").write_text("text")
        ended = other.call(3, "tasks_wait", id=task, timeout_s=60)["structuredContent"]
        assert (ended["state"], ended["result"]) == ("completed", {"text": "text"})
        assert own(data, "calls").read_text() == "a\n"
    finally:
        other.process.kill()
        other.process.communicate()


def test_a_task_that_a_call_became_ends_with_the_kernel_and_says_so(
    kernel: RunningKernel, data: Path, client: StdioClient
) -> None:
    client.initialize()
    task = client.call(2, "wait_for_file", file="a")["_meta"]["linckia/failure"]["details"]["task"]
    os.kill(kernel.process.pid, signal.SIGKILL)
    answer = client.call(3, "tasks_wait", id=task, timeout_s=60)
    assert not answer["isError"], answer["content"]
    ended = answer["structuredContent"]
    assert ended["state"] == "failed"
    assert ended["failure"]["executed"] == "maybe", json.dumps(ended["failure"])
    assert "was interrupted when Linckia ended" in ended["failure"]["message"]
    assert own(data, "calls").read_text() == "a\n"


def test_a_call_whose_client_was_killed_is_over(kernel: RunningKernel, data: Path, client: StdioClient) -> None:
    client.initialize()
    call = {"name": "wait_for_file", "arguments": {"file": "a"}, "_meta": {"progressToken": "p"}}
    client.send({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
    assert client.process.stdout is not None
    client.process.stdout.readline()
    client.process.kill()
    wait_until(own(data, "a.cancelled").exists)


def test_a_client_may_ask_for_a_task(data: Path, client: StdioClient) -> None:
    client.initialize()
    call = {"name": "wait_for_file", "arguments": {"file": "a"}, "_meta": {"io.linckia/task": True}}
    result = client.request(2, "tools/call", **call)["result"]
    assert not result["isError"]
    assert "structuredContent" not in result
    task = result["_meta"]["io.linckia/task"]
    assert task["state"] == "working"
    own(data, "a").write_text("text")
    ended = client.call(3, "tasks_wait", id=task["id"], timeout_s=60)["structuredContent"]
    assert ended["result"] == {"text": "text"}
    wrong = client.request(4, "tools/call", **{**call, "_meta": {"io.linckia/task": "yes"}})["result"]
    assert "must be true or false" in wrong["content"][0]["text"]


def test_a_client_that_declares_the_extension_polls_a_task(data: Path, client: StdioClient) -> None:
    discovered = client.request(1, "server/discover", _meta=meta())["result"]
    assert discovered["capabilities"]["extensions"][EXTENSION] == {}
    call = {"name": "wait_for_file", "arguments": {"file": "a"}}
    made = client.request(2, "tools/call", **call, _meta=meta())["result"]
    assert (made["resultType"], made["status"]) == ("task", "working")
    working = client.request(3, "tasks/get", taskId=made["taskId"], _meta=meta())["result"]
    assert (working["resultType"], working["status"]) == ("complete", "working")
    assert working["statusMessage"] == "1/2 waiting"
    own(data, "a").write_text("text")
    polled = iter(range(4, 10_000))

    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = client.request(next(polled), "tasks/get", taskId=made["taskId"], _meta=meta())["result"]
        return found if found["status"] != "working" else None

    found = wait_until(ended)
    assert found["status"] == "completed"
    assert found["result"]["structuredContent"] == {"text": "text"}
    assert not found["result"]["isError"]
    assert client.request(10_001, "tasks/cancel", taskId=made["taskId"], _meta=meta())["result"]["resultType"]
    unknown = client.request(10_002, "tasks/get", taskId="none", _meta=meta())["error"]
    assert unknown["code"] == -32602
    undeclared = {**meta(), "io.modelcontextprotocol/clientCapabilities": {}}
    refused = client.request(10_003, "tasks/get", taskId=made["taskId"], _meta=undeclared)["error"]
    assert refused["code"] == -32021
    assert refused["data"]["requiredCapabilities"] == {"extensions": {EXTENSION: {}}}


def test_a_client_that_declares_the_extension_cancels_a_task(data: Path, client: StdioClient) -> None:
    client.request(1, "server/discover", _meta=meta())
    call = {"name": "wait_for_file", "arguments": {"file": "a"}}
    made = client.request(2, "tools/call", **call, _meta=meta())["result"]
    assert client.request(3, "tasks/cancel", taskId=made["taskId"], _meta=meta())["result"]["resultType"] == "complete"
    wait_until(own(data, "a.cancelled").exists)
    assert client.request(4, "tasks/get", taskId=made["taskId"], _meta=meta())["result"]["status"] == "cancelled"


def test_the_extension_is_not_there_for_clients_with_a_handshake(client: StdioClient) -> None:
    client.initialize()
    assert client.request(2, "tasks/get", taskId="none")["error"]["code"] == -32601
