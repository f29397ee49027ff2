"""The listing's cost for a model, and that listings are correct about accepted calls and returned answers.

Tokens are characters / 4 of the compact JSON; o200k_base, a large model's tokenizer, counts 2 % fewer of these lists.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import jsonschema
import msgspec
import pytest

from proto import ops
from proto.json_types import JsonObject
from proto.operation import REFERENCES, SURFACES, Operation, Role, detail
from proto.validation import json_schema
from services.front.surfaces import schemas
from services.front.surfaces.surface import Surface
from tests.unit.front.operations import TABLE
from tests.unit.front.wire import connected, gateway_in_process

LIMITS = {"core": (4_000, 4_000), "all": (16_000, 26_800), "compact": (1_000, 1_000)}
"""Tokens of a surface's list, without and with the schemas of results."""

TOOL_LIMIT, TOOL_WITH_RESULT_LIMIT, INSTRUCTIONS_LIMIT = 600, 1_200, 300


@pytest.fixture(scope="module")
def table() -> ops.Table:
    return ops.load()


def tokens(value: object) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False)) // 4


def bare(tool: JsonObject) -> JsonObject:
    return {key: value for key, value in tool.items() if key != "outputSchema"}


@pytest.mark.parametrize("surface", SURFACES)
def test_lists_and_tools_stay_within_their_token_budgets(surface: str, table: ops.Table) -> None:
    made = Surface(surface, table)
    listed = made.listed_tools
    whole, with_results = LIMITS.get(surface, LIMITS["all"])
    assert tokens({"tools": [bare(tool) for tool in listed]}) <= whole
    assert tokens({"tools": listed}) <= with_results
    too_long = {tool["name"]: tokens(tool) for tool in listed if tokens(bare(tool)) > TOOL_LIMIT}
    assert too_long == {}
    assert {tool["name"] for tool in listed if tokens(tool) > TOOL_WITH_RESULT_LIMIT} == set()
    assert 20 <= tokens(made.instructions) < INSTRUCTIONS_LIMIT


def test_results_are_listed_without_the_members_that_are_details() -> None:
    class Done(msgspec.Struct):
        done: int
        why: Annotated[str, detail("If it was not")] = ""

    assert schemas.result(msgspec.json.schema(Done)["$defs"]["Done"])["properties"] == {"done": {"type": "integer"}}


def test_explanations_are_left_out_only_if_redundant() -> None:
    described = {
        "sort_desc": {"type": "boolean", "description": "Whether to sort descending"},
        "kind": {"enum": ["file", "folder"], "description": "file or folder"},
        "offset": {"type": "integer", "description": "Entries to skip"},
        "name": {"type": "string", "description": "Name of a plan"},
        "depth": {"type": "integer", "description": "Levels to follow"},
        "offset_s": {"type": "number", "description": "Entries to skip"},
    }
    listed = schemas.parameters({"properties": described}, {}, description="Read a plan.", detailed=False)["properties"]
    assert [name for name, parameter in listed.items() if "description" in parameter] == ["depth", "offset_s"]


def test_details_are_shown_on_small_surfaces_and_by_describe(table: ops.Table) -> None:
    def of(surface: str) -> JsonObject:
        (tool,) = (tool for tool in Surface(surface, table).listed_tools if tool["name"] == "files_grep")
        properties: JsonObject = tool["inputSchema"]["properties"]
        return properties

    assert "description" not in of("all")["hidden"]
    assert (
        of("core")["hidden"]["description"] == table["files_grep"].input_schema["properties"]["hidden"]["description"]
    )


def test_a_long_explanation_appears_once_in_a_list() -> None:
    long, short = "As `server.host`, `items[0].name`, `labels`: a path of keys", "YAML file"
    tools: list[JsonObject] = [
        {"name": name, "inputSchema": {"properties": {"path": {"description": long}, "file": {"description": short}}}}
        for name in ("first", "second", "third")
    ]
    schemas.explain_once(tools)
    properties = [tool["inputSchema"]["properties"] for tool in tools]
    assert [each["path"]["description"] for each in properties] == [long, "As in first", "As in first"]
    assert {each["file"]["description"] for each in properties} == {short}


@pytest.mark.parametrize("surface", SURFACES)
def test_schemas_of_results_are_plain_for_clients_that_make_types_of_them(surface: str, table: ops.Table) -> None:
    for tool in Surface(surface, table).listed_tools:
        schema = tool.get("outputSchema", {"type": "object"})
        assert schema["type"] == "object"
        assert not {"$ref", "$defs", "discriminator"} & set(keys(schema)), tool["name"]


def keys(schema: Any) -> list[str]:
    """Every name in it, of schemas and of properties."""
    if isinstance(schema, dict):
        return [*schema, *(name for each in schema.values() for name in keys(each))]
    return [name for each in schema for name in keys(each)] if isinstance(schema, list) else []


