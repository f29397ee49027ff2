"""Each way in the table answers as the SDK does: every row's messages go both ways over each carrier.

What is sent while the SDK loads is in `test_handshake`, and calls in all their forms in `test_fast_path`.
"""

from __future__ import annotations

from typing import Any

import pytest

from linckia.services.front.protocol import ways
from linckia.services.front.protocol.messages import Envelope
from linckia.services.front.protocol.ways import TABLE, Carrier, Way
from linckia.services.front.transport import endpoint, stdio
from tests.unit.front.httpwire import served
from tests.unit.front.wire import connected, gateway_in_process

CLIENT = {"name": "test", "version": "1"}


def opening(version: object = "2025-11-25", **more: object) -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT, **more}


MESSAGES: dict[str, list[Any]] = {
    "initialize": [
        *(
            opening(version)
            for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28", "x", 5)
        ),
        opening(capabilities={"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}}),
        opening(capabilities=5),
        opening(unknown=1),
        opening(clientInfo={"name": "only"}),
        opening(clientInfo={**CLIENT, "icons": [{"src": "https://127.0.0.1/i.png"}]}),
        {},
        None,
    ],
    "notifications/initialized": [None, {}, {"unknown": 1}],
    "ping": [None, {}, {"_meta": {"progressToken": 1}}, {"unknown": 1}],
    "tools/call": [{"name": "t_string", "arguments": {}}, {"name": "t_pair", "arguments": {"text": 5}}, {"name": "no"}],
}
"""By method, parameters in the forms that are usual and in others."""


def take(way: str, monkeypatch: pytest.MonkeyPatch) -> list[Way]:
    """Have the transports take this way; answers what the table then said."""
    said: list[Way] = []

    def way_of(message: Envelope | None, carrier: Carrier) -> Way:
        said.append(ways.way_of(message, carrier) if way == "table" else Way.SDK)
        return said[-1]

    for module in (endpoint, stdio):
        monkeypatch.setattr(module, "way_of", way_of)
    return said


def test_every_row_is_compared() -> None:
    covered = {*MESSAGES, "server/discover", "tools/list"}
    assert TABLE.keys() == covered
    assert [method for method, (_, over) in TABLE.items() if over == {Carrier.LOADING}] == [
        "server/discover",
        "tools/list",
    ]


async def over_http(method: str) -> list[Any]:
    """What each message is answered with: its status, its JSON, and whether it has a session."""
    seen: list[Any] = []
    async with served() as (http, *_):
        await http.initialize()
        if method == "initialize":
            http.session = {}
        for params in MESSAGES[method]:
            id_ = None if method.startswith("notifications/") else 7
            reply = await http.rpc(method, params, id=id_)
            message = reply.message if reply.body else None
            opened = "mcp-session-id" in reply.headers
            if method == "initialize" and message is not None:
                # What was refused has no session, whatever the header says.
                opened = "result" in message
                session = {"mcp-session-id": reply.headers["mcp-session-id"]}
                works = await http.rpc("tools/call", {"name": "t_string", "arguments": {}}, headers=session)
                assert works.status == (200 if opened else 404)
            seen.append((reply.status, message, opened))
    return seen


async def over_stdio(method: str) -> list[Any]:
    seen = []
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize()
        # It is loaded from here on.
        await wire.send({"jsonrpc": "2.0", "id": 1, "method": "prompts/list"})
        await wire.receive()
        for params in MESSAGES[method]:
            message = {"jsonrpc": "2.0", "id": 7, "method": method}
            await wire.send(message if params is None else {**message, "params": params})
            seen.append(await wire.receive())
    return seen


@pytest.mark.parametrize(
    ("method", "carrier"),
    [(method, one) for method, (_, over) in TABLE.items() for one in (Carrier.HTTP, Carrier.STDIO) if one in over],
)
async def test_both_ways_answer_the_same(method: str, carrier: Carrier, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = over_http if carrier is Carrier.HTTP else over_stdio
    said = take("table", monkeypatch)
    direct = await exchange(method)
    assert said.count(TABLE[method][0]) >= len(MESSAGES[method])
    take("sdk", monkeypatch)
    by_sdk = await exchange(method)
    for params, one, other in zip(MESSAGES[method], direct, by_sdk, strict=True):
        assert one == other, params
