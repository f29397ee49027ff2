"""What an agent meets over stdio, as the README sets it up: few tools that reach everything, answers that are bounded
and can be read to their end, answers that fit the schemas listed for them, names completed while they are typed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
from mcp import StdioServerParameters, stdio_client
from mcp.client import Client
from mcp_types import PromptReference, ResourceTemplateReference

from tests.system.access.test_reach import until_notes
from tests.system.running import RunningKernel, running

SERVICES = ("files", "compare", "watch", "documents", "knowledge", "retrieve", "graph", "yaml", "echo", "transcripts")
LINES = 4000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("root")
    long = "".join(f"line {n} of the long note\n\n" for n in range(LINES // 2))
    (made / "long-note.md").write_text(f"# Long\n{long}## Last part\nthe end of it\n")
    (made / "other.md").write_text("# Other\nSee [[long-note]].\n")
    (made / "a.yaml").write_text("server:\n  port: 1\n")
    return made


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[RunningKernel]:
    with running(tmp_path_factory.mktemp("data"), [root], services=SERVICES) as started:
        until_notes(started, 2)
        yield started


def over_stdio(kernel: RunningKernel, *options: str) -> Any:
    arguments = ["-P", "-m", "kernel.cli", "stdio", "--data", str(kernel.data_dir), *options]
    return stdio_client(StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ)))


async def answer(client: Client, tool: str, /, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def step(client: Client, op: str, /, **params: Any) -> Any:
    return await answer(client, "ops_query", steps=[{"op": op, "params": params}])


def test_hits_of_a_search_of_everything_can_be_read_by_their_references(kernel: RunningKernel, root: Path) -> None:
    (root / "stored.txt").write_text("nothing\n\nThe quetzal nests in June.\n")
    (root / "written.md").write_text("# Birds\n\nThe quetzal eats avocados.\n")

    async def main() -> None:
        async with Client(over_stdio(kernel)) as client:
            add = [{"op": "add", "params": {"path": str(root / "stored.txt")}}]
            assert (await answer(client, "ops_execute", operations=add))["failed"] == 0
            with anyio.fail_after(30):
                while True:
                    found = await answer(client, "everything_search", query="quetzal")
                    hits = {hit["corpus"]: hit for hit in found["results"]}
                    if {"documents", "notes"} <= set(hits):
                        break
            document, note = hits["documents"], hits["notes"]
            assert document["metadata"] == {"path": str(root / "stored.txt")}
            (hit,) = (await step(client, "search", query="quetzal"))["results"]
            assert (document["id"], document["lines"]) == (hit["hash"], "1-3")
            read = await step(client, "get", hash=document["id"], include_content=True)
            assert "nests in June" in read["content"]
            read = await answer(client, "notes_read", id=note["id"], lines=note["lines"])
            assert "eats avocados" in json.dumps(read)
            assert note["metadata"]["path"] == "written.md"

    anyio.run(main)


def test_few_tools_are_listed_and_all_can_be_called(kernel: RunningKernel, root: Path) -> None:
    async def main() -> None:
        async with Client(over_stdio(kernel)) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert {"everything_search", "notes_write", "ops_execute"} <= tools
            assert len(tools) <= 16
            assert "files_duplicates" not in tools
            # Found by words, called by name or as a step, under the common name of a parameter.
            found = await step(client, "ops_describe", words="which files are duplicates of one another")
            assert "files_duplicates" in [each["op"] for each in found["ops"][:3]]
            await answer(client, "files_index", path=str(root), **{"async": False})
            assert (await answer(client, "files_duplicates", path=str(root)))["groups"] == []
            assert "groups" in await step(client, "files_duplicates", path=str(root))

    anyio.run(main)


def test_a_long_note_is_read_to_its_end_through_query_in_bounded_answers(kernel: RunningKernel, root: Path) -> None:
    async def main() -> None:
        async with Client(over_stdio(kernel)) as client:
            read, lines = "", ""
            while True:
                part = await step(client, "notes_read", id="long-note", **({"lines": lines} if lines else {}))
                assert len(json.dumps(part, ensure_ascii=False)) < 10_000
                read += part["text"]
                if "more" not in part:
                    break
                lines = part["more"]["go_on"]["lines"]
            assert read == (root / "long-note.md").read_text()
            section = await answer(client, "notes_read", id="long-note", section="Last part")
            assert section["text"] == "## Last part\nthe end of it\n"
            wide = await answer(
                client, "ops_query", steps=[{"op": "notes_read", "params": {"id": "long-note"}}], max_tokens=100_000
            )
            assert wide["text"] == read

    anyio.run(main)


def test_answers_fit_the_schemas_that_are_listed_for_them(kernel: RunningKernel, root: Path) -> None:
    """As clients check them, which refuse what does not fit."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("files_index", {"root": str(root), "async": False, "force": True}),
        ("files_browse", {"path": str(root)}), ("files_inspect", {"path": str(root / "a.yaml")}), ("jobs_list", {}),
        ("sets_create", {"name": "some"}),
        ("sets_modify", {"name": "some", "operation": "add", "paths": [str(root / "a.yaml")]}),
        ("sets_search", {"name": "some"}), ("sets_list", {}),
        ("sets_sum", {"name": "some", "metric": "size"}),
        ("plans_create", {"name": "tidy", "sources": [{"type": "filesystem.index", "config": {"path": str(root)}}],
                         "conditions": {"type": "all", "conditions": [{"type": "size", "minSize": 1}]},
                         "outcomes": [{"type": "selection_set", "selectionSetName": "some"}]}),
        ("plans_list", {}), ("plans_get", {"name": "tidy"}), ("plans_update", {"name": "tidy", "status": "paused"}),
        ("queries_create", {"name": "big", "query": {"min_size": 1}}), ("queries_list", {}),
        ("queries_execute", {"name": "big"}),
        ("sources_create", {"name": "s", "type": "manual", "path": str(root)}), ("sources_list", {}),
        ("trash_list", {}),
        ("files_delete", {"paths": [str(root / "never")]}), ("preferences_get", {}), ("disk_free", {}),
        ("disk_summary", {"path": str(root)}), ("disk_top_folders", {"path": str(root)}), ("kernel_status", {}),
        ("notes_search", {"query": "long note"}), ("notes_read", {"id": "other"}),
        ("notes_read", {"id": "long-note"}), ("notes_links", {"id": "other"}), ("graph_stats", {}),
        ("scratchpad_list", {}), ("notes_tree", {}), ("chats_search", {"query": "anything"}),
        ("everything_search", {"query": "note"}), ("yaml_get", {"file": str(root / "a.yaml"), "path": "server"}),
        ("yaml_validate", {"file": str(root / "a.yaml"), "schema": {"type": "object"}}), ("mcp_echo", {"message": "x"}),
    ]  # fmt: skip

    async def main() -> None:
        async with Client(over_stdio(kernel, "--surface", "all")) as client:
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            for name, arguments in calls:
                jsonschema.Draft202012Validator(listed[name].input_schema).validate(
                    {("path" if key == "root" else key): value for key, value in arguments.items()}
                )
                schema = listed[name].output_schema
                assert schema is not None, name
                jsonschema.Draft202012Validator(schema).validate(await answer(client, name, **arguments))

    anyio.run(main)


