"""The composite tools on the real system: pipelines across services, downloads, prompts, and deaths in between."""

from __future__ import annotations

import hashlib
import http.server
import json
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
import trio
from mcp.client import Client
from mcp_types import TextContent

from tests.system.running import HTTP, RunningKernel, connection, running
from tests.system.support.workloads import make_folder, wait_for_folder
from tests.unit.front.surfaces.test_prompts import FILLED, examples_in

BODY = b"A sea star that regrows an arm.\n" * 100_000
"""3.2 MB."""


class Site(http.server.BaseHTTPRequestHandler):
    """Answers `BODY`; below `/slow`, the second half once `going_on` is set."""

    going_on = threading.Event()
    asked = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY[: len(BODY) // 2])
        self.asked.set()
        if self.path.startswith("/slow"):
            self.going_on.wait(30)
        self.wfile.write(BODY[len(BODY) // 2 :])

    def log_message(self, format: str, *args: object) -> None:
        """Not to the tests' output."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.handle_error = lambda *args: None  # type: ignore[method-assign]  # killed clients are the point here
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    Site.going_on.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("folder")
    make_folder(folder)
    (folder / "prompts").mkdir()
    (folder / "prompts" / "PROMPT-look-around.md").write_text("# Look around\n\nSay what is here.\n")
    environment = {"LINCKIA_FETCH_ALLOW": "127.0.0.1"}
    data = tmp_path_factory.mktemp("data")
    services = ("echo", "yaml", "graph", "knowledge", "retrieve", "documents", "fetch", "watch")
    with running(data, [folder], options=HTTP, environment=environment, services=services) as started:
        wait_for_folder(started)
        yield started


def as_client(kernel: RunningKernel, surface: str, talk: Callable[[Client], Awaitable[None]]) -> None:
    """Run `talk` with the official client, as its users do, on asyncio."""

    async def main() -> None:
        with anyio.fail_after(60):
            async with Client(f"{kernel.status()['http_url']}/{surface}") as client:
                await talk(client)

    anyio.run(main, backend="asyncio")


def read(result: Any) -> Any:
    """The structured content of a call that succeeded."""
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


def test_documents_are_added_found_and_read_through_their_surface(kernel: RunningKernel) -> None:
    async def talk(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"query", "execute", "session", "mcp_echo"}
        parts = ("stomach", "madreporite", "ossicle")
        add = [{"op": "add", "params": {"name": f"{n}.txt", "content": f"of the {n}"}} for n in parts]
        done = read(await client.call_tool("execute", {"operations": add}))
        assert (done["totalOps"], done["succeeded"], done["failed"]) == (3, 3, 0)
        steps = [
            {"op": "search", "params": {"query": "the madreporite", "type": "keyword", "limit": 1}},
            {"op": "get", "params": {"hash": "$prev.results[0].hash", "includeContent": True}},
            {"op": "grep", "params": {"pattern": "$prev.content"}},
        ]
        found = read(await client.call_tool("query", {"steps": steps}))
        assert found["completedSteps"] == 3
        assert [match["line_text"] for match in found["steps"][2]["result"]["matches"]] == ["of the madreporite"]
        wrong = await client.call_tool("execute", {"operations": [{"op": "delete", "params": {"name": "nothing*"}}]})
        assert wrong.is_error
        assert wrong.structured_content is not None
        assert wrong.structured_content["failed"] == 1

    as_client(kernel, "documents", talk)


def test_a_session_that_is_not_named_is_the_last_that_the_client_has_started(kernel: RunningKernel) -> None:
    async def talk(client: Client) -> None:
        own = read(await client.call_tool("session", {"action": "start", "params": {"label": "mine"}}))
        other = kernel.call("documents_session_start", {"label": "another's"})
        watched = read(await client.call_tool("session", {"action": "watch", "params": {"enabled": False}}))
        assert watched["session_id"] == own["session_id"]
        named = read(await client.call_tool("session", {"action": "stop", "params": {"label": "another's"}}))
        assert named["session_id"] == other["session_id"]
        kernel.call("documents_session_start", {"label": "another's"})
        assert read(await client.call_tool("session", {"action": "stop"}))["session_id"] == own["session_id"]
        # Having none of its own, it means the only one that there is.
        assert read(await client.call_tool("session", {"action": "stop"}))["label"] == "another's"

    as_client(kernel, "documents", talk)


def test_documents_added_between_start_and_stop_carry_the_label_through_deaths(
    kernel: RunningKernel, site: str
) -> None:
    async def talk(client: Client) -> None:
        async def add(op: str, **params: str) -> None:
            done = read(await client.call_tool("execute", {"operations": [{"op": op, "params": params}]}))
            assert done["succeeded"] == 1

        await client.call_tool("session", {"action": "start", "params": {"label": "bound"}})
        await add("add", name="bound-1.txt", content="one")
        await add("download", url=f"{site}/bound-2.txt")
        for victim in ("front", "documents"):
            await anyio.to_thread.run_sync(kernel.kill, victim)
            await anyio.to_thread.run_sync(kernel.wait_ready, victim)
            await add("add", name=f"bound-{victim}.txt", content=victim)
        stopped = read(await client.call_tool("session", {"action": "stop"}))
        assert (stopped["label"], stopped["documents"]) == ("bound", 4)
        await add("add", name="bound-after.txt", content="after")
        steps = [
            {"op": "list", "params": {"session": "bound"}},
            {"op": "search", "params": {"query": "one", "session": "bound"}},
        ]
        listed, found = [step["result"] for step in read(await client.call_tool("query", {"steps": steps}))["steps"]]
        assert {one["name"] for one in listed["documents"]} == {
            "bound-1.txt", "bound-2.txt", "bound-front.txt", "bound-documents.txt",
        }  # fmt: skip
        assert [one["title"] for one in found["results"]] == ["bound-1.txt"]

    as_client(kernel, "documents", talk)


def test_one_pipeline_reaches_every_corpus(kernel: RunningKernel) -> None:
    async def talk(client: Client) -> None:
        listed = read(await client.call_tool("query", {"steps": [{"op": "describe"}]}))
        assert {"documents_search", "notes_search", "graph_neighbors", "yaml_get", "kernel_status"} <= set(
            listed["query_ops"]
        )
        assert {"documents_add", "documents_download", "yaml_set"} <= set(listed["execute_ops"])
        steps = [
            {"op": "graph_neighbors", "params": {"id": "note-3", "direction": "out"}},
            {"op": "notes_read", "params": {"id": "$prev.nodes[0].id"}},
            {"op": "yaml_get", "params": {"file": "settings.yaml", "path": "server.host"}},
            {"op": "mcp.echo", "params": {"message": "$prev.text"}},
        ]
        found = read(await client.call_tool("query", {"steps": steps}))
        assert "note number 4" in str(found["steps"][1]["result"])
        assert found["steps"][3]["result"] == {"message": "example.org"}

    as_client(kernel, "compact", talk)


def test_prompts_are_listed_and_read(kernel: RunningKernel) -> None:
    async def talk(client: Client) -> None:
        prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        assert str(prompts["look_around"].description).startswith("Look around (")
        assert prompts["research"].arguments
        found = await client.get_prompt("look_around")
        assert [message.role for message in found.messages] == ["assistant"]

    as_client(kernel, "documents", talk)


@pytest.mark.parametrize("surface", ["documents", "compact", "core", "all"])
def test_the_examples_of_the_prompts_are_calls_that_succeed(kernel: RunningKernel, surface: str) -> None:
    async def talk(client: Client) -> None:
        stored = {"op": "add", "params": {"name": "prompts.md", "content": "of sea stars, and def parse"}}
        read(await client.call_tool("execute", {"operations": [stored]}))
        for name, arguments, examples in FILLED:
            named = {"document_name": "prompts.md"} if "document_name" in arguments else {}
            filled = await client.get_prompt(name, {**arguments, **named})
            content = filled.messages[0].content
            assert isinstance(content, TextContent)
            calls = examples_in(content.text)
            assert len(calls) == examples
            for tool, given in calls:
                read(await client.call_tool(tool, given))

    as_client(kernel, surface, talk)


def test_a_download_reports_progress_and_is_a_document(kernel: RunningKernel, site: str) -> None:
    seen: list[tuple[float, float | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total))

    async def talk(client: Client) -> None:
        checksum = f"sha256:{hashlib.sha256(BODY).hexdigest()}"
        operations = [{"op": "download", "params": {"url": f"{site}/stars.txt", "checksum": checksum}}]
        done = read(await client.call_tool("execute", {"operations": operations}, progress_callback=on_progress))
        assert done["results"][0]["hash"] == hashlib.sha256(BODY).hexdigest()
        found = read(await client.call_tool("query", {"steps": [{"op": "list", "params": {"pattern": "stars.txt"}}]}))
        assert found["documents"][0]["size"] == len(BODY)
        values = [progress for progress, _ in seen]
        assert values
        assert values == sorted(values)

    as_client(kernel, "documents", talk)


async def test_a_download_in_flight_at_a_death_is_completed_by_the_next_generation(
    kernel: RunningKernel, site: str
) -> None:
    Site.asked.clear()
    async with connection(kernel.data_dir) as line, trio.open_nursery() as nursery:

        async def download() -> None:
            operations = [{"op": "download", "params": {"url": f"{site}/slow/stars.txt"}}]
            answer = await line.call("execute", {"operations": operations})
            assert answer.failure is None
            assert answer.result["succeeded"] == 1, answer.result

        nursery.start_soon(download)
        assert await trio.to_thread.run_sync(Site.asked.wait, 30)
        await trio.to_thread.run_sync(kernel.kill, "fetch", signal.SIGKILL)
        Site.going_on.set()
    found = kernel.call("query", {"steps": [{"op": "list", "params": {"path": f"{site}/slow/stars.txt"}}]})
    assert found["documents"][0]["hash"] == hashlib.sha256(BODY).hexdigest()
