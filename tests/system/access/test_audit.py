"""The audit log of a running system: it records changes with their callers, and refusals, and nothing waits for its
disk.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel.chronicle.audit import AuditEntry, entries, files_of, path_of
from tests.system.cli.clients import command, data_directory, stdio_client
from tests.system.mounts.mounting import small, write
from tests.system.running import RunningKernel, running, wait_until


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "root").mkdir()
    (folder / "root" / "a.yaml").write_text("retries: 3\n")
    with (
        data_directory(folder / "data") as data,
        running(data, [folder / "root"], services=["yaml", "echo"]) as kernel,
    ):
        yield kernel


@pytest.fixture
def file(kernel: RunningKernel) -> str:
    return str(Path(kernel.status()["roots"][0]) / "a.yaml")


def recorded(kernel: RunningKernel, **wanted: object) -> list[AuditEntry]:
    """The lines with these members, oldest first."""
    found = [entry for path in files_of(kernel.data_dir) for entry in entries(path.read_bytes().splitlines())]
    return [entry for entry in found if all(getattr(entry, name) == value for name, value in wanted.items())]


def wait_for(kernel: RunningKernel, **wanted: object) -> AuditEntry:
    return wait_until(lambda: recorded(kernel, **wanted), said=lambda: recorded(kernel))[-1]


TRACE = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


def test_changes_of_clients_and_of_the_operator_are_recorded_and_reads_are_not(
    kernel: RunningKernel, file: str
) -> None:
    with stdio_client(kernel.data_dir) as client:
        client.initialize()
        arguments = {"file": file, "path": "retries", "value": "4"}
        client.request(1, "tools/call", name="yaml_set", arguments=arguments, _meta={"traceparent": TRACE})
        client.call(2, "yaml_get", file=file, path="retries")
        wrong = {"file": file, "path": "retries.there", "value": "1"}
        client.request(3, "tools/call", name="yaml_set", arguments=wrong)
        assert client.leave() == 0
    line = wait_for(kernel, who="stdio", outcome="ok", trace="ab" * 16)
    assert (line.operation, line.target, line.trace) == ("yaml_set", f"file={file} path=retries", "ab" * 16)
    assert wait_for(kernel, who="stdio", outcome="operation").target == f"file={file} path=retries.there"
    assert not recorded(kernel, operation="yaml_get")
    kernel.call("yaml_set", {"file": file, "path": "retries", "value": "5"})
    assert wait_for(kernel, who="operator").peer == ""
    shown = command(kernel.data_dir, "audit", "--who", "stdio", "--operation", "yaml_*", "--failed", "--json")
    assert [json.loads(line)["outcome"] for line in shown.stdout.splitlines()] == ["operation"]


def test_each_step_of_a_composite_tool_has_a_line_and_one_trace(kernel: RunningKernel, file: str) -> None:
    steps = [
        {"op": "yaml_set", "params": {"file": file, "path": "steps", "value": "1"}},
        {"op": "yaml_delete", "params": {"file": file, "path": "steps"}},
    ]
    with stdio_client(kernel.data_dir) as client:
        client.initialize()
        client.call(1, "execute", operations=steps)
    last = wait_for(kernel, operation="yaml_delete")
    assert [entry.operation for entry in recorded(kernel, trace=last.trace)] == ["yaml_set", "yaml_delete"]


def test_manual_control_of_services_is_recorded(kernel: RunningKernel) -> None:
    kernel.call("kernel_restart", {"service": "echo"})
    line = wait_for(kernel, operation="kernel_restart")
    assert (line.who, line.target, line.outcome) == ("operator", "service=echo", "ok")


def test_lines_wait_for_a_full_disk_and_calls_do_not(kernel: RunningKernel, file: str) -> None:
    """A limit on the size of files stands for the disk: the kernel's writes fail with EFBIG."""
    pid = kernel.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    kernel.call("yaml_set", {"file": file, "path": "before", "value": "1"})
    wait_for(kernel, target=f"file={file} path=before")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (path_of(kernel.data_dir).stat().st_size + 10, hard))
    try:
        kernel.call("yaml_set", {"file": file, "path": "during", "value": "1"})
        wait_until(lambda: kernel.status()["audit"]["problem"])
        state: dict[str, Any] = kernel.status()["audit"]
        assert state["problem"].endswith("audit.jsonl: File too large")
        assert state["waiting"] >= 1
        assert "audit.jsonl: File too large" in command(kernel.data_dir, "status").stdout
        kernel.call("yaml_set", {"file": file, "path": "during", "value": "2"})
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
    wait_until(lambda: len(recorded(kernel, target=f"file={file} path=during")) == 2)
    wait_until(lambda: kernel.status()["audit"]["problem"] == "", said=lambda: kernel.status()["audit"])


def test_the_audit_log_is_read_without_a_kernel_and_a_missing_one_is_reported(tmp_path: Path) -> None:
    nothing = command(tmp_path, "audit")
    assert nothing.returncode == 1
    assert "nothing has been recorded" in nothing.stderr


@pytest.mark.parametrize("reads", [False, True])
def test_requests_to_a_mounted_server_are_recorded_as_those_to_linckia_itself(tmp_path: Path, reads: bool) -> None:
    services = ("front", "mounts", "yaml")
    write(tmp_path / "data", {"one": small()})
    with (tmp_path / "data" / "linckia.toml").open("a") as file:
        file.write(f"[audit]\nreads = {str(reads).lower()}\n")
    with (
        running(tmp_path / "data", services=services, options=["--no-http"]) as kernel,
        stdio_client(kernel.data_dir, "--surface", "one", services=",".join(services)) as client,
    ):
        client.initialize()
        client.request(5, "tools/list")
        client.call(1, "echo", text="s3cret")
        client.request(2, "resources/read", uri="note://one?key=s3cret")
        client.request(3, "prompts/get", name="greeting")
        client.call(4, "write", path=str(tmp_path / "new"))
        wait_for(kernel, operation="mcp_one.repeat")
        found = [(each.operation, each.target) for each in recorded(kernel, who="stdio")]
    change = ("mcp_one.repeat", "method=tools/call name=write")
    # The front starts the server with a ping.
    assert [each for each in found if "ping" not in each[1] and "/list" not in each[1]] == [
        *(
            ("mcp_one.read", target)
            for target in ("method=tools/call name=echo", "method=resources/read name=note://one",
                           "method=prompts/get name=greeting") if reads
        ),
        change,
    ]  # fmt: skip
