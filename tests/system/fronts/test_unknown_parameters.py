"""An unknown parameter is the same error wherever a call is made, and names what may be given there."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.control.client import CallFailed
from proto.mcp import FAILURE
from tests.system.cli.clients import data_directory, linckia, stdio_client
from tests.system.running import HTTP, RunningKernel, running

SERVICES = ("front", "files", "watch", "tasks", "yaml", "echo")
SOURCE = {"type": "query", "config": {"query": {}}}
WRONG = {"pth": "/x"}
SAID = "unknown parameter `pth` (did you mean `path`?); known parameters: path, "
OF_REFERENCE = "unknown parameter `pth`; known parameters: root, "


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningKernel, Path, Path]]:
    root = tmp_path_factory.mktemp("root")
    with (
        data_directory(tmp_path_factory.mktemp("place") / "data") as data,
        running(data, [root], services=SERVICES, options=HTTP, all_ready=False) as kernel,
    ):
        kernel.wait_ready("files", "tasks")
        yield kernel, data, root


def called(place: tuple[RunningKernel, Path, Path], surface: str, tool: str, /, **arguments: Any) -> tuple[str, str]:
    """Return the message and the field of a call that fails."""
    _, data, root = place
    with stdio_client(data, str(root), "--surface", surface, services=",".join(SERVICES)) as client:
        client.initialize()
        result = client.request(2, "tools/call", name=tool, arguments=arguments)["result"]
    assert result["isError"], result
    failure = result["_meta"][FAILURE]
    assert failure["kind"] == "invalid_params"
    return result["content"][0]["text"], failure["field"]


@pytest.mark.parametrize("surface", ["all", "core"])
def test_a_tool_names_the_parameters_that_its_surface_lists(
    place: tuple[RunningKernel, Path, Path], surface: str
) -> None:
    said, field = called(place, surface, "files_index", **WRONG)
    assert said.startswith(SAID)
    assert field == "pth"


def test_a_surface_of_another_program_names_its_parameters(place: tuple[RunningKernel, Path, Path]) -> None:
    said, field = called(place, "files", "index", **WRONG)
    assert said.startswith(OF_REFERENCE)
    assert field == "pth"


def test_a_step_says_the_same(place: tuple[RunningKernel, Path, Path]) -> None:
    steps = [{"op": "files_index", "params": WRONG}]
    said, field = called(place, "all", "ops_execute", operations=steps)
    assert said.startswith(f"operations[0] (files_index): {SAID}")
    assert field == "operations[0].params.pth"


@pytest.mark.parametrize(("name", "more"), [("tasks_start", {}), ("timers_create", {"at": "2h"})])
def test_a_call_made_later_says_the_same_before_it_is_stored(
    place: tuple[RunningKernel, Path, Path], name: str, more: dict[str, str]
) -> None:
    said, field = called(place, "all", name, operation="files_index", arguments=WRONG, **more)
    assert said.startswith(f"`arguments` of files_index: {SAID}")
    assert field == "arguments.pth"


def test_a_plan_says_the_same_before_it_is_stored(place: tuple[RunningKernel, Path, Path]) -> None:
    _, _, root = place
    outcome = {"type": "tool", "tool": "files_index", "arguments": WRONG}
    source = {"type": "filesystem.index", "config": {"path": str(root)}}
    said, field = called(place, "all", "plans_create", name="p", sources=[source], outcomes=[outcome])
    assert SAID in said
    assert field.endswith("arguments.pth")
    assert place[0].call("plans_list")["plans"] == []


def test_the_command_line_says_the_same(place: tuple[RunningKernel, Path, Path]) -> None:
    kernel, data, _ = place
    with pytest.raises(CallFailed) as caught:
        kernel.call("files_index", WRONG)
    assert str(caught.value).startswith(SAID)
    assert (caught.value.failure["kind"], caught.value.failure["field"]) == ("invalid_params", "pth")
    done = linckia(data, "call", "files_index", json.dumps(WRONG))
    assert done.returncode != 0
    assert SAID in done.stderr


def test_a_post_says_the_same(place: tuple[RunningKernel, Path, Path]) -> None:
    url = str(place[0].status()["http_url"]).rsplit("/", 1)[0]
    request = urllib.request.Request(
        f"{url}/call/files_index", json.dumps(WRONG).encode(), {"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    assert caught.value.code == 400
    assert SAID in json.loads(caught.value.read())["error"]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("ops_execute", {"operations": [{"op": "files_indx", "params": {}}]}),
        ("ops_execute", {"operations": [{"op": "files_reed", "params": {}}]}),
        ("plans_create", {"name": "p", "sources": [SOURCE], "outcomes": [{"type": "tool", "tool": "files_reed"}]}),
        ("tasks_start", {"operation": "files_reed"}),
        ("timers_create", {"operation": "files_reed", "at": "2h"}),
    ],
)
def test_an_operation_that_does_not_exist_comes_with_the_nearest(
    place: tuple[RunningKernel, Path, Path], tool: str, arguments: dict[str, Any]
) -> None:
    _, data, root = place
    with stdio_client(data, str(root), "--surface", "all", services=",".join(SERVICES)) as client:
        client.initialize()
        answer = client.request(2, "tools/call", name=tool, arguments=arguments)
    meant = "files_index" if "files_indx" in str(arguments) else "files_read"
    assert f"did you mean {meant}" in str(answer)
