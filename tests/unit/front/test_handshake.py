"""Answers sent before the SDK is loaded equal the SDK's own, and the SDK knows of them afterwards."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import InitializeRequestParams, methods, version
from mcp_types.jsonrpc import JSONRPCRequest, jsonrpc_message_adapter

from kernel import VERSION
from proto import mcp
from proto.mcp import HANDSHAKE_VERSIONS, MODERN_VERSIONS
from proto.operation import SURFACES
from services.front import gateway as gateways
from services.front.gateway import Gateway
from services.front.prompts import FilePrompts
from services.front.protocol import handshake
from services.front.protocol.client_requests import LEVELS
from services.front.protocol.handshake import Greeter
from services.front.protocol.lists import MEMBERS
from services.front.protocol.session import McpSession
from services.front.surfaces.surface import Surface
from tests.unit.front.inprocess import InProcess, in_process
from tests.unit.front.operations import TABLE, open_service
from tests.unit.front.wire import META, connected, gateway_in_process

CLIENT = {"name": "test", "version": "1"}

INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def initialize(version: object = "2025-11-25", id: object = "init", **params: Any) -> dict[str, Any]:
    given = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT, **params}
    return {"jsonrpc": "2.0", "id": id, "method": "initialize", "params": given}


def discover(**meta: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "open", "method": "server/discover", "params": {"_meta": {**META, **meta}}}


VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
LEVEL_KEY = "io.modelcontextprotocol/logLevel"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"

TAKEN = [
    *(initialize(version) for version in HANDSHAKE_VERSIONS),
    initialize("1999-01-01"),
    initialize("2026-07-28"),
    initialize(""),
    initialize(id=0),
    initialize(id=2**62),
    initialize(id=""),
    initialize(
        capabilities={
            "roots": {"listChanged": True},
            "sampling": {"context": {}, "tools": {}},
            "elicitation": {"form": {}, "url": {}},
            "experimental": {"x": {"y": [1, {"z": None}]}},
            "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]}},
            "of-tomorrow": {"a": [True, 1.5, "b"]},
        }
    ),
    initialize(
        clientInfo={**CLIENT, "title": "Test", "description": "päir \u2028", "websiteUrl": "https://x.y", "other": 5}
    ),
    discover(),
    discover(**{CAPABILITIES_KEY: {"elicitation": {}, "roots": {}}}),
]

LEFT = [
    initialize(5),
    initialize(None),
    initialize(capabilities=None),
    initialize(capabilities=[]),
    initialize(capabilities={"roots": {"listChanged": "yes"}}),
    initialize(capabilities={"roots": None}),
    initialize(capabilities={"experimental": {"x": 1}}),
    initialize(capabilities={"tasks": {"list": {}}}),
    initialize(clientInfo={"name": "test"}),
    initialize(clientInfo={**CLIENT, "icons": [{"src": "https://x.y/z.png"}]}),
    initialize(_meta={"progressToken": 1}),
    initialize(id=None),
    initialize(id=1.5),
    {**initialize(), "jsonrpc": "1.0"},
    {**initialize(), "extra": 1},
    {"jsonrpc": "2.0", "id": 1, "method": "initialize"},
    {"jsonrpc": "2.0", "id": 1, "method": "ping"},
    {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
    INITIALIZED,
    discover(**{VERSION_KEY: "2030-01-01"}),
    discover(**{VERSION_KEY: 5}),
    discover(**{CLIENT_KEY: None}),
    discover(other=1),
    {"jsonrpc": "2.0", "id": 1, "method": "server/discover"},
]


def encoded(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()


def greeted(message: dict[str, Any], session: McpSession | None = None, surface: str = "all") -> bytes | None:
    """What a client is answered without the SDK, by default to the first thing that it says."""
    return Greeter(Surface(surface, TABLE), VERSION).answer(encoded(message), session or McpSession())


@contextlib.asynccontextmanager
async def unloaded() -> AsyncIterator[tuple[Gateway, InProcess, trio.Nursery]]:
    """A gateway that loads the SDK when the test says so."""
    async with in_process(open_service) as dispatcher, trio.open_nursery() as nursery:
        gateway = Gateway(TABLE, dispatcher, dispatcher, nursery, VERSION, FilePrompts())
        yield gateway, dispatcher, nursery
        nursery.cancel_scope.cancel()


def test_the_revisions_are_the_sdks() -> None:
    assert HANDSHAKE_VERSIONS == version.HANDSHAKE_PROTOCOL_VERSIONS
    assert MODERN_VERSIONS == version.MODERN_PROTOCOL_VERSIONS


@pytest.mark.parametrize("surface", SURFACES)
async def test_answers_without_the_sdk_equal_the_sdk_s_on_every_surface(surface: str) -> None:
    for message in TAKEN if surface in ("all", "yaml") else (TAKEN[0], discover()):
        ours = greeted(message, surface=surface)
        assert ours, message
        async with gateway_in_process() as (gateway, _), connected(gateway, surface) as wire:
            await trio.testing.wait_all_tasks_blocked()
            await wire.send(message)
            assert json.loads(ours) == await wire.receive()


@pytest.mark.parametrize("message", LEFT)
def test_malformed_and_unusual_messages_are_left_to_the_sdk(message: dict[str, Any]) -> None:
    session = McpSession()
    assert greeted(message, session) is None
    assert (session.modern, session.version) == (None, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(
    st.sampled_from(["listChanged", "context", "tools", "form", "url", "x", "name", "version", "title", "icons"]),
    JSON | st.just({}),
    max_size=3,
)
CAPABILITIES = st.dictionaries(
    st.sampled_from(["roots", "sampling", "elicitation", "experimental", "extensions", "tasks", "other"]),
    OBJECT | JSON | st.dictionaries(st.text(max_size=3), OBJECT, max_size=2),
    max_size=4,
)


@given(
    st.dictionaries(
        st.sampled_from([VERSION_KEY, CLIENT_KEY, CAPABILITIES_KEY, LEVEL_KEY, "progressToken", "other"]),
        st.just("2026-07-28") | CAPABILITIES | st.builds(dict, st.just(CLIENT)) | st.sampled_from(LEVELS) | JSON,
    ).map(lambda drawn: {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {}, **drawn})
)
def test_no_envelope_is_accepted_that_the_sdk_would_refuse(meta: dict[str, Any]) -> None:
    if handshake.is_usual_envelope(meta):
        for method, params in (("tools/list", {}), ("tools/call", {"name": "x"})):
            methods.validate_client_request(method, "2026-07-28", {**params, "_meta": meta})


@pytest.mark.parametrize("level", LEVELS)
def test_an_envelope_may_name_each_level(level: str) -> None:
    assert handshake.is_usual_envelope({**META, LEVEL_KEY: level})


@given(
    st.fixed_dictionaries(
        {
            "protocolVersion": st.sampled_from(HANDSHAKE_VERSIONS) | JSON,
            "capabilities": CAPABILITIES | JSON,
            "clientInfo": st.builds(dict, st.just(CLIENT), **{"title": st.text(max_size=3)}) | OBJECT,
        },
        optional={"_meta": OBJECT, "other": JSON},
    ),
    JSON,
)
def test_nothing_is_accepted_that_the_sdk_would_refuse(params: dict[str, Any], request_id: Any) -> None:
    data = encoded({"jsonrpc": "2.0", "id": request_id, "method": "initialize", "params": params})
    if Greeter(Surface("all", TABLE), VERSION).answer(data, McpSession()) is not None:
        message = jsonrpc_message_adapter.validate_json(data, by_name=False)
        assert isinstance(message, JSONRPCRequest)
        for revision in HANDSHAKE_VERSIONS:
            methods.validate_client_request("initialize", revision, message.params)
        InitializeRequestParams.model_validate(message.params, by_name=False)


async def test_a_client_is_answered_before_the_sdk_is_there_and_served_once_it_is() -> None:
    async with unloaded() as (gateway, dispatcher, nursery), connected(gateway) as wire:
        await wire.initialize("2025-06-18")
        await wire.send({"jsonrpc": "2.0", "id": 7, "method": "ping"})
        assert await wire.receive() == {"jsonrpc": "2.0", "id": 7, "result": {}}
        await wire.call("t_string", id=8)
        assert (await wire.receive())["id"] == 8
        assert dispatcher.calls == ["t_string"]
        assert not gateway.needed.is_set()
        await wire.send({"jsonrpc": "2.0", "id": 9, "method": "logging/setLevel", "params": {"level": "error"}})
        await gateway.needed.wait()
        await wire.call("t_string", id=10)
        assert (await wire.receive())["id"] == 10
        nursery.start_soon(gateway.load)
        # The very next message is the waiting request's answer: the handshake is not answered a second time.
        assert await wire.receive() == {"jsonrpc": "2.0", "id": 9, "result": {}}


async def test_a_client_that_only_waits_hears_of_news_once_the_sdk_is_there() -> None:
    async with unloaded() as (gateway, dispatcher, nursery), connected(gateway) as wire:
        await wire.initialize()
        nursery.start_soon(gateway.load)
        await gateway.server("all")
        await trio.testing.wait_all_tasks_blocked()
        dispatcher.publish(mcp.LIST_CHANGED, mcp.ListChanged(list="tools"))
        assert (await wire.receive())["method"] == "notifications/tools/list_changed"


async def test_an_id_that_is_used_again_is_answered_again() -> None:
    async with unloaded() as (gateway, _, nursery), connected(gateway) as wire:
        await wire.send(initialize(id=1))
        assert "result" in await wire.receive()
        await wire.send(initialize(id=1))
        nursery.start_soon(gateway.load)
        second = await wire.receive()
        assert second["id"] == 1


async def test_discovery_decides_the_era_also_before_the_sdk_is_there() -> None:
    async with unloaded() as (gateway, _, nursery), connected(gateway) as wire:
        assert (await wire.open_modern())["supportedVersions"] == ["2026-07-28"]
        assert not gateway.loaded.is_set()
        await wire.send(initialize())
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(gateway.load)
        assert (await wire.receive())["error"]["code"] == -32022
        await wire.call("t_string", id=3, meta=META)
        assert (await wire.receive())["result"]["resultType"] == "complete"


@pytest.mark.parametrize("needed", [True, False])
async def test_the_sdk_is_loaded_when_it_is_needed_or_after_a_while(
    needed: bool, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    # The tests have loaded the SDK, so any other module stands for it.
    monkeypatch.setattr(gateways, "SDK", "colorsys")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    async with unloaded() as (gateway, _, nursery), connected(gateway) as wire:
        nursery.start_soon(gateway.load)
        await wire.initialize()
        assert "colorsys" not in sys.modules
        if needed:
            gateway.needed.set()
        await gateway.loaded.wait()
        assert "colorsys" in sys.modules
        assert (trio.current_time() >= gateways.SDK_AFTER_S) is not needed


async def test_a_client_may_leave_before_the_sdk_is_there() -> None:
    async with unloaded() as (gateway, _, _nursery), connected(gateway) as wire:
        await wire.initialize()
        await wire.writer.aclose()
        with trio.fail_after(10):
            await wire.ended.wait()


async def test_invalid_lines_are_refused_before_the_sdk_is_loaded() -> None:
    async with unloaded() as (gateway, _, _nursery), connected(gateway) as wire:
        await wire.send_bytes(b"not json\n")
        assert (await wire.receive())["error"]["code"] == -32700
        await wire.initialize()


ECHO = {"message": "hello"}

ALONE = """
import os, sys
import trio
from services.front import main as front
from services.front.gateway import Gateway
from services.front.prompts import FilePrompts
from services.front.transport.stdio import attach
from proto import ops

