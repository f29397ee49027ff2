"""Collections that clients create, through real clients over MCP and HTTP, with kills during upserts, and a restore."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import StdioServerParameters, stdio_client
from mcp.client import Client

from tests.system.access.tokens import HttpClient, create
from tests.system.running import HTTP, REPOSITORY, RunningKernel, connection, running, wait_until

SERVICES = ["retrieve"]
WRITERS, KILLS = 3, 3


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("collections")
    (folder / "root").mkdir()
    environment = {"LINCKIA_SERVICES__RETRIEVE__COLLECTION_DOCUMENTS": "2000"}
    with running(
        folder / "data", [folder / "root"], options=HTTP, services=SERVICES, environment=environment, token=True
    ) as started:
        yield started


@pytest.fixture(scope="module")
def own(kernel: RunningKernel) -> HttpClient:
    return HttpClient(kernel, kernel.status()["token"])


def ask(client: HttpClient, name: str, **params: Any) -> Any:
    """Over HTTP, without MCP."""
    answer = client.request("POST", f"/v1/collections/{name}", params)
    assert answer.status == 200, answer.text
    return answer.json


async def test_a_client_of_mcp_makes_fills_searches_and_drops_a_collection(kernel: RunningKernel) -> None:
    arguments = ["-P", "-m", "kernel.cli", "stdio", "--data", str(kernel.data_dir)]
    server = StdioServerParameters(command=sys.executable, args=arguments, cwd=REPOSITORY)
    async with Client(stdio_client(server)) as client:

        async def tool(name: str, **params: Any) -> Any:
            answer = await client.call_tool(f"collection_{name}", params)
            return answer.structured_content if not answer.is_error else answer.content[0].model_dump()["text"]

        assert (await tool("create", collection="mcp", dimensions=2))["dimensions"] == 2
        documents = [{"id": "east", "vector": [1, 0], "payload": {"kind": "side"}}, {"id": "north", "vector": [0, 1]}]
        assert (await tool("upsert", collection="mcp", documents=documents))["documents"] == 2
        found = await tool("search", collection="mcp", vector=[3, 1])
        assert [hit["id"] for hit in found["hits"]] == ["east", "north"]
        side = [{"field": "kind", "any_of": ["side"]}]
        assert (await tool("count", collection="mcp", filters=side))["documents"] == 1
        assert "documents[0].vector" in await tool("upsert", collection="mcp", documents=[{"id": "x", "vector": [1]}])
        assert "documents[0].txt" in await tool("upsert", collection="mcp", documents=[{"id": "x", "txt": "y"}])
        assert [each["collection"] for each in (await tool("list"))["collections"]] == ["mcp"]
        assert (await tool("delete", collection="mcp", ids=["east"]))["documents"] == 1
        assert (await tool("drop", collection="mcp"))["dropped"]


def test_read_only_tokens_and_tokens_with_roots_are_limited_accordingly(kernel: RunningKernel, own: HttpClient) -> None:
    ask(own, "create", collection="shared")
    ask(own, "upsert", collection="shared", documents=[{"id": "a", "text": "red apples"}])
    reader = HttpClient(kernel, create(kernel, "reader", "--read-only"))
    assert [hit["id"] for hit in ask(reader, "search", collection="shared", query="apples")["hits"]] == ["a"]
    for name, params in (
        ("upsert", {"documents": [{"id": "b", "text": "x"}]}),
        ("delete", {"ids": ["a"]}),
        ("drop", {}),
    ):
        answer = reader.request("POST", f"/v1/collections/{name}", {"collection": "shared", **params})
        assert (answer.status, "may only read" in answer.text) == (403, True)
    # A collection may contain text from anywhere.
    rooted = HttpClient(kernel, create(kernel, "rooted", "--root", str(kernel.data_dir.parent / "root")))
    answer = rooted.request("POST", "/v1/collections/search", {"collection": "shared", "query": "apples"})
    assert (answer.status, "is limited to" in answer.text) == (403, True)
    assert ask(own, "count", collection="shared")["documents"] == 1


def test_bad_input_over_http_names_the_field_and_changes_nothing(own: HttpClient) -> None:
    ask(own, "create", collection="strict")
    for name, params, said in (
        ("upsert", {"documents": []}, "documents"),
        ("upsert", {"documents": [{"id": "a", "text": "x", "payload": {"deep": {"er": 1}}}]}, "documents[0].payload"),
        ("upsert", {"documents": [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]}, "documents[1].id"),
        ("upsert", {"documents": [{"id": str(n), "text": "x"} for n in range(1001)]}, "documents"),
        ("search", {"query": "  "}, "query"),
        ("create", {"collection": "../etc"}, "collection"),
        ("create", {"collection": "vast", "dimensions": 0}, "dimensions"),
    ):
        answer = own.request("POST", f"/v1/collections/{name}", {"collection": "strict", **params})
        assert (answer.status, said in answer.text) == (400, True), answer.text
    assert ask(own, "count", collection="strict")["documents"] == 0


def test_no_acknowledged_upsert_is_lost_whatever_kills_the_service(kernel: RunningKernel, own: HttpClient) -> None:
    ask(own, "create", collection="ledger", dimensions=4)
    acknowledged: dict[str, str] = {}

    async def write(which: int, stop: trio.Event) -> None:
        async with connection(kernel.data_dir) as client:
            n = 0
            while not stop.is_set():
                # The second round replaces the documents of the first.
                ids = [f"{which}-{n % 150}-{part}" for part in range(3)]
                text = f"edition {n // 150} of batch {n}"
                documents = [{"id": id_, "text": text, "vector": [n % 7 + 1, 1, 1, 1]} for id_ in ids]
                answer = await client.call("collections_upsert", {"collection": "ledger", "documents": documents})
                assert answer.failure is None, answer.failure
                acknowledged.update(dict.fromkeys(ids, text))
                n += 1

    async def torment() -> None:
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            for which in range(WRITERS):
                nursery.start_soon(write, which, stop)
            for _ in range(KILLS):
                before = len(acknowledged)
                while len(acknowledged) <= before + 30 and before < 900:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                await trio.to_thread.run_sync(kernel.kill, "retrieve")
                await trio.to_thread.run_sync(kernel.wait_ready, "retrieve")
            stop.set()

    trio.run(torment)
    stored: dict[str, str] = {}
    more = True
    while more:
        page = ask(own, "documents", collection="ledger", after=max(stored, default=""), limit=1000)
        stored |= {each["id"]: each["text"] for each in page["documents"]}
        more = page["more"]
    assert {id_: stored.get(id_) for id_ in acknowledged} == acknowledged
    # Batches are whole, and nothing counts twice.
    assert len(stored) % 3 == 0
    assert ask(own, "count", collection="ledger")["documents"] == len(stored)
    found = ask(own, "search", collection="ledger", vector=[1, 1, 1, 1], limit=1000)
    assert {hit["id"] for hit in found["hits"]} <= set(stored)
    assert len(found["hits"]) == min(1000, len(stored))


def test_a_restored_backup_has_clients_collections(kernel: RunningKernel, own: HttpClient, tmp_path: Path) -> None:
    ask(own, "create", collection="kept", dimensions=2)
    document = {"id": "a", "text": "red apples", "vector": [1, 0], "payload": {"colour": "red"}}
    ask(own, "upsert", collection="kept", documents=[document])
    for arguments in (
        ("backup", tmp_path / "to", "--data", kernel.data_dir),
        ("restore", tmp_path / "to", "--data", tmp_path / "again"),
    ):
        command = [sys.executable, "-m", "kernel.cli", *map(str, arguments)]
        ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
    with running(tmp_path / "again", services=SERVICES) as restored:
        wait_until(lambda: "kept" in restored.service("retrieve")["info"].get("collections of clients", ""))
        found = restored.call("collections_search", {"collection": "kept", "vector": [1, 0]})
        (hit,) = found["hits"]
        assert (hit["id"], hit["text"], hit["payload"]) == ("a", "red apples", {"colour": "red"})
        assert round(hit["similarity"], 3) == 1
