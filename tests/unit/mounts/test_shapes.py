"""Results that MCP does not allow: the call fails at once and says why, and nothing else does."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from msgspec import Raw

from proto.mounts import READ
from services.mounts.offers import shapes
from services.mounts.offers.canonical import checked
from tests.unit.mounts.kernel import Adapter, adapter
from tests.unit.mounts.test_http import free_port, server, url

SERVER = Path(__file__).with_name("hostile_server.py")


@contextlib.asynccontextmanager
async def hostile(folder: Path, link: str = "stdio", **offers: Any) -> AsyncIterator[Adapter]:
    """An adapter of the hostile server, by this link."""
    variables = {"OFFERS": json.dumps({name.replace("_", "/"): each for name, each in offers.items()})}
    if link == "stdio":
        async with adapter(folder, command=sys.executable, args=[str(SERVER)], env=variables, timeout=20) as running:
            yield running
    else:
        port = free_port()
        async with (
            server("http", port, script=SERVER, **variables),
            adapter(folder, url=url(port), timeout=20) as running,
        ):
            yield running


TEXT = {"type": "text", "text": "here"}

DISALLOWED: list[tuple[str, Any, str]] = [
    ("tools/call", {}, "`result.content` is missing"),
    ("tools/call", {"content": None}, "`result.content`: expected `array`"),
    ("tools/call", {"content": {"type": "text"}}, "`result.content`: expected `array`"),
    ("tools/call", {"content": ["text"]}, "`result.content[0]`: expected `object`"),
    ("tools/call", {"content": [TEXT, {"text": "x"}]}, "`result.content[1]`: object missing required field `type`"),
    ("tools/call", {"content": [{"type": "text"}]}, "`result.content[0].text` is missing"),
    ("tools/call", {"content": [{"type": "text", "text": 1}]}, "`result.content[0].text` must be a text"),
    ("tools/call", {"content": [{"type": "image", "data": ""}]}, "`result.content[0].mimeType` is missing"),
    ("tools/call", {"content": [{"type": "resource", "resource": []}]}, "`result.content[0].resource`: expected"),
    ("tools/call", {"content": [{"type": "resource", "resource": {"uri": "a:b"}}]}, "`text` or `blob`"),
    ("tools/call", {"content": [TEXT], "isError": "no"}, "`result.isError`: expected `bool"),
    ("tools/call", {"content": [TEXT], "structuredContent": [1]}, "`result.structuredContent`: expected an object"),
    ("tools/call", {"content": [TEXT], "_meta": 1}, "`result._meta`: expected `object"),
    ("prompts/get", {"messages": {}}, "`result.messages`: expected `array`"),
    ("prompts/get", {"messages": [{"content": TEXT}]}, "`result.messages[0]`: object missing required field `role`"),
    ("prompts/get", {"messages": [{"role": "user", "content": "x"}]}, "`result.messages[0].content`: expected"),
    ("prompts/get", {"messages": [{"role": "user", "content": {"type": "text"}}]}, "`result.messages[0].content.text`"),
    ("resources/read", {"contents": [{"text": "x"}]}, "`result.contents[0]`: object missing required field `uri`"),
    ("resources/read", {"contents": [{"uri": "a:b", "text": 1}]}, "`result.contents[0]` must have a text"),
    ("completion/complete", {"completion": {"values": [1]}}, "`result.completion.values[0]`: expected `str`"),
    ("completion/complete", {"completion": []}, "`result.completion`: expected `object`"),
    ("tools/list", {"tools": {}}, "`result.tools`: expected `array`"),
    ("tools/list", {"tools": [], "nextCursor": 1}, "`result.nextCursor`: expected `str"),
    ("ping", {"_meta": 1}, "`result._meta`: expected `object"),
]

ALLOWED: list[tuple[str, Any]] = [
    ("tools/call", {"content": []}),
    ("tools/call", {"content": [{"type": "hologram", "text": 1, "new": [1]}], "new": {"a": 1}}),
    ("tools/call", {"content": [{**TEXT, "annotations": None}], "isError": None, "structuredContent": None}),
    ("tools/call", {"structuredContent": {"a": 1}}),
    ("tools/call", {"content": [{"type": "resource", "resource": {"uri": "a:b", "blob": "eA==", "new": 1}}]}),
    ("tools/call", {"resultType": "later", "content": 1}),
    ("prompts/get", {"messages": [{"role": "narrator", "content": {"type": "hologram"}}], "description": None}),
    ("resources/read", {"contents": [{"uri": "a:b", "text": ""}]}),
    ("completion/complete", {"completion": {"values": ["a"], "total": 1}}),
    ("tools/list", {"tools": [], "nextCursor": None}),
    ("ping", {}),
]


@pytest.mark.parametrize("link", ["stdio", "http"])
async def test_results_that_mcp_does_not_allow_are_errors_and_all_others_arrive_unchanged(
    tmp_path: Path, link: str
) -> None:
    async with hostile(tmp_path, link) as running:
        for method, result, problem in DISALLOWED:
            said = f'"result": {json.dumps(result)}'
            with trio.fail_after(10):
                reply = await running.call(method, {"reply": said}, kind=READ)
            assert isinstance(reply.error, Raw), (method, result)
            error = msgspec.json.decode(reply.error)
            assert error["code"] == -32603
            assert error["message"].startswith(f"the server test answered {method} in a way that MCP does not allow: ")
            assert problem in error["message"]
            assert ("may have done" in error["message"]) is (method == "tools/call")
        for method, result in ALLOWED:
            assert await running.result(method, {"reply": f'"result": {json.dumps(result)}'}, kind=READ) == result
        assert running.failure is None


async def test_a_disallowed_result_says_the_field_and_what_would_be_right(tmp_path: Path) -> None:
    async with hostile(tmp_path) as running:
        reply = await running.call("tools/call", {"name": "a", "reply": '"result": {"content": [1]}'})
        assert isinstance(reply.error, Raw)
        assert msgspec.json.decode(reply.error)["message"] == (
            "the server test answered tools/call in a way that MCP does not allow: `result.content[0]`: expected"
            " `object`, got `int`. It may have done what it was called for; the call was not repeated"
        )


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ('"error": {"code": "x", "message": "m"}', "`error.code`: expected `int`"),
        ('"error": {"code": 1}', "`error`: object missing required field `message`"),
        ('"error": {"code": 1, "message": [1]}', "`error.message`: expected `str`"),
    ],
)
async def test_errors_that_json_rpc_does_not_allow_are_replaced(tmp_path: Path, said: str, problem: str) -> None:
    async with hostile(tmp_path) as running:
        reply = await running.call("tools/call", {"name": "a", "reply": said})
        assert isinstance(reply.error, Raw)
        error = msgspec.json.decode(reply.error)
        assert (error["code"], problem in error["message"]) == (-32603, True), error


@pytest.mark.parametrize(
    ("offered", "problem"),
    [
        ([1], "the reply cannot be read: its result is not a JSON object"),
        ({"tools": {}}, "`result.tools`: expected `array`"),
        ({}, "`result`: object missing required field `tools`"),
        ({"tools": [], "nextCursor": {}}, "`result.nextCursor`"),
        ("endless", "more than 1000 pages"),
        ("circling", "a cursor twice"),
    ],
)
async def test_a_list_that_mcp_does_not_allow_ends_and_is_flagged(tmp_path: Path, offered: Any, problem: str) -> None:
    prompts = {"prompts": [{"name": "greet"}]}
    async with hostile(tmp_path, tools_list=offered, prompts_list=prompts) as running:
        found = checked(await running.until_put(1))
        (flag,) = found.flags
        assert (flag.kind, flag.where, problem in flag.detail) == ("dropped", "tools/list", True), flag
        assert list(found.items["prompts"]) == ["greet"]
        assert running.failure is None


async def test_a_list_beyond_what_can_be_stored_is_cut_and_the_rest_is_stored(tmp_path: Path) -> None:
    async with hostile(tmp_path, tools_list="huge") as running:
        found = checked(await running.until_put(1))
        assert "more than 8 MiB" in found.flags[0].detail
        assert list(found.items["tools"]) == [f"t{number}" for number in range(1, 9)]


def test_structured_content_of_servers_without_a_handshake_may_be_any_json() -> None:
    result = Raw(b'{"content":[],"structuredContent":[1]}')
    shapes.check("tools/call", result, modern=True)
    with pytest.raises(shapes.Disallowed, match="structuredContent"):
        shapes.check("tools/call", result, modern=False)


def test_questions_of_a_result_must_be_objects() -> None:
    shapes.check("tools/call", Raw(b'{"resultType":"input_required","inputRequests":{"a":{}}}'), modern=True)
    with pytest.raises(shapes.Disallowed, match=r"result\.inputRequests"):
        shapes.check("tools/call", Raw(b'{"resultType":"input_required","inputRequests":[1]}'), modern=True)
