"""What the operator's page reads and does, over HTTP: figures, calls, history, timeline, tokens, findings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.access.tokens import Answer, HttpClient
from tests.system.running import HTTP, RunningKernel, running, wait_until

SERVICES = ("echo", "yaml")


class Operator:
    """The page's access to a running kernel."""

    def __init__(self, kernel: RunningKernel) -> None:
        wait_until(lambda: kernel.status()["page_url"] is not None)
        key, _, token = kernel.status()["page_url"].partition("#")[2].partition(".")
        self.http = HttpClient(kernel, token)
        self.headers = {"linckia_key": key, "origin": f"http://{self.http.address}"}

    def answer(self, name: str, /, **parameters: Any) -> Answer:
        return self.http.request("POST", f"/operator/{name}", parameters, **self.headers)

    def __call__(self, name: str, /, **parameters: Any) -> Any:
        answer = self.answer(name, **parameters)
        assert answer.status == 200, answer.text
        return answer.json

    def client(self, name: str, parameters: dict[str, Any], **headers: str) -> Answer:
        return self.http.request("POST", f"/call/{name}", parameters, **headers)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("observation")
    (folder / "root").mkdir()
    (folder / "root" / "a.yaml").write_text("port: 1\n")
    with running(folder / "data", [folder / "root"], options=HTTP, services=SERVICES, token=True) as kernel:
        yield kernel


@pytest.fixture
def operator(kernel: RunningKernel) -> Operator:
    return Operator(kernel)


def test_the_live_figures_come_once_whole_and_then_as_changes(kernel: RunningKernel, operator: Operator) -> None:
    with operator.http.open("GET", "/live", **operator.headers) as stream:
        assert stream.getheader("content-type", "").startswith("text/event-stream")
        seen: list[tuple[str, dict[str, Any], int]] = []
        kind = ""
        while len(seen) < 4:
            line = stream.readline()
            assert line, "the stream ended"
            if line.startswith(b"event: "):
                kind = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                seen.append((kind, json.loads(line[6:]), len(line)))
                kernel.call("mcp_echo", {"message": "x"})
    (first, whole, size), *later = seen
    assert first == "overview"
    echo = whole["services"]["echo"]
    for each, told, length in later:
        assert each == "changes"
        assert length < size / 2
        assert told["at"] > whole["at"]
        echo |= told["changes"].get("services", {}).get("echo", {})
    assert echo["calls"] >= 2
    assert echo["calls_per_s"] > 0
    assert echo["cpu"] is not None
    assert (echo["p50_ms"] or 0) > 0


def test_a_log_is_read_on_from_where_it_was(kernel: RunningKernel, operator: Operator) -> None:
    first = operator("kernel_log_after", service="kernel", lines=2)
    assert first["again"]
    assert len(first["lines"]) == 2
    assert operator("kernel_log_after", service="kernel", position=first["position"])["lines"] == []
    kernel.call("kernel_restart", {"service": "echo"})
    more = operator("kernel_log_after", service="kernel", position=first["position"])
    assert not more["again"]
    assert any("echo is ready" in line for line in more["lines"])
    assert operator("kernel_log_after", service="kernel", position=more["position"] + 10**9)["again"]
    assert operator.answer("kernel_log_after", service="../kernel").status == 400


def test_a_setting_is_changed_for_the_operator_alone(kernel: RunningKernel, operator: Operator) -> None:
    file = kernel.data_dir / "linckia.toml"
    refused = operator.answer("kernel_set", name="audit.files", value=0)
    assert (refused.status, file.exists()) == (400, False)
    assert ">= 1" in refused.text
    shown = operator("kernel_set", name="audit.files", value=9)
    assert (shown["value"], shown["source"], shown["acts"]) == (9, "file", "kernel")
    assert file.read_text() == "[audit]\nfiles = 9\n"
    assert operator("kernel_set", name="audit.files", reset=True)["source"] == "default"
    for name in ("kernel_set", "kernel_settings"):
        assert operator.client(name, {"name": "audit.files", "value": 1}).status in (403, 404)


def test_a_call_leaves_a_record_with_its_trace(operator: Operator, kernel: RunningKernel) -> None:
    file = Path(kernel.status()["roots"][0]) / "a.yaml"
    answer = operator.client("yaml_get", {"file": str(file), "path": "port"})
    assert answer.status == 200
    calls = operator("kernel_calls", trace=answer.headers["linckia-trace"])["calls"]
    assert [(each["operation"], each["process"], each["outcome"], each["who"]) for each in calls] == [
        ("yaml_get", "yaml", "ok", "http")
    ]
    assert str(file) in calls[0]["target"]
    assert calls[0]["duration_ms"] >= calls[0]["queued_ms"] >= 0
    wrong = operator.client("yaml_get", {"file": str(file), "path": "nothing"})
    assert wrong.status == 400
    failed = operator("kernel_calls", kind="failed")["calls"]
    assert failed[0]["trace"] == wrong.headers["linckia-trace"]
    assert operator.client("yaml_get", {"file": 1}).json["error"].startswith("parameter `file`")
    assert operator.client("noyalib_gett", {}).status == 404
    # A client may not call operations for services or for the operator.
    for name in ("kernel_stop", "kernel_page_call", "kernel_token_create"):
        assert operator.client(name, {"service": "echo"}).status in (403, 404)