def test_names_of_sets_plans_notes_and_documents_are_completed(kernel: RunningKernel) -> None:
    async def main() -> None:
        async with Client(over_stdio(kernel)) as client:
            await answer(client, "sets_create", name="holiday photos")
            plan = {"type": "query", "config": {"query": {"kind": "file"}}}
            await answer(client, "plans_create", name="holiday plan", sources=[plan])
            add = {"op": "add", "params": {"content": "text", "name": "holiday diary.txt"}}
            await answer(client, "ops_execute", operations=[add])
            for ref, argument, typed, expected in (
                (ResourceTemplateReference(uri="synthesis://resource-sets/{name}"), "name", "PHOTO", "holiday photos"),
                (ResourceTemplateReference(uri="synthesis://plans/{name}"), "name", "hol", "holiday plan"),
                (ResourceTemplateReference(uri="amalfa://notes/{id}"), "id", "long", "long-note"),
                (PromptReference(name="summarize_document"), "document_name", "diary", "holiday diary.txt"),
            ):
                completed = await client.complete(ref, {"name": argument, "value": typed})
                assert completed.completion.values == [expected]
            note = await client.read_resource("amalfa://notes/other")
            assert "See [[long-note]]" in str(note.contents)
            # Parameters that clients of other systems send are accepted.
            assert "documents" in await step(client, "list", use_session=True)

    anyio.run(main)


def test_errors_for_missing_names_suggest_similar_ones(kernel: RunningKernel, root: Path) -> None:
    async def main() -> None:
        async with Client(over_stdio(kernel)) as client:
            await answer(client, "sets_create", name="winter pictures")
            for name, arguments, said in (
                ("notes_read", {"id": "long-not"}, "Node not found. Did you mean long-note?"),
                ("sets_get", {"name": "winter picture"}, "did you mean winter pictures?"),
                ("files_browse", {"path": "/etc"}, "outside the roots"),
                ("files_browse", {"path": 5}, "expected `string`, got `integer`"),
            ):
                result = await client.call_tool(name, arguments)
                assert result.is_error
                assert said in str(result.content[0])
            grepped = await step(client, "grep", pattern="x", paths=[str(root / "never-added")])
            assert "no document is stored at or below" in grepped["degraded"][0]

    anyio.run(main)
