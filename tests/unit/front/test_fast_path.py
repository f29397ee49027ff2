"""The fast path and the SDK's path answer the same: each request here goes through both, and is compared."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from services.front.protocol.dispatch import FastPath
from tests.unit.front import steps
from tests.unit.front.operations import How
from tests.unit.front.wire import META, connected, gateway_in_process

LEGACY = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]

CALLS: list[tuple[str, Any]] = [
    ("t_pair", {"text": "hello"}),
    ("t_pair", {"text": 'päir \u2028 \U0001f600 "quoted" \\ \n', "count": 3}),
    ("t_string", None),
    ("t_string", {"colour": "blue"}),
    ("t_list", {}),
    ("t_nothing", {}),
    ("t_dict", {}),
    # as models write them
    ("t_pair", {"text": "x", "count": "5"}),
    ("t_pair", {"text": "x", "count": None}),
    ("t_pair", {"text": "5", "count": " 5.0"}),
    ("t_string", {"colour": None}),
    ("query", {"steps": '[{"op": "words", "params": "{}"}]', "max_tokens": None}),
    # wrong in every way a parameter can be
    ("t_pair", {"text": "x", "count": "5.5"}),
    ("query", {"steps": "["}),
    ("t_pair", {}),
    ("t_pair", None),
    ("t_pair", {"text": 5}),
    ("t_pair", {"text": None}),
    ("t_pair", {"text": ""}),
    ("t_pair", {"text": "x" * 1001}),
    ("t_pair", {"text": "x", "count": 11}),
    ("t_pair", {"text": "x", "count": -1}),
    ("t_pair", {"text": "x", "count": 1.5}),
    ("t_pair", {"text": "x", "count": 10**30}),
    ("t_pair", {"text": "x", "unknown": 1}),
    ("t_string", {"colour": "green"}),
    ("t_pair", []),
    ("t_pair", "text"),
    # not there, or not for clients
    ("t_unknown", {}),
    ("t_inner", {}),
    ("t_operator", {}),
    ("", {}),
    *(("t_fail", {"how": how.value}) for how in How),
    *(("t_fail_coded", {"how": how.value}) for how in How),
    ("t_fail_coded", {"how": 1}),
    # consisting of others
    ("query", {"steps": [{"op": "words"}]}),
    ("query", {"steps": [{"op": "picture"}]}),
    ("query", {"steps": [{"op": "search", "query": "é \u2028"}, {"op": "get", "hash": "$prev.results[0].hash"}]}),
    ("query", {"steps": []}),
    ("query", {"steps": [{"op": "t_fail", "how": "maybe"}]}),
    ("execute", {"operations": [{"op": "delete", "params": {"name": "gone"}}]}),
    ("session", {"action": "start"}),
]

METAS: list[Any] = [
    None,
    {},
    {"progressToken": "p"},
    {"progressToken": 0},
    {"traceparent": "00-11111111111111111111111111111111-2222222222222222-01", "other": {"a": 1}},
    {"traceparent": 5},
    {"progressToken": None},
    {"progressToken": 1.5},
    {"progressToken": True},
]


async def answers(version: str, requests: list[dict[str, Any]], *, surface: str = "all") -> list[Any]:
    """The answers by request, whatever their order, each with the notifications sent before it."""
    collected = []
    served = gateway_in_process(steps.TABLE, steps.open_service)
    async with served as (gateway, _), connected(gateway, surface) as wire:
        if version == "2026-07-28":
            await wire.open_modern()
        else:
            await wire.initialize(version)
        for request in requests:
            await wire.send(request)
            messages = [await wire.receive()]
            while "id" not in messages[-1]:
                messages.append(await wire.receive())
            collected.append(messages)
    return collected


def requests_for(version: str) -> list[dict[str, Any]]:
    modern = version == "2026-07-28"
    requests = []
    for number, (name, arguments) in enumerate(CALLS):
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = arguments
        if modern:
            params["_meta"] = META
        requests.append({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
    for number, extra in enumerate(METAS):
        params = {"name": "t_progress", "arguments": {"steps": 2}}
        if modern:
            params["_meta"] = {**META, **(extra or {}), "io.modelcontextprotocol/logLevel": "info"}
        elif extra is not None:
            params["_meta"] = extra
        requests.append({"jsonrpc": "2.0", "id": f"meta-{number}", "method": "tools/call", "params": params})
    odd: list[dict[str, Any]] = [
        {"name": "t_string", "arguments": {}, "unknown": 1},
        {"name": "t_string", "arguments": {}, "task": {"ttl": 5}},
        {"arguments": {}},
        {"name": 5},
        {"name": "t_string", "_meta": 5},
        {"name": "t_string", "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}},
        {"name": "t_string", "_meta": {**META, "io.modelcontextprotocol/protocolVersion": "2027-01-01"}},
        {"name": "t_string", "_meta": {**META, "io.modelcontextprotocol/clientCapabilities": 5}},
        {"name": "t_string", "_meta": {**META, "io.modelcontextprotocol/clientInfo": {"name": "x"}}},
        {"name": "t_string", "_meta": {**META, "io.modelcontextprotocol/logLevel": "loud"}},
        {"name": "t_string", "_meta": {**META, "io.modelcontextprotocol/clientCapabilities": {"sampling": {}}}},
        {"name": "t_string", "_meta": META, "inputResponses": None},
    ]
    for number, params in enumerate(odd):
        requests.append({"jsonrpc": "2.0", "id": f"odd-{number}", "method": "tools/call", "params": params})
    requests.append({"jsonrpc": "2.0", "id": "none", "method": "tools/call"})
    return requests


@pytest.mark.slow
@pytest.mark.parametrize("version", [*LEGACY, "2026-07-28"])
async def test_both_paths_answer_the_same(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = requests_for(version)
    taken = 0
    recognise = FastPath.recognise

    def counting(self: FastPath, *args: Any, **kwargs: Any) -> Any:
        nonlocal taken
        call = recognise(self, *args, **kwargs)
        taken += call is not None
        return call

    monkeypatch.setattr(FastPath, "recognise", counting)
    short = await answers(version, requests)
    assert taken > len(CALLS) // 2, "the fast path was hardly taken, so the comparison proves nothing"

    monkeypatch.setattr(FastPath, "recognise", lambda *args, **kwargs: None)
    long = await answers(version, requests)
    for request, left, right in zip(requests, short, long, strict=True):
        assert left == right, request


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_cancelled_call_is_never_answered_and_its_handler_stops(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("short", "sdk"):
        if path == "sdk":
            monkeypatch.setattr(FastPath, "recognise", lambda *args, **kwargs: None)
        async with gateway_in_process() as (gateway, dispatcher), connected(gateway) as wire:
            modern = version == "2026-07-28"
            await (wire.open_modern() if modern else wire.initialize())
            meta = META if modern else None
            await wire.call("t_wait", {}, id=7, meta=meta)
            with trio.fail_after(5):
                await dispatcher.started.wait()
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
            await wire.send(cancel)
            await wire.call("t_string", {}, id=8, meta=meta)
            assert (await wire.receive())["id"] == 8
            with trio.fail_after(5):
                while not dispatcher.cancelled:
                    await trio.lowlevel.checkpoint()
            assert dispatcher.cancelled == ["t_wait"]
