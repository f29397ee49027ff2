"""Approvals in a running system: chosen calls wait for a person, across deaths, and each approval counts once."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from kernel.chronicle.audit import AuditEntry, entries, files_of
from proto.control.client import CallFailed
from tests.system.access.tokens import Answer, HttpClient, create
from tests.system.cli.clients import StdioClient, command, data_directory, linckia, stdio_client
from tests.system.mounts.mounting import small
from tests.system.running import HTTP, RunningKernel, running, wait_until
from tests.unit.front.wire import META

SERVICES = ("approvals", "echo", "yaml")


@contextlib.contextmanager
def asking(
    folder: Path,
    *,
    services: Sequence[str] = SERVICES,
    options: Sequence[str] = ("--no-http",),
    mcp: Mapping[str, object] | None = None,
    **settings: object,
) -> Iterator[RunningKernel]:
    """A kernel with these settings of `[approvals]`, and a file `a.yaml` in its root."""
    folder.mkdir(exist_ok=True)
    (folder / "root").mkdir(exist_ok=True)
    file = folder / "root" / "a.yaml"
    if not file.exists():
        file.write_text("retries: 3\n")
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "linckia.toml").write_text(tomlkit.dumps({"approvals": settings, "mcp": mcp or {}}))
    with (
        data_directory(folder / "data") as data,
        running(data, [folder / "root"], services=services, options=options, token=options == HTTP) as kernel,
    ):
        yield kernel


def file_of(kernel: RunningKernel) -> Path:
    return Path(kernel.status()["roots"][0]) / "a.yaml"


def change(kernel: RunningKernel, value: int) -> dict[str, Any]:
    """The arguments of `yaml_set`."""
    return {"file": str(file_of(kernel)), "path": "retries", "value": str(value)}


def pending(kernel: RunningKernel, count: int = 1, **wanted: object) -> list[dict[str, Any]]:
    """Wait until this many calls are pending, with these members."""

    def found() -> list[dict[str, Any]] | None:
        there = kernel.call("approval_list")["pending"]
        fits = [each for each in there if all(each[name] == value for name, value in wanted.items())]
        return fits if len(fits) == count else None

    return wait_until(found, said=lambda: kernel.call("approval_list"))


def recorded(kernel: RunningKernel, **wanted: object) -> list[AuditEntry]:
    found = [entry for path in files_of(kernel.data_dir) for entry in entries(path.read_bytes().splitlines())]
    return [entry for entry in found if all(getattr(entry, name) == value for name, value in wanted.items())]


def wait_for(kernel: RunningKernel, **wanted: object) -> AuditEntry:
    return wait_until(lambda: recorded(kernel, **wanted), said=lambda: recorded(kernel))[-1]


def ask(client: StdioClient, number: int, name: str, arguments: dict[str, Any]) -> None:
    client.send(
        {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    )


def failure(message: dict[str, Any]) -> str:
    """The text of a failure, or "" if the call succeeded."""
    if "error" in message:
        return str(message["error"]["message"])
    return str(message["result"]["content"][0]["text"]) if message["result"]["isError"] else ""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    with asking(tmp_path_factory.mktemp("approvals"), require=["yaml_set", "yaml_delete"]) as kernel:
        yield kernel


def test_an_approved_call_is_made_and_a_denied_one_is_not(kernel: RunningKernel) -> None:
    with stdio_client(kernel.data_dir) as client:
        client.initialize()
        assert not client.call(1, "yaml_get", file=str(file_of(kernel)), path="retries")["isError"]
        ask(client, 2, "yaml_set", change(kernel, 4))
        (waiting,) = pending(kernel)
        assert (waiting["operation"], waiting["asker"], waiting["waiting"]) == ("yaml_set", "stdio", True)
        assert json.loads(waiting["preview"])["value"] == "4"
        assert "retries: 3" in file_of(kernel).read_text()
        listed = command(kernel.data_dir, "approve")
        assert waiting["id"] in listed.stdout
        assert "yaml_set of stdio" in listed.stdout
        done = command(kernel.data_dir, "approve", waiting["id"])
        assert (done.returncode, done.stdout) == (0, "yaml_set of stdio is approved\n")
        assert not client.receive(1)[2]["result"]["isError"]
        assert "retries: 4" in file_of(kernel).read_text()

        ask(client, 3, "yaml_set", change(kernel, 5))
        (waiting,) = pending(kernel)
        denied = command(kernel.data_dir, "approve", waiting["id"], "--deny", "--reason", "not today")
        assert denied.returncode == 0
        answer = failure(client.receive(1)[3])
        assert "yaml_set was denied by" in answer
        assert "not today" in answer
        assert "retries: 4" in file_of(kernel).read_text()
        again = command(kernel.data_dir, "approve", waiting["id"])
        assert again.returncode == 1
        assert "was denied by" in again.stderr


def test_both_sides_are_in_the_audit_log(kernel: RunningKernel) -> None:
    with stdio_client(kernel.data_dir) as client:
        client.initialize()
        ask(client, 1, "yaml_set", change(kernel, 6))
        (waiting,) = pending(kernel)
        command(kernel.data_dir, "approve", waiting["id"])
        client.receive(1)
    asked = wait_for(kernel, operation="yaml_set", approval=waiting["id"])
    assert (asked.who, asked.outcome) == ("stdio", "ok")
    assert asked.decided_by
    assert asked.held_ms is not None
    decided = wait_for(kernel, operation="approval_decide", outcome="ok")
    assert decided.who == "operator"
    assert decided.target == f"id={waiting['id']} operation=yaml_set asker_name=stdio"


def test_the_operator_does_not_wait(kernel: RunningKernel) -> None:
    kernel.call("yaml_set", change(kernel, 7), timeout_s=30)
    assert "retries: 7" in file_of(kernel).read_text()


def test_each_step_of_a_composite_tool_waits(kernel: RunningKernel) -> None:
    file = str(file_of(kernel))
    steps = [
        {"op": "yaml_set", "params": {"file": file, "path": "steps", "value": "1"}},
        {"op": "yaml_delete", "params": {"file": file, "path": "steps"}},
    ]
    with stdio_client(kernel.data_dir) as client:
        client.initialize()
        ask(client, 1, "execute", {"operations": steps})
        for operation in ("yaml_set", "yaml_delete"):
            (waiting,) = pending(kernel, operation=operation)
            command(kernel.data_dir, "approve", waiting["id"])
        answer = client.receive(1)[1]["result"]["structuredContent"]
    assert answer["succeeded"] == 2


def test_equal_calls_need_an_approval_each(kernel: RunningKernel) -> None:
    with stdio_client(kernel.data_dir) as client:
        client.initialize()
        for number in (1, 2):
            ask(client, number, "yaml_set", change(kernel, 8))
        first, second = pending(kernel, 2)
        command(kernel.data_dir, "approve", first["id"])
        pending(kernel, 1, id=second["id"])
        assert len(client.receive(1)) == 1
        command(kernel.data_dir, "approve", second["id"], "--deny")
        assert len(client.receive(1)) == 1


def test_a_withdrawn_call_stays_visible_and_a_repetition_finds_the_decision(kernel: RunningKernel) -> None:
    with stdio_client(kernel.data_dir) as client:
        client.initialize()
        ask(client, 1, "yaml_set", change(kernel, 9))
        (waiting,) = pending(kernel, waiting=True)
        client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        pending(kernel, waiting=False)
        message = command(kernel.data_dir, "approve", waiting["id"]).stdout
        assert "a repetition finds this decision" in message
        assert not client.call(2, "yaml_set", **change(kernel, 9))["isError"]
        # It has been used.
        ask(client, 3, "yaml_set", change(kernel, 9))
        (other,) = pending(kernel)
        assert other["id"] != waiting["id"]
        command(kernel.data_dir, "approve", other["id"], "--deny")
        client.receive(1)


def test_a_call_waits_on_while_the_service_dies(kernel: RunningKernel) -> None:
    with stdio_client(kernel.data_dir) as client:
        client.initialize()
        ask(client, 1, "yaml_set", change(kernel, 10))
        (before,) = pending(kernel, waiting=True)
        kernel.kill("approvals")
        (after,) = pending(kernel, waiting=True)
        assert after["id"] == before["id"]
        command(kernel.data_dir, "approve", after["id"])
        assert not client.receive(1)[1]["result"]["isError"]
    assert len([each for each in kernel.call("approval_list")["recent"] if each["id"] == before["id"]]) == 1


def test_a_call_that_waits_when_its_kernel_dies_finds_its_approval(tmp_path: Path) -> None:
    with asking(tmp_path, require=["write"]) as kernel, stdio_client(kernel.data_dir) as client:
        client.initialize()
        ask(client, 1, "yaml_set", change(kernel, 4))
        (before,) = pending(kernel)
        # It would start another kernel.
        client.process.send_signal(signal.SIGSTOP)
        kernel.process.kill()
        kernel.process.wait()
        client.process.kill()
    with asking(tmp_path, require=["write"]) as kernel:
        (still,) = pending(kernel, waiting=False)
        assert still["id"] == before["id"]
        command(kernel.data_dir, "approve", still["id"])
        with stdio_client(kernel.data_dir) as client:
            client.initialize()
            assert not client.call(1, "yaml_set", **change(kernel, 4))["isError"]
            ask(client, 2, "yaml_set", change(kernel, 4))
            (other,) = pending(kernel)
            assert other["id"] != before["id"]
    assert "retries: 4" in (tmp_path / "root" / "a.yaml").read_text()


@pytest.mark.parametrize(("default", "value"), [("deny", 3), ("allow", 4)])
def test_when_the_time_is_over_the_default_counts(tmp_path: Path, default: str, value: int) -> None:
    with asking(tmp_path, require=["noyalib_*"], timeout_s=1, default=default) as kernel:
        with stdio_client(kernel.data_dir) as client:
            client.initialize()
            said = failure(client.request(1, "tools/call", name="yaml_set", arguments=change(kernel, 4)))
        assert f"retries: {value}" in file_of(kernel).read_text()
        assert said.partition(" was ")[2] == ("denied by time-out: nobody decided within 1 s" if value == 3 else "")


@pytest.mark.parametrize("action", ["accept", "decline"])
def test_the_client_s_own_user_may_decide(kernel: RunningKernel, action: str) -> None:
    value = {"accept": 21, "decline": 22}[action]
    with stdio_client(kernel.data_dir) as client:
        client.request(
            0, "initialize", protocolVersion="2025-06-18", capabilities={"elicitation": {}},
            clientInfo={"name": "test", "version": "0"},
        )  # fmt: skip
        client.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        ask(client, 1, "yaml_set", change(kernel, value))
        question = next_request(client)
        assert question["method"] == "elicitation/create"
        assert "yaml_set" in question["params"]["message"]
        client.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": action, "content": {}}})
        said = failure(client.receive(1)[1])
    assert ("denied by the user of stdio" in said) == (action == "decline")
    assert (f"retries: {value}" in file_of(kernel).read_text()) == (action == "accept")


def next_request(client: StdioClient) -> dict[str, Any]:
    """The next message with a method and an id."""
    assert client.process.stdout is not None
    patience = threading.Timer(60, client.process.kill)
    patience.start()
    try:
        while True:
            message: dict[str, Any] = json.loads(client.process.stdout.readline())
            if "method" in message and "id" in message:
                return message
    finally:
        patience.cancel()


def test_a_wrong_entry_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "linckia.toml").write_text('[approvals]\nrequire = ["noyalib_sett"]\n')
    refused = linckia(tmp_path, "serve", "--no-http")
    assert refused.returncode != 0
    assert "approvals.require: no operation that clients may call is named 'noyalib_sett'" in refused.stderr
    assert "did you mean yaml_set?" in refused.stderr


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("timeout_s = 0", "approvals.timeout_s: expected `float` >= 1.0"),
        ('default = "maybe"', "approvals.default: invalid enum value 'maybe'"),
        ("elicits = true", "approvals.elicits is not a setting; did you mean elicit?"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, setting: str, said: str) -> None:
    (tmp_path / "linckia.toml").write_text(f"[approvals]\n{setting}\n")
    assert said in linckia(tmp_path, "serve", "--no-http").stderr


def test_only_the_operator_decides(kernel: RunningKernel) -> None:
    with stdio_client(kernel.data_dir) as client:
        client.initialize()
        answer = client.request(1, "tools/call", name="approval_decide", arguments={"id": "x", "approve": True})
        assert "error" in answer
    with pytest.raises(CallFailed, match="no approval has the id"):
        kernel.call("approval_decide", {"id": "nothing", "approve": True})


def test_tools_of_mounted_servers_wait(tmp_path: Path) -> None:
    kinds = ["mcp.one.e*", "mcp.one.append"]
    services = (*SERVICES, "mounts")
    with asking(tmp_path, services=services, mcp={"one": small()}, require=kinds) as kernel:
        target = tmp_path / "appended"
        with stdio_client(kernel.data_dir, "--surface", "one") as client:
            client.initialize()
            client.request(1, "tools/list")
            assert not client.call(2, "write", path=str(target))["isError"]
            # A tool that only reads waits too, if the settings name it.
            for number, tool, arguments in (
                (3, "echo", {"text": "hi"}),
                (4, "append", {"path": str(target), "text": "!"}),
            ):
                ask(client, number, tool, arguments)
                (waiting,) = pending(kernel)
                assert waiting["tool"] == f"mcp.one.{tool}"
                assert json.loads(waiting["preview"]) == arguments
                command(kernel.data_dir, "approve", waiting["id"])
                assert not client.receive(1)[number]["result"]["isError"]
        assert target.read_text() == "written!\n"
        decided = wait_for(kernel, operation="approval_decide")
        assert "operation=mcp.one." in decided.target


def test_tools_that_change_something_wait_if_all_of_a_server_do(tmp_path: Path) -> None:
    services = (*SERVICES, "mounts")
    with asking(tmp_path, services=services, mcp={"one": small()}, require=["mount:one"]) as kernel:
        with stdio_client(kernel.data_dir, "--surface", "one") as client:
            client.initialize()
            client.request(1, "tools/list")
            assert not client.call(2, "echo", text="hi")["isError"]
            ask(client, 3, "write", {"path": str(tmp_path / "written")})
            (waiting,) = pending(kernel)
            command(kernel.data_dir, "approve", waiting["id"], "--deny")
            assert "denied" in failure(client.receive(1)[3])
        assert not (tmp_path / "written").exists()


def test_a_call_of_a_plan_waits(tmp_path: Path) -> None:
    services = (*SERVICES, "files", "compare", "watch")
    with asking(tmp_path, services=services, require=["yaml_set"]) as kernel:
        folder = file_of(kernel).parent
        kernel.call("index", {"path": str(folder), "async": False}, timeout_s=60)
        arguments = {"file": "{{entry.path}}", "path": "retries", "value": "4"}
        plan = {
            "name": "more",
            "sources": [{"type": "filesystem.index", "config": {"path": str(folder)}}],
            "outcomes": [{"type": "tool", "tool": "yaml_set", "arguments": arguments}],
        }
        kernel.call("plans_create", plan)
        kernel.call("plans_execute", {"name": "more"})
        (waiting,) = pending(kernel)
        assert (waiting["asker"], waiting["source"]) == ("operator", "plan more")
        command(kernel.data_dir, "approve", waiting["id"])

        def execution() -> dict[str, Any] | None:
            found: dict[str, Any] = kernel.call("plans_get", {"name": "more"})["executions"][0]
            return found if found["status"] != "running" else None

        assert wait_until(execution)["outcomes_applied"] == 1
        assert "retries: 4" in file_of(kernel).read_text()


def test_a_token_s_limits_come_first_and_its_name_is_shown(tmp_path: Path) -> None:
    with asking(tmp_path, options=HTTP, require=["write"]) as kernel:
        reader, writer = create(kernel, "reader", "--read-only"), create(kernel, "writer")
        refused = HttpClient(kernel, reader).tool("yaml_set", change(kernel, 4))
        assert "may only read" in refused.text
        assert not kernel.call("approval_list")["pending"]
        answers: list[Answer] = []
        client = HttpClient(kernel, writer)
        thread = threading.Thread(target=lambda: answers.append(client.tool("yaml_set", change(kernel, 4))))
        thread.start()
        (waiting,) = pending(kernel, asker="writer")
        command(kernel.data_dir, "approve", waiting["id"])
        thread.join(60)
        assert "error" not in answers[0].json
        assert "retries: 4" in file_of(kernel).read_text()


def test_a_client_without_a_handshake_is_asked_by_its_answer(tmp_path: Path) -> None:
    with asking(tmp_path, options=HTTP, require=["write"]) as kernel:
        client = HttpClient(kernel, create(kernel, "modern"))
        meta = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
        call: dict[str, Any] = {"name": "yaml_set", "arguments": change(kernel, 4), "_meta": meta}
        asked = client.rpc("tools/call", call).json["result"]
        assert asked["resultType"] == "input_required"
        assert asked["inputRequests"]["approval"]["method"] == "elicitation/create"
        (waiting,) = pending(kernel, waiting=False)
        answers = {"approval": {"action": "accept", "content": {}}}
        again = {**call, "inputResponses": answers, "requestState": asked["requestState"]}
        assert "error" not in client.rpc("tools/call", again).json
        assert "retries: 4" in file_of(kernel).read_text()
        (decided,) = kernel.call("approval_list")["recent"]
        assert (decided["id"], decided["by"]) == (waiting["id"], "the user of modern")
