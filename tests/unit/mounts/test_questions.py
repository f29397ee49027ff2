"""Questions of servers to clients, in all four combinations of protocol eras, and modern servers in general."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from proto.errors import Cancelled, OperationError
from proto.mcp import INPUTS
from proto.mounts import UPDATED
from tests.unit.mounts.kernel import Adapter, Ask, Client, adapter

LEGACY = Path(__file__).with_name("server.py")
MODERN = Path(__file__).with_name("modern.py")
ANSWER = {"action": "accept", "content": {"name": "Ada"}}


def script(path: Path) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(path)]}


def answering(got: list[tuple[str, dict[str, Any]]], answer: dict[str, Any]) -> Ask:
    async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
        got.append((method, params))
        return {name: answer for name in params["inputs"]} if method == INPUTS else answer

    return ask


async def test_a_legacy_server_asks_a_legacy_client(tmp_path: Path) -> None:
    async with adapter(tmp_path, **script(LEGACY)) as running:
        got: list[tuple[str, dict[str, Any]]] = []
        assert json.loads(await running.tool("ask", ask=answering(got, ANSWER))) == ANSWER
        assert got == [("elicitation/create", {"message": "Name?", "requestedSchema": {}})]


async def test_a_client_that_cannot_be_asked_is_an_error_for_the_server(tmp_path: Path) -> None:
    async with adapter(tmp_path, roots=["/tmp/a b"], **script(LEGACY)) as running:
        assert "cannot be asked" in json.loads(await running.tool("ask"))["message"]
        assert json.loads(await running.tool("roots")) == {"roots": [{"uri": "file:///tmp/a%20b", "name": "/tmp/a b"}]}
        own = {"roots": [{"uri": "file:///mine"}]}
        assert json.loads(await running.tool("roots", ask=answering([], own))) == own


async def first_attempt(running: Adapter, tool: str) -> dict[str, Any]:
    """Make a call as a modern client does: the front ends it when it asks. Returns the questions."""
    questions: dict[str, Any] = {}

    async with trio.open_nursery() as nursery:

        async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
            assert method == INPUTS
            questions.update(params["inputs"])
            nursery.cancel_scope.cancel()
            raise Cancelled("the client is asked first")

        await running.tool(tool, ask=ask, modern=True)
    return questions


async def test_a_legacy_server_asks_a_modern_client_and_gets_its_answer(tmp_path: Path) -> None:
    async with adapter(tmp_path, **script(LEGACY)) as running:
        questions = await first_attempt(running, "ask")
        ((name, question),) = questions.items()
        assert question == {"method": "elicitation/create", "params": {"message": "Name?", "requestedSchema": {}}}
        answers = {name: ANSWER}
        assert json.loads(await running.tool("ask", modern=True, answers=answers)) == ANSWER
        seen = json.loads(await running.tool("seen"))
        assert seen.count("tools/call") == 2
        assert "notifications/cancelled" not in seen


async def test_an_answer_of_another_session_does_not_reach_the_server(tmp_path: Path) -> None:
    async with adapter(tmp_path, **script(LEGACY)) as running:
        ((name, _),) = (await first_attempt(running, "ask")).items()
        again: dict[str, Any] = {"modern": True, "answers": {name: ANSWER}}
        got: list[tuple[str, dict[str, Any]]] = []
        await running.tool("ask", session="other", ask=answering(got, {"action": "cancel"}), **again)
        assert len(got) == 1


async def test_a_modern_server_asks_a_legacy_client(tmp_path: Path) -> None:
    async with adapter(tmp_path, **script(MODERN)) as running:
        got: list[tuple[str, dict[str, Any]]] = []
        said = json.loads(await running.tool("ask", ask=answering(got, ANSWER)))
        assert said == {"answers": {"q": ANSWER}, "state": "s1"}
        assert got[0][1]["inputs"]["q"]["method"] == "elicitation/create"


async def test_requests_of_a_modern_server_pass_through_to_a_modern_client(tmp_path: Path) -> None:
    async with adapter(tmp_path, **script(MODERN)) as running:
        result = await running.result("tools/call", {"name": "ask"}, modern=True)
        assert (result["resultType"], result["requestState"]) == ("input_required", "s1")
        again = {"name": "ask", "inputResponses": {"q": ANSWER}, "requestState": result["requestState"]}
        result = await running.result("tools/call", again, modern=True)
        assert json.loads(result["content"][0]["text"]) == {"answers": {"q": ANSWER}, "state": "s1"}


async def test_a_modern_server_gets_the_envelope_and_the_clients_own_meta(tmp_path: Path) -> None:
    async with adapter(tmp_path, **script(MODERN)) as running:
        assert (running.info["protocol"], running.info["server"]) == ("2026-07-28", "modern 2")
        result = await running.result("tools/call", {"name": "meta", "_meta": {"x/y": 1}})
        meta = json.loads(result["content"][0]["text"])
        assert meta["x/y"] == 1
        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "linckia"
        assert json.loads(await running.tool("seen"))[0] == "server/discover"


async def test_a_modern_server_learns_the_client_s_capabilities(tmp_path: Path) -> None:
    async with adapter(tmp_path, **script(MODERN)) as running:

        async def told(capabilities: object) -> Any:
            result = await running.result("tools/call", {"name": "meta"}, modern=True, capabilities=capabilities)
            return json.loads(result["content"][0]["text"])["io.modelcontextprotocol/clientCapabilities"]

        assert await told({}) == {}
        assert await told({"sampling": {"tools": {}}, "tasks": {"list": {}}}) == {"sampling": {"tools": {}}}
        assert set(await told(None)) == {"roots", "sampling", "elicitation"}


async def test_changes_of_a_modern_server_arrive_by_its_listen_request(tmp_path: Path) -> None:
    async with adapter(tmp_path, **script(MODERN)) as running:
        assert (await running.until_put(1)).instructions == "Be modern."
        while "subscriptions/listen" not in json.loads(await running.tool("seen")):
            await trio.lowlevel.checkpoint()
        await running.tool("change_list")
        assert len((await running.until_put(2)).tools) == 6
        await running.result("resources/subscribe", {"uri": "test://b"})
        while json.loads(await running.tool("seen")).count("subscriptions/listen") < 2:
            await trio.lowlevel.checkpoint()
        await running.tool("touch")
        while not (found := [event for event in running.events if event.topic == UPDATED]):
            await running.event.wait()
        assert msgspec.msgpack.decode(found[0].body) == {"mount": "test", "uri": "test://b"}


async def test_a_shared_server_that_asks_serves_one_session_at_a_time_from_then_on(tmp_path: Path) -> None:
    async with adapter(tmp_path, **script(LEGACY)) as running, trio.open_nursery() as nursery:
        client = Client(None)
        nursery.start_soon(lambda: running.tool("slow", session="a", client=client))
        await client.reported.wait()
        refused = json.loads(await running.tool("ask", session="b", ask=answering([], ANSWER)))
        assert 'share = "client"' in refused["message"]
        await running.tool("release", session="a")
    async with adapter(tmp_path, **script(LEGACY)) as running:
        async with trio.open_nursery() as nursery:
            client = Client(None)
            order: list[str] = []

            async def slow() -> None:
                await running.tool("slow", session="a", client=client)
                order.append("a")

            async def ask() -> None:
                assert json.loads(await running.tool("ask", session="b", ask=answering([], ANSWER))) == ANSWER
                order.append("b")

            nursery.start_soon(slow)
            await client.reported.wait()
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            await running.tool("release", session="a")
        assert order == ["a", "b"]


async def test_a_failed_question_is_handled_by_the_server_or_ends_only_the_call(tmp_path: Path) -> None:
    async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
        raise OperationError("no")

    async with adapter(tmp_path, **script(LEGACY)) as running:
        assert json.loads(await running.tool("ask", ask=ask)) == {"code": -32603, "message": "no"}
    async with adapter(tmp_path, mount="other", **script(MODERN)) as running:
        with pytest.raises(OperationError, match="no"):
            await running.tool("ask", ask=ask)
        await running.tool("seen")
