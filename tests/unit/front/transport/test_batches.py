"""Batches of the revisions that have them: one array in, one array out, on every transport; refused by the others."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from proto.mcp import BATCH_VERSIONS
from services.front.protocol import batch
from tests.unit.front.httpwire import HttpWire, Reply, served
from tests.unit.front.wire import Wire, connected, gateway_in_process

WITH = sorted(BATCH_VERSIONS)
WITHOUT = ["2025-06-18", "2025-11-25"]


def call(id: object, name: str = "t_string", meta: Any = None, **arguments: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"name": name, "arguments": arguments}
    if meta is not None:
        params["_meta"] = meta
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def request(id: object, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, **({"params": params} if params else {})}


def note(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})}


INITIALIZE = request(9, "initialize", protocolVersion="2025-03-26", capabilities={}, clientInfo={"name": "t"})

MIXED: list[tuple[Any, Any]] = [
    (call(1), None),
    (call(2, "t_nothing_of_that_name"), -32602),
    (request("list", "tools/list"), None),
    (request(4, "ping"), None),
    (request(5, "no/such/method"), -32601),
    (call(6, "t_pair", text=5), None),
    (INITIALIZE, -32600),
    ({"jsonrpc": "1.0", "id": 10, "method": "ping"}, -32600),
]
"""Requests, and the code of their answer where that is an error."""


def by_id(answers: list[dict[str, Any]]) -> dict[Any, Any]:
    assert isinstance(answers, list)
    return {answer["id"]: answer.get("error", {}).get("code") for answer in answers}


async def exchange(wire: Wire, messages: object) -> Any:
    await wire.send_bytes(json.dumps(messages).encode() + b"\n")
    return await received(wire)


async def received(wire: Wire) -> Any:
    """The next message, or array of them."""
    return await wire.receive()


async def post(http: HttpWire, messages: object, **headers: str) -> Reply:
    return await http.request("POST", body=json.dumps(messages).encode(), headers={**http.session, **headers})


@pytest.mark.parametrize("version", WITH)
async def test_a_batch_on_stdio_is_answered_by_one_array(version: str) -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize(version)
        answers = await exchange(wire, [message for message, _ in MIXED] + [note("notifications/roots/list_changed")])
        assert by_id(answers) == {message["id"]: code for message, code in MIXED}
        assert (await exchange(wire, [call(1)]))[0]["id"] == 1
        await wire.call("t_string", id=2)
        assert (await wire.receive())["id"] == 2


@pytest.mark.parametrize("version", WITH)
async def test_a_batch_over_http_is_answered_by_one_array(version: str) -> None:
    async with served() as (http, *_):
        await http.initialize(version)
        reply = await post(http, [message for message, _ in MIXED] + [note("notifications/roots/list_changed")])
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert reply.headers["mcp-session-id"] == http.session["mcp-session-id"]
        assert by_id(json.loads(reply.body)) == {message["id"]: code for message, code in MIXED}


async def test_an_array_is_refused_in_the_revisions_without_batches() -> None:
    for version in WITHOUT:
        async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
            await wire.initialize(version)
            assert (await exchange(wire, [call(1)]))["error"]["code"] == -32600
        async with served() as (http, *_):
            await http.initialize(version)
            assert (await post(http, [call(1)])).status == 400
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.open_modern()
        assert (await exchange(wire, [call(1)]))["error"]["code"] == -32600
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        assert (await exchange(wire, [INITIALIZE]))["error"]["code"] == -32600


@pytest.mark.parametrize(
    ("messages", "why"),
    [([], "at least one"), ([note("x")] * (batch.MAX_MESSAGES + 1), str(batch.MAX_MESSAGES))],
)
async def test_an_empty_batch_and_one_without_end_are_refused(messages: list[Any], why: str) -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize("2025-03-26")
        refused = (await exchange(wire, messages))["error"]
        assert refused["code"] == -32600
        assert why in refused["message"]
    async with served() as (http, *_):
        await http.initialize("2025-03-26")
        reply = await post(http, messages)
        assert (reply.status, reply.message["error"]["code"]) == (400, -32600)


async def test_a_batch_of_notifications_has_no_answer() -> None:
    messages = [note("notifications/initialized"), note("notifications/cancelled", requestId=77)]
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize("2025-03-26")
        await wire.send_bytes(json.dumps(messages).encode() + b"\n")
        await wire.call("t_string", id=2)
        assert (await wire.receive())["id"] == 2
    async with served() as (http, *_):
        await http.initialize("2025-03-26")
        reply = await post(http, messages)
        assert (reply.status, reply.body) == (202, b"")


async def test_invalid_messages_of_a_batch_are_answered_beside_the_others() -> None:
    messages = [5, [], {"jsonrpc": "2.0", "id": {}, "method": "ping"}, call(1), call(1), call("1")]
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize("2025-03-26")
        over_stdio = await exchange(wire, messages)
    async with served() as (http, *_):
        await http.initialize("2025-03-26")
        over_http = json.loads((await post(http, messages)).body)
    for answers in (over_stdio, over_http):
        assert [answer["error"]["code"] for answer in answers if answer["id"] is None] == [-32600] * 3
        mine = [answer for answer in answers if answer["id"] in (1, "1")]
        # Two uses of an id are indistinguishable, so only one call runs.
        assert sorted("error" in answer for answer in mine) == [False, True, True]


async def test_invalid_json_is_refused_as_a_whole() -> None:
    broken = b'[{"jsonrpc":"2.0","id":1,"method":"ping"},{"a":\xff}]'
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize("2025-03-26")
        await wire.send_bytes(broken + b"\n")
        assert (await wire.receive())["error"]["code"] == -32700
    async with served() as (http, *_):
        await http.initialize("2025-03-26")
        reply = await http.request("POST", body=broken, headers=http.session)
        assert (reply.status, reply.message["error"]["code"]) == (400, -32700)


async def test_a_withdrawn_request_of_a_batch_holds_up_no_other() -> None:
    async with gateway_in_process() as (gateway, dispatcher), connected(gateway) as wire:
        await wire.initialize("2025-03-26")
        await wire.send_bytes(json.dumps([call(1, "t_wait"), call(2)]).encode() + b"\n")
        await dispatcher.started.wait()
        await wire.send(note("notifications/cancelled", requestId=1))
        assert by_id(await received(wire)) == {2: None}
        with trio.fail_after(5):
            await dispatcher.withdrawn.wait()


async def test_progress_comes_before_the_answers() -> None:
    messages = [call(1, "t_progress", meta={"progressToken": "p"}, steps=2), call(2)]
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize("2025-03-26")
        await wire.send_bytes(json.dumps(messages).encode() + b"\n")
        before = []
        while isinstance(message := await received(wire), dict):
            before.append(message["method"])
        assert before.count("notifications/progress") == 2
        assert by_id(message) == {1: None, 2: None}
    async with served() as (http, *_):
        await http.initialize("2025-03-26")
        reply = await post(http, messages)
        assert reply.headers["content-type"] == "text/event-stream"
        methods = [message.get("method") for message in reply.messages]
        assert methods.count("notifications/progress") == 2
        assert {message["id"] for message in reply.messages if "id" in message} == {1, 2}


async def test_the_stateless_endpoint_takes_batches_of_clients_that_name_no_later_revision() -> None:
    async with served() as (http, *_):
        body = json.dumps([request(1, "tools/list"), request(2, "ping")]).encode()
        reply = await http.request("POST", path="/v1/mcp", body=body)
        assert by_id(json.loads(reply.body)) == {1: None, 2: None}
        later = {"mcp-protocol-version": "2025-06-18"}
        assert (await http.request("POST", path="/v1/mcp", body=body, headers=later)).status == 400


async def test_a_client_that_goes_away_withdraws_the_calls_of_its_batch() -> None:
    async with served() as (http, _, dispatcher, _):
        await http.initialize("2025-03-26")
        stream, connection = await http.connect()
        body = json.dumps([call(1, "t_wait"), call(2)]).encode()
        async with stream:
            await http.start(stream, connection, "POST", "/mcp", body, http.session)
            with trio.fail_after(5):
                await dispatcher.started.wait()
        with trio.fail_after(5):
            await dispatcher.withdrawn.wait()