class Calls:
    async def call(self, operation, params, **options):
        return params.message

async def main():
    server_in, client_out = os.pipe()
    client_in, server_out = os.pipe()
    os.write(client_out, sys.argv[1].encode())
    os.close(client_out)
    async with trio.open_nursery() as nursery:
        gateway = Gateway(ops.load(), Calls(), None, nursery, "0", FilePrompts())
        gateway.mounted.catalogue.loaded.set()
        await attach(gateway, server_in, server_out, "core")
    os.close(server_out)
    with open(client_in, "rb") as file:
        sys.stdout.buffer.write(file.read())
    heavy = {"mcp", "mcp_types", "pydantic", "starlette", "httptools"} & set(sys.modules)
    assert not heavy, heavy

trio.run(main)
"""


def test_a_front_serves_a_clients_first_requests_without_having_imported_the_sdk() -> None:
    lists = [{"jsonrpc": "2.0", "id": method, "method": method} for method in MEMBERS]
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
    of_handshake = [initialize(), INITIALIZED, *lists, {**call, "params": {"name": "mcp_echo", "arguments": ECHO}}]
    modern = [
        discover(),
        *({**each, "params": {"_meta": META}} for each in lists),
        {**call, "params": {"name": "mcp_echo", "arguments": ECHO, "_meta": META}},
    ]
    for messages in (of_handshake, modern):
        asked = "".join(encoded(message).decode() + "\n" for message in messages)
        done = subprocess.run(
            [sys.executable, "-P", "-c", ALONE, asked], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        answers = {answer["id"]: answer["result"] for answer in map(json.loads, done.stdout.splitlines())}
        assert answers.keys() == {message["id"] for message in messages if "id" in message}
        assert answers[2]["content"][0]["text"] == '"hello"'
