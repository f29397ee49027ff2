"""The official clients, Python and TypeScript, and the Inspector, over both transports."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import StdioServerParameters, stdio_client
from mcp.client import Client

from proto import ops
from proto.operation import CLIENT, SURFACES, Role
from tests.acceptance.conftest import NODE, Front, run

INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"


def expected_tools() -> set[str]:
    table = ops.load(["tests.conformance.operations"])
    return {op.name for op in table.values() if op.role is Role.TOOL and op.admits(CLIENT)}


# ---- Python -------------------------------------------------------------------------------------------------------


def target_of(front: Front, transport: str) -> Any:
    if transport == "http":
        return front.url
    return stdio_client(StdioServerParameters(command=front.stdio[0], args=front.stdio[1:], env=dict(os.environ)))


@pytest.mark.parametrize("mode", ["legacy", "auto", "2026-07-28"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_python_sdk_lists_and_calls(front: Front, transport: str, mode: str) -> None:
    seen: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async def main() -> None:
        with anyio.fail_after(60):
            async with Client(target_of(front, transport), mode=mode) as client:
                tools = (await client.list_tools()).tools
                assert {tool.name for tool in tools} == expected_tools()
                result = await client.call_tool("mcp_echo", {"message": "héllo"})
                assert result.structured_content == {"message": "héllo"}
                assert not result.is_error
                wrong = await client.call_tool("mcp.echo", {"message": 5})
                assert wrong.is_error
                assert "`message`" in str(wrong.content)
                await client.call_tool("test_tool_with_progress", {}, progress_callback=on_progress)
                assert seen == [0, 50, 100]
                resource = await client.read_resource("test://static-text")
                assert "static text resource" in str(resource.contents)
                prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
                assert "arg1='a'" in str(prompt.messages)

    # As its users run it, on asyncio.
    anyio.run(main, backend="asyncio")


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_python_sdk_is_asked_and_answers(front: Front, transport: str, mode: str) -> None:
    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ada", "color": "blue"})

    async def main() -> None:
        with anyio.fail_after(60):
            async with Client(target_of(front, transport), mode=mode, elicitation_callback=answer) as client:
                result = await client.call_tool("test_input_required_result_multi_round", {})
                assert "Ada likes blue" in str(result.content)

    anyio.run(main, backend="asyncio")


# ---- TypeScript ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def typescript(npx: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Run `client.mjs` and return its output."""
    here = Path(__file__).parent
    folder = tmp_path_factory.mktemp("typescript")
    for name in ("package.json", "client.mjs"):
        shutil.copy(here / name, folder)
    installed = run(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"], cwd=folder)
    assert installed.returncode == 0, installed.stderr

    def client(*arguments: str) -> dict[str, Any]:
        done = run([npx, "-y", "-p", f"node@{NODE}", "node", str(folder / "client.mjs"), *arguments])
        assert done.returncode == 0, done.stderr
        printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return printed

    return client


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_typescript_sdk_lists_and_calls(
    front: Front, typescript: Callable[..., dict[str, Any]], transport: str
) -> None:
    seen = typescript("http", front.url) if transport == "http" else typescript("stdio", *front.stdio)
    assert seen["server"]["name"] == "linckia"
    assert set(seen["tools"]) == expected_tools()
    assert seen["echo"]["structuredContent"] == {"message": "héllo"}
    assert seen["wrong"]["isError"] is True
    assert seen["unknown"] == -32602
    assert seen["many"] == [str(n) for n in range(50)]
    assert seen["progress"] == [0, 50, 100]


# ---- Inspector ----------------------------------------------------------------------------------------------------


INSPECT = ("-y", "-p", f"node@{NODE}", "-p", INSPECTOR, "mcp-inspector", "--cli", "--format", "json")

FIXTURES = {"json_schema_2020_12_tool"}
"""Tools of the conformance suite whose schemas must have keywords that the Inspector warns of."""


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_inspector_lists_and_calls_without_complaint(front: Front, npx: str, transport: str) -> None:
    target = ["--server-url", front.url, "--transport", "http"] if transport == "http" else front.stdio
    listed = run([npx, *INSPECT, "--strict", "--method", "tools/list", *target])
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert {tool["name"] for tool in json.loads(listed.stdout)["result"]["tools"]} == expected_tools()
    call = ["--method", "tools/call", "--tool-name", "mcp_echo", "--tool-arg", "message=hello"]
    called = run([npx, *INSPECT, *target, *call])
    assert called.returncode == 0, called.stdout + called.stderr
    assert json.loads(called.stdout)["result"]["structuredContent"] == {"message": "hello"}


@pytest.mark.parametrize("surface", SURFACES)
def test_the_inspector_warns_of_no_schema(front: Front, npx: str, surface: str) -> None:
    listed = run([npx, *INSPECT, "--strict", "--method", "tools/list", *front.stdio[:-1], surface])
    assert listed.returncode == 0, listed.stdout + listed.stderr
    answer = json.loads(listed.stdout)
    assert answer["result"]["tools"]
    assert [each for each in answer.get("schemaFindings", ()) if each["toolName"] not in FIXTURES] == []
