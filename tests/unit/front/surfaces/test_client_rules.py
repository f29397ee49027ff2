"""Every list of tools is of the form that Anthropic, OpenAI, Gemini, VS Code and the MCP Inspector take, over the wire
and in every revision of the protocol; and the calls that the listed schemas no longer rule out are refused here."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kernel import VERSION
from proto import ops
from proto.errors import InvalidParams
from proto.mcp import HANDSHAKE_VERSIONS, MODERN_VERSIONS
from proto.operation import SURFACES
from services.front.gateway import open_gateway
from tests.unit.front.inprocess import InProcess
from tests.unit.front.surfaces.client_rules import RULES, broken
from tests.unit.front.wire import META, connected

TABLE = ops.load()


async def listed(surface: str, revision: str) -> list[dict[str, Any]]:
    dispatcher = InProcess()
    opened = open_gateway(TABLE, dispatcher, dispatcher, version=VERSION)
    async with opened as gateway, connected(gateway, surface) as wire:
        modern = revision in MODERN_VERSIONS
        await (wire.open_modern() if modern else wire.initialize(revision))
        params = {"_meta": META} if modern else {}
        await wire.send({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params})
        tools: list[dict[str, Any]] = (await wire.receive())["result"]["tools"]
        return tools


@pytest.mark.parametrize("revision", [*HANDSHAKE_VERSIONS, *MODERN_VERSIONS])
@pytest.mark.parametrize("surface", SURFACES)
async def test_every_client_takes_every_list(surface: str, revision: str) -> None:
    tools = await listed(surface, revision)
    assert tools
    assert broken(tools) == []
    assert [tool["name"] for tool in tools if not tool["title"].strip()] == []


def _tool(name: str = "t", **parameter: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": "A tool.",
        "inputSchema": {"type": "object", "properties": {"p": parameter}},
    }


ROOT = {"type": "object", "properties": {}}

BAD: list[tuple[dict[str, Any], str]] = [
    (_tool("mcp.echo", type="string"), "anthropic_names"),
    (_tool("n" * 65, type="string"), "openai_names_and_descriptions"),
    (_tool("0", type="string"), "gemini_names"),
    ({**_tool(), "inputSchema": {**ROOT, "anyOf": [{"required": ["a"]}]}}, "anthropic_combines_nothing_at_the_root"),
    ({**_tool(), "inputSchema": {**ROOT, "not": {"required": ["a"]}}}, "openai_root_is_a_plain_object"),
    ({**_tool(), "inputSchema": {**ROOT, "if": {}}}, "vscode_changes_nothing_at_the_root"),
    ({**_tool(), "inputSchema": {"type": "object", "properties": {"a[]": {"type": "string"}}}},
     "anthropic_names_of_parameters"),
    ({**_tool(), "inputSchema": {**ROOT, "required": ["a"]}}, "gemini_requires_what_is_there"),
    ({**_tool(), "description": "d" * 1025}, "openai_names_and_descriptions"),
    (_tool(type="array"), "vscode_arrays_have_items"),
    (_tool(type="array", items={"type": "array"}), "openai_arrays_have_items"),
    (_tool(type="array", prefixItems=[{"type": "string"}]), "gemini_arrays_have_items"),
    (_tool(type=["string", "null"]), "gemini_has_one_type"),
    (_tool(type=["string", "number"]), "inspector_has_no_warning"),
    (_tool(enum=["a"]), "gemini_has_one_type"),
    (_tool(type="integer", enum=[1]), "gemini_lists_strings"),
    (_tool(type="string", const="a"), "gemini_knows_every_keyword"),
    (_tool(type="string", format="uri"), "gemini_formats"),
    (_tool(anyOf=[{"type": "string"}], description="d"), "gemini_choices_stand_alone"),
    (_tool(type="striing"), "vscode_reads_json_schema"),
    ({**_tool(type="string"), "outputSchema": {"type": "object", "properties": {"a": {}}}}, "inspector_has_no_warning"),
    ({**_tool(type="string"), "outputSchema": {"type": "object", "properties": {"a": {"type": ["null", "array"]}}}},
     "inspector_has_no_warning"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "rule"), BAD)
def test_each_rule_finds_its_violations(tool: dict[str, Any], rule: str) -> None:
    assert rule in {found.partition(":")[0] for found in broken([tool])}


def test_there_is_a_bad_tool_for_each_rule_and_its_source_is_named() -> None:
    assert {rule for _, rule in BAD} == {rule.__name__ for rule in RULES}
    assert all(re.search(r"https://\S+", rule.__doc__ or "") for rule in RULES)


@pytest.mark.parametrize(
    ("name", "arguments", "fields"),
    [
        ("notes_edit", {"append": "x"}, ("path", "id")),
        ("notes_edit", {"path": "a.md", "id": "a", "append": "x"}, ("path", "id")),
        ("notes_edit", {"path": None, "id": None, "append": "x"}, ("path", "id")),
        ("notes_rename", {"to": "b.md"}, ("path", "id")),
        ("notes_rename", {"to": "b.md", "path": "", "id": ""}, ("path", "id")),
        ("memory_update", {"id": "m1"}, ("text", "tags", "expires")),
        ("memory_update", {"id": "m1", "text": None}, ("text", "tags", "expires")),
        ("memory_forget", {}, ("id", "scope")),
        ("collections_search", {"collection": "c"}, ("query", "vector")),
        ("collections_search", {"collection": "c", "query": None}, ("query", "vector")),
        ("collections_delete", {"collection": "c"}, ("ids", "filters")),
        ("collections_delete", {"collection": "c", "ids": None, "filters": []}, ("ids", "filters")),
    ],
)
def test_the_need_for_one_of_several_parameters_is_described_and_checked(
    name: str, arguments: dict[str, Any], fields: tuple[str, ...]
) -> None:
    operation = TABLE[name]
    with pytest.raises(InvalidParams) as caught:
        operation.parse(arguments)
    assert all(f"`{field}`" in str(caught.value) for field in fields)
    assert caught.value.failure.field in fields
    assert all(f"`{field}`" in operation.description for field in fields)