def test_core_lists_few_tools_but_serves_all_by_name(table: ops.Table) -> None:
    core, whole = Surface("core", table), Surface("all", table)
    assert {
        "ops_query",
        "ops_execute",
        "documents_session",
        "everything_search",
        "notes_edit",
        "files_edit",
        "memory_add",
    } <= {t["name"] for t in core.listed_tools}
    assert 12 <= len(core.listed_tools) <= 20
    assert core.tools == whole.tools
    assert core.listed_templates == whole.listed_templates


def test_the_three_searches_differ_in_their_first_words(table: ops.Table) -> None:
    names = ("chats_search", "notes_search", "documents_search", "everything_search")
    first = {name: table[name].description.partition(":")[0] for name in names}
    assert list(first.values()) == ["Conversations", "Notes", "Documents", "Everything"]
    assert len({table[name].title for name in names}) == len(names)


@pytest.mark.parametrize("surface", ["transcripts", "all"])
def test_parameters_have_the_reference_s_names_on_its_surface_and_common_ones_elsewhere(
    surface: str, table: ops.Table
) -> None:
    shown = "search" if surface in REFERENCES else "chats_search"
    (search,) = [tool for tool in Surface(surface, table).listed_tools if tool["name"] == shown]
    name, other = ("top_k", "limit") if surface in REFERENCES else ("limit", "top_k")
    assert name in search["inputSchema"]["properties"]
    assert other not in search["inputSchema"]["properties"]
    for written in (name, other):
        op = table["chats_search"]
        assert op.parse({"query": "x", written: 3}) == op.parse({"query": "x", "top_k": 3})


def test_conversations_are_checked_out_and_deleted_where_they_are_searched(table: ops.Table) -> None:
    tools = {tool["name"] for tool in Surface("transcripts", table).listed_tools}
    assert tools == {"search", "transcript_checkout", "transcript_delete", "transcript_list"}


def clients(table: ops.Table) -> list[Operation[object]]:
    return [op for op in table.values() if op.admits("client") and op.role in (Role.TOOL, Role.STEP)]


def test_values_valid_for_the_full_schema_are_valid_for_the_listed_one(table: ops.Table) -> None:
    """Values are made from the whole schemas: of each choice one, with all members and with those required alone."""
    for op in clients(table):
        whole = json_schema(op.params)
        listed = jsonschema.Draft202012Validator(schemas.parameters(whole, {}, description="", detailed=False))
        for value in examples(whole, whole.get("$defs", {}), 0):
            # Lists have no nulls, which Gemini does not know; a required value may be null nevertheless.
            if all(value.get(name) is not None for name in whole.get("required", ())):
                listed.validate(given(value))
        if op.output_schema is not None:
            short = jsonschema.Draft202012Validator(schemas.result(op.output_schema))
            for value in examples(op.output_schema, op.output_schema.get("$defs", {}), 0):
                short.validate(value)


def given(value: Any) -> Any:
    """A parameter without the nulls, which stand for what is not given."""
    if isinstance(value, dict):
        return {key: given(each) for key, each in value.items() if each is not None}
    return [given(each) for each in value if each is not None] if isinstance(value, list) else value


def examples(schema: JsonObject, definitions: JsonObject, depth: int) -> list[Any]:
    if "$ref" in schema:
        return examples(definitions[schema["$ref"].rpartition("/")[2]], definitions, depth)
    if "anyOf" in schema:
        return [value for choice in schema["anyOf"] for value in examples(choice, definitions, depth)]
    if "enum" in schema or "const" in schema:
        return list(schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return [[], *([] if depth > 4 else [examples(schema.get("items", {}), definitions, depth + 1)])]
    if schema.get("type") == "object" and depth <= 4:
        members = {name: examples(each, definitions, depth + 1) for name, each in schema.get("properties", {}).items()}
        required = schema.get("required", [])
        longest = max(map(len, members.values()), default=0)
        every = [{name: values[n % len(values)] for name, values in members.items()} for n in range(longest)]
        return [{name: members[name][0] for name in required}, *every]
    made: dict[Any, list[Any]] = {
        "string": ["text" * 16], "integer": [max(schema.get("minimum", 1), 1)], "number": [0.5], "boolean": [True],
        "null": [None], "object": [{}], None: ["anything"],
    }  # fmt: skip
    return made[schema.get("type")]


@pytest.mark.parametrize("surface", ["all", "core"])
async def test_the_instructions_describe_the_surface(surface: str) -> None:
    async with gateway_in_process(TABLE) as (gateway, _), connected(gateway, surface) as wire:
        told = (await wire.initialize())["instructions"]
    assert told == Surface(surface, TABLE).instructions


def test_errors_use_json_type_names_and_both_names_of_a_parameter(table: ops.Table) -> None:
    with pytest.raises(Exception, match="expected `integer`, got `string`"):
        table["files_browse"].parse({"path": "/x", "limit": "many"})
    with pytest.raises(Exception, match=r"missing required parameter `path`"):
        table["files_index"].parse({})
    assert msgspec.to_builtins(table["files_index"].parse({"path": "/x"})) == msgspec.to_builtins(
        table["files_index"].parse({"root": "/x"})
    )
