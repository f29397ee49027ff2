"""Every feature of server-everything through Linckia, for the Python SDK in both eras: the same as directly."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import StdioServerParameters, stdio_client
from mcp.client import Client

from tests.acceptance.install_servers import folder, script
from tests.acceptance.test_mounted_servers import Mounts, opened

ANSWERS: dict[str, Any] = {"name": "Ada", "check": True, "integer": 7}


@pytest.fixture(scope="module")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounts]:
    if not script("everything", "mcp-server-everything").exists():
        pytest.skip(f"everything is not installed in {folder()}: python -m tests.acceptance.install_servers everything")
    yield from opened(tmp_path_factory, "everything")


class Recorder:
    """The client's side: replies to all questions and records everything that arrives."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.progress: list[tuple[float, float | None]] = []

    async def sample(self, context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        self.seen.append(["sampling", params.max_tokens, params.system_prompt])
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(type="text", text="sampled"), model="none"
        )

    async def elicit(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        url = getattr(params, "url", None)
        self.seen.append(["elicitation", params.message, url])
        return types.ElicitResult(action="accept", content=None if url else ANSWERS)

    async def roots(self, context: Any) -> types.ListRootsResult:
        self.seen.append(["roots"])
        return types.ListRootsResult(roots=[types.Root(uri="file:///garden", name="garden")])  # type: ignore[arg-type]  # pydantic converts it

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append((progress, total))

    def client(self, command: list[str], mode: str) -> Client:
        target = stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ)))
        return Client(
            target,
            mode=mode,
            sampling_callback=self.sample,
            elicitation_callback=self.elicit,
            list_roots_callback=self.roots,
        )


async def used(command: list[str], mode: str) -> dict[str, Any]:
    """Use each feature and return the results."""
    recorder = Recorder()
    found: dict[str, Any] = {}

    async def call(name: str, **arguments: object) -> None:
        result = await client.call_tool(name, arguments, progress_callback=recorder.on_progress)
        found[name] = [block.model_dump(mode="json", exclude_none=True) for block in result.content]

    with anyio.fail_after(120):
        async with recorder.client(command, mode) as client:
            found["tools"] = [tool.name for tool in (await client.list_tools()).tools]
            await call("trigger-long-running-operation", duration=0.2, steps=4)
            found["progress"] = recorder.progress
            await call("trigger-sampling-request", prompt="Hi", maxTokens=9)
            await call("trigger-elicitation-request")
            await call("trigger-url-elicitation", url="https://example.org/x", elicitationId="e1")
    # Servers ask for roots when they like; a shared one gets those of its settings.
    found["questions"] = [each for each in recorder.seen if each != ["roots"]]
    return found


def run(command: list[str], mode: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(json.dumps(anyio.run(used, command, mode)))
    return result


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_questions_and_progress_reach_the_client(mounts: Mounts, mode: str) -> None:
    direct = run(mounts.server("everything").command, "legacy")
    through = run(mounts.stdio("everything"), mode)
    for what, value in direct.items():
        assert through[what] == value, what


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_a_cancelled_call_is_withdrawn_and_the_next_one_answered(mounts: Mounts, mode: str) -> None:
    mounts.server("everything")

    async def main() -> None:
        begun = anyio.Event()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            begun.set()

        with anyio.fail_after(120):
            async with Recorder().client(mounts.stdio("everything"), mode) as client:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(
                        lambda: client.call_tool(
                            "trigger-long-running-operation",
                            {"duration": 600, "steps": 6000},
                            progress_callback=on_progress,
                        )
                    )
                    await begun.wait()
                    tasks.cancel_scope.cancel()
                result = await client.call_tool("get-sum", {"a": 1, "b": 2})
                assert "3" in str(result.content)

    anyio.run(main)


@pytest.mark.filterwarnings("ignore:resources/.*subscribe is removed")
def test_subscribers_are_notified_of_updates(mounts: Mounts) -> None:
    mounts.server("everything")
    uri = "demo://resource/dynamic/text/1"

    async def main() -> None:
        updated = anyio.Event()

        async def on_message(message: object) -> None:
            if isinstance(message, types.ResourceUpdatedNotification) and str(message.params.uri) == uri:
                updated.set()

        command = mounts.stdio("everything")
        target = stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ)))
        with anyio.fail_after(120):
            async with Client(target, mode="legacy", message_handler=on_message) as client:
                await client.subscribe_resource(uri)
                await client.call_tool("toggle-subscriber-updates", {})
                await updated.wait()
                await client.unsubscribe_resource(uri)

    anyio.run(main)


def test_a_subscriber_of_2026_is_notified_of_updates(mounts: Mounts) -> None:
    mounts.server("everything")
    uri = "demo://resource/dynamic/text/1"

    async def main() -> None:
        with anyio.fail_after(120):
            async with (
                Recorder().client(mounts.stdio("everything"), "2026-07-28") as client,
                client.listen(resource_subscriptions=[uri]) as updates,
            ):
                await client.call_tool("toggle-subscriber-updates", {})
                async for update in updates:
                    if uri in str(update):
                        return

    anyio.run(main)


def test_steps_of_compact_find_and_call_its_tools(mounts: Mounts) -> None:
    mounts.server("everything")
    assert isinstance(mounts.kernel.data_dir, Path)

    async def main() -> None:
        with anyio.fail_after(120):
            async with Recorder().client(mounts.stdio("compact"), "legacy") as client:

                async def query(op: str, **params: object) -> str:
                    result = await client.call_tool("query", {"steps": [{"op": op, "params": params}]})
                    assert not result.is_error, result
                    return str(result.content)

                assert "everything_get-sum" in await query("describe", words="add two numbers together")
                assert "The sum of 2 and 3 is 5" in await query("everything_get-sum", a=2, b=3)
                change = {"operations": [{"op": "everything_toggle-simulated-logging", "params": {}}]}
                result = await client.call_tool("execute", change)
                assert not result.is_error, result

    anyio.run(main)
