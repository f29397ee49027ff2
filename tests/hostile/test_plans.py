"""A compromised `files` can call only its own operations and those that clients requested in plans."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel.chronicle.audit import AuditEntry, entries, files_of
from proto import ops
from proto.control.client import CallFailed
from proto.operation import CLIENT
from tests.hostile.forging import IMPLANT
from tests.system.access.tokens import HttpClient, create, token_command
from tests.system.running import HTTP, RunningKernel, running, wait_until

SERVICES = ("files", "compare", "watch", "yaml", "memory", "transcripts", "knowledge", "retrieve", "graph")

FOREIGN = sorted(
    op.name for op in ops.load().values() if CLIENT in op.callers and op.service in SERVICES and op.service != "files"
)
"""Operations that clients may call and `files` may not."""

SET = {"file": "{{entry.path}}", "path": "name", "value": "{{entry.name}}"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root").resolve()
    for name in ("a", "b"):
        (folder / f"{name}.yaml").write_text("name: ''\n")
    return folder


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[RunningKernel]:
    data = tmp_path_factory.mktemp("data")
    with running(data, [root], options=HTTP, services=SERVICES, environment=IMPLANT, token=True) as started:
        yield started


def arm(kernel: RunningKernel, operation: str, params: dict[str, Any] | None = None, **more: str) -> None:
    """Have an attacker in `files` make a call."""
    asked = {"service": "files", "operation": operation, "params": params or {}, **more}
    kernel.call("kernel_implant", asked)


def failure(kernel: RunningKernel) -> dict[str, Any]:
    """Return the failure of the attack."""
    with pytest.raises(CallFailed) as failed:
        kernel.call("kernel_implanted")
    return failed.value.failure


def plan(name: str, root: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    source = {"type": "filesystem.index", "config": {"path": str(root)}}
    outcome = {"type": "tool", "tool": "yaml_set", "arguments": arguments}
    return {"name": name, "sources": [source], "outcomes": [outcome]}


def run(kernel: RunningKernel, name: str) -> dict[str, Any]:
    """Return the execution, once it has ended."""
    kernel.call("plans_execute", {"name": name})

    def ended() -> dict[str, Any] | None:
        latest: dict[str, Any] = kernel.call("plans_get", {"name": name})["executions"][0]
        return None if latest["status"] == "running" else latest

    return wait_until(ended)


def recorded(kernel: RunningKernel, **wanted: object) -> list[AuditEntry]:
    found = [entry for path in files_of(kernel.data_dir) for entry in entries(path.read_bytes().splitlines())]
    return [entry for entry in found if all(getattr(entry, name) == value for name, value in wanted.items())]


@pytest.mark.parametrize("operation", FOREIGN)
def test_a_compromised_service_cannot_call_other_services_in_any_name(kernel: RunningKernel, operation: str) -> None:
    for caller in ("files", CLIENT, "operator"):
        arm(kernel, operation, caller=caller)
        refused = failure(kernel)
        assert (refused["kind"], "may not be called by service files" in refused["message"]) == ("forbidden", True)


@pytest.mark.parametrize("sealed", ["", "no base64!", "AAAA" * 11, "qqqq" * 80])
def test_a_compromised_service_cannot_forge_a_mandate(kernel: RunningKernel, sealed: str) -> None:
    arm(kernel, "kernel_call", {"entry": {}, "mandate": sealed})
    assert failure(kernel)["kind"] == "forbidden"


def test_a_compromised_service_gets_no_mandate_without_a_client_s_call(kernel: RunningKernel) -> None:
    arm(kernel, "kernel_mandate", {"calls": [{"operation": "memory_list", "arguments": {}}]})
    assert failure(kernel)["message"].startswith("only a client whose call is being served")


@pytest.mark.parametrize("during", ["plans_list", "plans_create", "plans_update"])
@pytest.mark.parametrize(
    "other",
    [
        {"operation": "memory_list", "arguments": {}},
        {"operation": "yaml_set", "arguments": SET | {"value": "other"}},
        {"operation": "yaml_set", "arguments": {}},
        {"operation": "yaml_delete", "arguments": SET},
    ],
)
def test_a_compromised_service_gets_mandates_only_for_its_client_s_requests(
    kernel: RunningKernel, root: Path, during: str, other: dict[str, Any]
) -> None:
    given = {} if during == "plans_list" else plan("wider", root, SET)
    if during == "plans_update":
        kernel.call("plans_create", given)
    arm(kernel, "kernel_mandate", {"calls": [other]}, during=during)
    kernel.call(during, given)
    refused = failure(kernel)
    assert (refused["kind"], "did not ask for that call" in refused["message"]) == ("forbidden", True)
    if during != "plans_list":
        kernel.call("plans_delete", {"name": "wider"})


def test_a_mandate_allows_only_the_sealed_call_in_the_requester_s_name(kernel: RunningKernel, root: Path) -> None:
    """Replayed by the attacker, it does what the client requested; with a single changed bit it does nothing."""
    client = HttpClient(kernel, create(kernel, "asker", "--surface", "files", "--surface", "yaml"))
    arm(kernel, "kernel_mandate", {"calls": [{"operation": "yaml_set", "arguments": SET}]}, during="plans_create")
    assert client.tool("plans_create", plan("kept", root, SET), surface="files").status == 200
    (sealed,) = kernel.call("kernel_implanted")
    entry = {"path": str(root / "a.yaml"), "name": "by a mandate"}
    arm(kernel, "kernel_call", {"entry": entry, "mandate": sealed})
    kernel.call("kernel_implanted")
    assert (root / "a.yaml").read_text() == "name: by a mandate\n"
    (line,) = wait_until(lambda: recorded(kernel, operation="yaml_set", source="plan kept"))
    assert (line.who, line.outcome) == ("asker", "ok")
    content = base64.b64decode(sealed)
    for at in range(0, len(content), 9):
        changed = base64.b64encode(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]).decode()
        arm(kernel, "kernel_call", {"entry": entry, "mandate": changed})
        assert failure(kernel)["kind"] == "forbidden"


def test_plan_has_the_rights_of_its_maker_through_deaths_and_until_the_token_is_revoked(
    kernel: RunningKernel, root: Path
) -> None:
    client = HttpClient(kernel, create(kernel, "maker", "--surface", "files", "--surface", "yaml"))
    assert client.tool("plans_create", plan("lasting", root, SET), surface="files").status == 200
    kernel.kill("files")
    kernel.wait_ready("files")
    assert run(kernel, "lasting")["outcomes_applied"] == 2
    lines = wait_until(lambda: recorded(kernel, source="plan lasting", who="maker"))
    assert {line.operation for line in lines} == {"yaml_set"}
    # Changing other parts of the plan does not lend it the rights of the one who changes it.
    kernel.call("plans_update", {"name": "lasting", "description": "by the operator"})
    token_command(kernel, "revoke", "maker")
    ended = run(kernel, "lasting")
    assert (ended["outcomes_applied"], ended["outcomes_failed"]) == (0, 2)
    assert "the token maker, whose client made plan lasting, is not valid now" in ended["error"]
    kernel.call("plans_update", {"name": "lasting", "outcomes": plan("lasting", root, SET)["outcomes"]})
    assert run(kernel, "lasting")["outcomes_applied"] == 2
    assert wait_until(lambda: recorded(kernel, source="plan lasting", who="operator"))
    assert "mandates" not in kernel.call("plans_get", {"name": "lasting"})
