"""Progress, log lines and questions on their way from a call to its client."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import trio
import trio.testing

from services.front.protocol.client_requests import PROGRESS_INTERVAL_S, CallClient, CallRequests
from tests.unit.front.httpwire import served
from tests.unit.front.wire import META, connected, gateway_in_process


class Recorder(CallClient):
    def __init__(self) -> None:
        super().__init__(self._record, {}, modern=False)
        self.sent: list[tuple[float, str, dict[str, Any]]] = []

    def _record(self, message: bytes) -> None:
        sent = json.loads(message)
        self.sent.append((trio.current_time(), sent["method"], sent["params"]))

    @property
    def progress(self) -> list[float]:
        return [params["progress"] for _, method, params in self.sent if method == "notifications/progress"]


async def test_progress_is_at_most_twenty_a_second_and_the_last_is_always_sent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    client = Recorder()
    async with trio.open_nursery() as nursery:
        client_requests = CallRequests(client, nursery, token="p")
        for done in range(1000):
            client_requests.progress(done, 1000, None)
            await trio.sleep(0.001)
        client_requests.progress(1000, 1000, "all")
        client_requests.finish()
        nursery.cancel_scope.cancel()
    times = [time for time, *_ in client.sent]
    assert len(times) <= 1.0 / PROGRESS_INTERVAL_S + 3
    assert all(b - a >= PROGRESS_INTERVAL_S * 0.99 for a, b in itertools.pairwise(times[:-1]))
    assert client.progress[0] == 0
    assert client.progress[-1] == 1000
    assert client.sent[-1][2] == {"progressToken": "p", "progress": 1000, "total": 1000, "message": "all"}


async def test_progress_that_was_held_back_is_sent_without_waiting_for_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    client = Recorder()
    async with trio.open_nursery() as nursery:
        client_requests = CallRequests(client, nursery, token=0)
        client_requests.progress(1, None, None)
        client_requests.progress(2, None, None)
        await trio.sleep(1)
        assert client.progress == [1, 2]


async def test_progress_never_goes_back_and_ends_with_the_call(autojump_clock: trio.testing.MockClock) -> None:
    client = Recorder()
    async with trio.open_nursery() as nursery:
        client_requests = CallRequests(client, nursery, token="p")
        for done in (1, 3, 2, 3, 4):
            client_requests.progress(done, None, None)
            await trio.sleep(1)
        client_requests.finish()
        client_requests.progress(5, None, None)
        client_requests.log("error", "x", "too late")
        await trio.sleep(1)
    assert client.progress == [1, 3, 4]


async def test_a_withdrawn_call_is_silent(autojump_clock: trio.testing.MockClock) -> None:
    client = Recorder()
    async with trio.open_nursery() as nursery:
        client_requests = CallRequests(client, nursery, token="p")
        client_requests.progress(1, None, None)
        client_requests.progress(2, None, None)
        client_requests.close()
        await trio.sleep(1)
    assert client.progress == [1]


async def test_without_a_token_there_is_no_progress() -> None:
    client = Recorder()
    async with trio.open_nursery() as nursery:
        CallRequests(client, nursery).progress(1, None, None)
    assert client.sent == []


@pytest.mark.parametrize(("level", "lines"), [("debug", 4), ("info", 2), ("warning", 0), ("emergency", 0)])
async def test_log_lines_below_the_clients_level_are_not_sent(level: str, lines: int) -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize()
        await wire.send({"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": {"level": level}})
        assert (await wire.receive())["result"] == {}
        await wire.call("t_progress", {"steps": 2}, id=2)
        messages = [await wire.receive()]
        while messages[-1].get("id") != 2:
            messages.append(await wire.receive())
        assert [m.get("method") for m in messages[:-1]] == ["notifications/message"] * lines


async def test_in_2026_07_28_a_request_that_names_no_level_gets_no_log_lines() -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.open_modern()
        await wire.call("t_progress", {"steps": 2}, id=2, meta=META)
        assert (await wire.receive())["id"] == 2


ELICITATION: dict[str, Any] = {"elicitation": {}}


async def test_a_client_with_a_handshake_is_asked_by_requests() -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize(capabilities=ELICITATION)
        await wire.call("t_asks", {}, id=2)
        for name in ("Ada", "Lovelace"):
            question = await wire.receive()
            assert question["method"] == "elicitation/create"
            result = {"action": "accept", "content": {"name": name}}
            await wire.send({"jsonrpc": "2.0", "id": question["id"], "result": result})
        assert (await wire.receive())["result"]["structuredContent"] == {"result": "Ada Lovelace"}


@pytest.mark.slow
async def test_a_client_with_a_handshake_is_asked_over_http_too() -> None:
    async with served() as (http, *_):
        await http.initialize(capabilities=ELICITATION)
        names = iter(["Ada", "Lovelace"])
        async for message in http.messages("tools/call", {"name": "t_asks", "arguments": {}}):
            if "method" in message:
                result = {"action": "accept", "content": {"name": next(names)}}
                answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
                assert (await http.request(body=json.dumps(answer).encode(), headers=http.session)).status == 202
        assert message["result"]["structuredContent"] == {"result": "Ada Lovelace"}


async def test_a_refused_question_fails_the_call_with_the_clients_words() -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize(capabilities=ELICITATION)
        await wire.call("t_asks", {}, id=2)
        question = await wire.receive()
        error = {"code": -1, "message": "the user is away"}
        await wire.send({"jsonrpc": "2.0", "id": question["id"], "error": error})
        result = (await wire.receive())["result"]
        assert result["isError"] is True
        assert "the user is away" in result["content"][0]["text"]


@pytest.mark.parametrize("modern", [False, True])
async def test_a_client_without_the_capability_is_not_asked(modern: bool) -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await (wire.open_modern() if modern else wire.initialize())
        await wire.call("t_asks", {}, id=2, meta=META if modern else None)
        answer = await wire.receive()
        if modern:
            assert answer["error"]["code"] == -32021
            assert answer["error"]["data"]["requiredCapabilities"] == {"elicitation": {}}
        else:
            assert "`elicitation`" in answer["result"]["content"][0]["text"]


async def test_an_operation_that_does_not_declare_it_cannot_ask() -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize(capabilities=ELICITATION)
        await wire.call("t_asks_undeclared", {}, id=2)
        assert (await wire.receive())["result"]["_meta"]["linckia/failure"]["kind"] == "forbidden"


async def test_in_2026_07_28_questions_are_a_result_and_the_answers_a_new_call() -> None:
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": ELICITATION}
    async with gateway_in_process() as (gateway, dispatcher), connected(gateway) as wire:
        await wire.open_modern()

        async def call(**extra: Any) -> dict[str, Any]:
            params = {"name": "t_asks", "arguments": {}, "_meta": meta, **extra}
            await wire.send({"jsonrpc": "2.0", "id": len(dispatcher.calls), "method": "tools/call", "params": params})
            return await wire.receive()

        def accept(result: dict[str, Any], name: str) -> dict[str, Any]:
            (key,) = result["inputRequests"]
            answer = {"action": "accept", "content": {"name": name}}
            return {"inputResponses": {key: answer}, "requestState": result["requestState"]}

        first = (await call())["result"]
        assert first["resultType"] == "input_required"
        second = (await call(**accept(first, "Ada")))["result"]
        assert second["resultType"] == "input_required"
        assert second["inputRequests"].keys() != first["inputRequests"].keys()
        last = (await call(**accept(second, "Lovelace")))["result"]
        assert last["structuredContent"] == {"result": "Ada Lovelace"}

        forged = accept(second, "Eve")
        forged["requestState"] = forged["requestState"][:-2] + "AA"
        assert (await call(**forged))["error"]["code"] == -32602
