"""Mounted tools, prompts and resources beside Linckia's own: names, lists, steps, and bounded answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proto.mounts import Mount, MountRequest, operations_of
from services.front.mounted.schemas import accepted
from services.front.mounted.tools import shortened
from tests.unit.front.mounted.rig import mounted_gateway, offered
from tests.unit.front.mounted.test_own_surface import ask, repeat
from tests.unit.front.surfaces.client_rules import broken
from tests.unit.front.wire import META, connected

READ = {"readOnlyHint": True}
TOOLS = offered(
    tools=[
        {"name": "look", "description": "Look at a star.", "inputSchema": {"type": "object"}, "annotations": READ},
        {"name": "paint", "description": "Paint a star.", "inputSchema": {"type": "object"}},
    ],
    prompts=[{"name": "greet", "arguments": [{"name": "who"}]}],
    resources=[{"uri": "star:1", "name": "one"}],
    templates=[{"uriTemplate": "star:{id}", "name": "any"}],
)


async def test_tools_are_listed_under_the_name_of_their_server() -> None:
    async with mounted_gateway(repeat, sky=TOOLS) as (gateway, _), connected(gateway, "all") as wire:
        await wire.initialize()
        tools = (await ask(wire, "tools/list"))["result"]["tools"]
        mine = [tool for tool in tools if tool["name"].startswith("sky_")]
        assert [tool["name"] for tool in mine] == ["sky_look", "sky_paint"]
        assert broken(mine) == []
        await wire.call("sky_look", {"at": 1})
        result = (await wire.receive())["result"]
        assert result["params"] == {"name": "look", "arguments": {"at": 1}}


@pytest.mark.parametrize("surface", ["core", "compact"])
async def test_other_surfaces_find_them_as_steps(surface: str) -> None:
    async with mounted_gateway(repeat, sky=TOOLS) as (gateway, mounts), connected(gateway, surface) as wire:
        await wire.initialize()
        tools = (await ask(wire, "tools/list"))["result"]["tools"]
        assert not [tool for tool in tools if tool["name"].startswith("sky_")]
        await wire.call("query", {"steps": [{"op": "describe", "params": {"words": "look at a star"}}]})
        found = json.loads((await wire.receive())["result"]["content"][0]["text"])
        assert found["ops"][0] == {"op": "sky_look", "in": "ops_query", "about": "Look at a star"}
        await wire.call("query", {"steps": [{"op": "sky_look", "params": {"at": 2}}]})
        result = (await wire.receive())["result"]
        assert result["content"] == [{"type": "text", "text": "read"}]
        assert not result["isError"]
        await wire.call("query", {"steps": [{"op": "sky_paint"}]})
        assert "`ops_execute`" in (await wire.receive())["result"]["content"][0]["text"]
        await wire.call("execute", {"operations": [{"op": "sky_paint", "params": {"colour": "red"}}]})
        result = (await wire.receive())["result"]
        assert json.loads(result["content"][0]["text"])["succeeded"] == 1
        assert [request.name for _, request in mounts.requests] == ["look", "paint"]


async def test_long_answers_are_cut_on_core_and_whole_on_all_and_on_the_servers_own_surface() -> None:
    text = "star " * 20_000

    async def serve(kind: str, request: MountRequest, params: dict[str, Any]) -> Any:
        image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
        return {"content": [{"type": "text", "text": text}, image], "structuredContent": {"text": text}}

    async with mounted_gateway(serve, sky=TOOLS) as (gateway, _):
        for surface, name, is_whole in (("core", "sky_look", False), ("all", "sky_look", True), ("sky", "look", True)):
            async with connected(gateway, surface) as wire:
                await wire.initialize()
                await wire.call(name)
                result = (await wire.receive())["result"]
                assert (result["content"][0]["text"] == text) is is_whole
                assert len(result["content"][0]["text"]) < 10_000 or is_whole
                assert result["content"][1]["type"] == "image"


@pytest.mark.parametrize(
    "result",
    [{"resultType": "later", "content": 1}, {"structuredContent": [1] * 9_000}, {"content": [], "_meta": None}],
    ids=",".join,
)
async def test_results_of_newer_revisions_pass_on_surfaces_with_bounded_answers(result: dict[str, Any]) -> None:
    async def serve(kind: str, request: MountRequest, params: dict[str, Any]) -> Any:
        return result

    async with mounted_gateway(serve, sky=TOOLS) as (gateway, _), connected(gateway, "core") as wire:
        await wire.initialize()
        await wire.call("sky_look")
        answer = (await wire.receive())["result"]
        assert answer.get("content") == result.get("content") or "structuredContent" in result


async def test_prompts_and_resources_have_names_of_their_own() -> None:
    async with mounted_gateway(repeat, sky=TOOLS) as (gateway, mounts), connected(gateway, "all") as wire:
        await wire.initialize()
        prompts = (await ask(wire, "prompts/list"))["result"]["prompts"]
        assert {"name": "sky_greet", "arguments": [{"name": "who"}]} in prompts
        resources = (await ask(wire, "resources/list"))["result"]["resources"]
        assert {"uri": "linckia://mcp/sky/star:1", "name": "one"} in resources
        templates = (await ask(wire, "resources/templates/list"))["result"]["resourceTemplates"]
        assert {"uriTemplate": "linckia://mcp/sky/star:{id}", "name": "any"} in templates
        await ask(wire, "prompts/get", {"name": "sky_greet", "arguments": {"who": "you"}})
        await ask(wire, "resources/read", {"uri": "linckia://mcp/sky/star:7"})
        ref = {"type": "ref/resource", "uri": "linckia://mcp/sky/star:{id}"}
        await ask(wire, "completion/complete", {"ref": ref, "argument": {"name": "id", "value": "1"}})
        passed = [json.loads(request.params) for _, request in mounts.requests]
        assert passed[0] == {"name": "greet", "arguments": {"who": "you"}}
        assert passed[1] == {"uri": "star:7"}
        assert passed[2]["ref"] == {"type": "ref/resource", "uri": "star:{id}"}


async def test_the_lists_of_surface_all_follow_the_mounts() -> None:
    async with mounted_gateway(repeat) as (gateway, mounts), connected(gateway, "all") as wire:
        await wire.initialize()
        before = (await ask(wire, "tools/list"))["result"]["tools"]
        mounts.mount(Mount(name="sky"), TOOLS)
        assert (await wire.receive())["method"] == "notifications/tools/list_changed"
        for _ in range(2):
            await wire.receive()
        assert len((await ask(wire, "tools/list"))["result"]["tools"]) == len(before) + 2
        mounts.unmount("sky")
        for _ in range(3):
            await wire.receive()
        assert (await ask(wire, "tools/list"))["result"]["tools"] == before


async def test_a_question_of_a_legacy_server_reaches_a_client_of_2026_as_a_result() -> None:
    from proto.errors import Cancelled

    async def serve(kind: str, request: MountRequest, params: dict[str, Any]) -> Any:
        if request.answers:
            return {"content": [], "answers": json.loads(request.answers)}
        raise Cancelled("asks first")

    async with mounted_gateway(serve, sky=TOOLS) as (gateway, mounts), connected(gateway, "sky") as wire:
        whole = mounts.call

        async def call(operation: Any, params: Any, **options: Any) -> object:
            if isinstance(params, MountRequest) and not params.answers:
                question = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}
                await options["client_requests"].ask("linckia/inputs", {"inputs": {"token": question}})
            return await whole(operation, params, **options)

        gateway.served("sky").dispatcher = type("D", (), {"call": staticmethod(call)})()
        await wire.open_modern()
        meta = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
        await wire.call("look", {}, meta=meta)
        asked = (await wire.receive())["result"]
        assert asked["resultType"] == "input_required"
        assert asked["inputRequests"]["token"]["method"] == "elicitation/create"
        again = {
            "name": "look",
            "inputResponses": {"token": {"action": "decline"}},
            "requestState": asked["requestState"],
            "_meta": meta,
        }
        assert (await ask(wire, "tools/call", again))["result"]["answers"] == {"token": {"action": "decline"}}


def test_names_fit_every_client() -> None:
    long = "x" * 80
    assert shortened("a_b-c") == "a_b-c"
    assert len(shortened(long)) == 64
    assert shortened(long) != shortened(long + "y")
    assert shortened("a.b") != shortened("a b")


ODD = [
    None,
    True,
    {},
    {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": {}, "c": {"type": "array"}}},
    {"type": "object", "anyOf": [{"required": ["a"]}, {"properties": {"b": {"type": "integer"}}}]},
    {"$ref": "#/$defs/T", "$defs": {"T": {"type": "object", "properties": {"t": {"$ref": "#/$defs/T"}}}}},
    {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "d"}}},
    {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"enum": ["x", None]}, "c": {"const": "k"}}},
    {"type": "object", "properties": {"a": {"oneOf": [{"const": "x"}, {"type": "number"}], "default": 1}}},
    {"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}, {"type": "number"}]}}},
    {"properties": {"a": {"allOf": [{"$ref": "#/definitions/D"}]}}, "definitions": {"D": {"type": "string"}}},
    {"properties": {"a": {"type": "object", "additionalProperties": {"type": "string"}}}, "required": ["a", "zz"]},
]  # fmt: skip


@pytest.mark.parametrize("schema", ODD, ids=range(len(ODD)))
def test_any_schema_becomes_one_that_all_clients_accept(schema: Any) -> None:
    tool = {"name": "t", "description": "A tool.", "inputSchema": accepted(schema)}
    assert broken([tool]) == []


def test_operations_of_mounts_have_names_that_no_tool_has() -> None:
    assert [op.name for op in operations_of("a-b").values()] == ["mcp_a_b.read", "mcp_a_b.repeat", "mcp_a_b.change"]