def test_a_death_is_on_the_timeline_with_its_cause_and_recovery(kernel: RunningKernel, operator: Operator) -> None:
    before = operator("kernel_overview")["events"]
    kernel.kill("yaml")
    kernel.wait_ready("yaml")
    wait_until(lambda: operator("kernel_overview")["events"] >= before + 2)
    recovered, died = operator("kernel_timeline", service="yaml", limit=2)["events"]
    assert (died["kind"], died["cause"], died["text"]) == ("died", "signal", "killed by SIGKILL")
    assert recovered["kind"] == "recovered"
    assert recovered["recovery_ms"] > 0
    assert recovered["generation"] == died["generation"] + 1


def test_services_are_controlled_and_described(kernel: RunningKernel, operator: Operator) -> None:
    assert "ready, generation" in operator("kernel_restart", service="echo")["message"]
    details = operator("kernel_service", service="yaml")
    assert "yaml_set" in details["operations"]
    assert (details["walls"]["roots"], details["walls"]["network"]) == ("write", False)
    assert details["supervision"]["restart"] == "permanent"
    assert operator.answer("kernel_service", service="nothing").status == 400
    assert any("echo" in line for line in operator("kernel_logs", service="kernel", lines=200)["lines"])


def test_only_the_kernels_operations_are_called_as_the_operator(operator: Operator) -> None:
    for name in ("yaml_get", "mcp_echo", "kernel_page_call", "kernel_call"):
        assert operator.answer(name).status == 403
    assert operator.answer("no_such").status == 404


def test_the_page_previews_what_a_call_would_change_and_leaves_no_trace(
    operator: Operator, kernel: RunningKernel
) -> None:
    file = Path(kernel.status()["roots"][0]) / "a.yaml"
    call = {"file": str(file), "path": "port", "value": "2"}
    assert "+port: 2" in operator("yaml_set", **call, dry_run=True)["diff"]
    for more in ({}, {"dry_run": False}):
        assert operator.answer("yaml_set", **call, **more).status == 403
    for wrong in ({"path": 1}, {"dry_run": "yes"}):
        assert operator.answer("yaml_set", **{**call, "dry_run": True, **wrong}).status == 400
    assert operator.answer("yaml_get", file=str(file), path="port", dry_run=True).status == 400
    assert file.read_text() == "port: 1\n"
    assert [each for each in operator("kernel_audit")["entries"] if each["operation"] == "yaml_set"] == []


def test_tokens_are_valid_once_created_and_invalid_once_revoked(kernel: RunningKernel, operator: Operator) -> None:
    made = operator("kernel_token_create", name="page-made", read_only=True, expires="1d")
    client = HttpClient(kernel, made["token"])
    assert client.request("POST", "/call/mcp_echo", {"message": "x"}).status == 200
    file = Path(kernel.status()["roots"][0]) / "a.yaml"
    change = {"file": str(file), "path": "port", "value": "2"}
    assert client.request("POST", "/call/noyalib_set", change).status == 403
    named = {each["name"] for each in client.request("GET", "/operations").json["operations"]}
    assert "yaml_get" in named
    assert "yaml_set" not in named
    assert operator.answer("kernel_token_create", name="page-made").status == 400
    assert "no surface" in operator.answer("kernel_token_create", name="other", surfaces=["nothing"]).json["error"]
    assert [each["name"] for each in operator("kernel_token_list")["tokens"]] == ["page-made"]
    operator("kernel_token_revoke", name="page-made")
    assert client.request("POST", "/call/mcp_echo", {"message": "x"}).status == 401
    assert operator("kernel_token_list")["tokens"] == []
    changes = ["kernel_token_revoke", "kernel_token_create", "kernel_token_create", "kernel_token_create"]

    def lines() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = operator("kernel_audit", operation="kernel_token_*")["entries"]
        return found

    wait_until(lambda: [each["operation"] for each in lines()] == changes)
    assert made["token"] not in json.dumps(lines())


def test_the_doctor_knows_the_running_kernel(operator: Operator, kernel: RunningKernel) -> None:
    findings = {each["what"]: each for each in operator("kernel_doctor")["findings"]}
    assert findings["kernel"]["verdict"] == "ok"
    assert str(kernel.status()["pid"]) in findings["kernel"]["found"]


def test_metrics_have_histograms_of_operations(operator: Operator, kernel: RunningKernel) -> None:
    kernel.call("mcp_echo", {"message": "x"})
    text = operator.http.request("GET", "/metrics").text
    found = re.search(
        r'linckia_operation_duration_seconds_bucket\{le="\+Inf",operation="mcp_echo",service="echo"\} (\S+)', text
    )
    assert found is not None, text[:3000]
    assert float(found[1]) >= 1
    assert 'linckia_operation_queue_seconds_count{operation="mcp_echo"' in text


def test_history_and_key_outlive_the_kernel(tmp_path: Path) -> None:
    keys, events = [], []
    for _ in range(2):
        with running(tmp_path / "data", options=HTTP, services=["echo"], token=True) as kernel:
            operator = Operator(kernel)
            keys.append(operator.headers["linckia_key"])
            kernel.kill("echo")
            kernel.wait_ready("echo")
            wait_until(lambda: operator("kernel_timeline", service="echo")["events"])  # noqa: B023
            events.append(operator("kernel_timeline")["events"])
    assert keys[0] == keys[1]
    assert [each["kind"] for each in events[1]].count("started") == 2
    assert {each["at"] for each in events[0] if each["kind"] == "died"} <= {each["at"] for each in events[1]}
    assert os.stat(tmp_path / "data" / "page.key").st_mode & 0o077 == 0
