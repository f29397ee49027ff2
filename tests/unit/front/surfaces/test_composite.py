"""The composite tools: sessions, `describe`, what each surface reaches, bounds, progress and cancellation."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from services.front.composite import answer
from services.front.surfaces.steps import Steps
from tests.unit.front.steps import TABLE
from tests.unit.front.surfaces.composite import Client, served
from tests.unit.front.wire import META

# session


async def test_an_action_of_a_session_answers_its_result(client: Client) -> None:
    result = await client.tool("session", action="start", params={"label": "x"})
    assert result["structuredContent"] == {"session_id": "s1", "label": "x"}
    assert (await client.tool("session", action="start"))["isError"] is False


@pytest.mark.parametrize("arguments", [{}, {"action": "begin"}, {"action": ""}, {"action": None}])
async def test_an_unknown_or_missing_action_lists_the_actions(client: Client, arguments: dict[str, Any]) -> None:
    assert "the actions are: start" in await client.refused("session", **arguments)


async def test_wrong_parameters_of_an_action_are_named(client: Client) -> None:
    said = await client.refused("session", action="start", params={"colour": 1})
    assert "session (start): unknown parameter `colour`" in said


# describe


async def test_describe_lists_the_ops_of_the_surface() -> None:
    assert await Client("documents").query({"op": "describe"}) == {
        "query_ops": ["get", "search", "grep", "describe"],
        "execute_ops": ["add", "delete", "move"],
        "session_ops": ["start"],
    }


async def test_describe_answers_one_op_in_full(client: Client) -> None:
    result = await client.query({"op": "describe", "params": {"target": "get"}})
    # On its own surfaces Linckia answers with its own names.
    own = client.surface == "all"
    assert result["op"] == ("documents_get" if own else "get")
    assert (result["category"], result["readOnly"]) == ("ops_query" if own else "query", True)
    assert result["description"] == "Return the given value."
    assert result["paramsSchema"]["required"] == ["hash"]
    assert result["paramsSchema"]["properties"]["depth"] == {"type": "integer", "default": 2}
    result = await client.query({"op": "describe", "params": {"target": "delete"}})
    assert (result["category"], result["readOnly"]) == ("ops_execute" if own else "execute", False)
    result = await client.query({"op": "describe", "params": {"target": "start"}})
    assert (result["category"], result["readOnly"]) == ("documents_session" if own else "session", False)


async def test_describe_of_an_unknown_target_returns_an_answer(client: Client) -> None:
    result = await client.query({"op": "describe", "params": {"target": "nonsense"}})
    assert "nonsense" in result["error"]
    own = "documents_" if client.surface == "all" else ""
    assert {f"{own}search", f"{own}add", "start"} <= set(result["available"])


# every service


async def test_every_operation_is_within_reach_of_three_tools(everything: Client) -> None:
    listed = await everything.query({"op": "describe"})
    assert {"documents_search", "documents_get", "t_pair", "words"} <= set(listed["query_ops"])
    assert {"documents_add", "documents_delete", "t_list", "t_nothing"} <= set(listed["execute_ops"])
    hidden = {"t_inner", "t_operator", "t_page", "t_asks", "ops_query", "ops_execute", "documents_session"}
    assert not hidden & {name for ops in listed.values() for name in ops}
    result = await everything.query({"op": "words"}, {"op": "t_pair", "params": {"text": "$prev[1]"}})
    assert result["steps"][1]["result"]["text"] == "two"


async def test_a_former_name_of_two_operations_is_that_of_the_one_that_is_only_a_step(everything: Client) -> None:
    assert await everything.query({"op": "chats_search"}) == {"result": "the other"}
    assert (await everything.query({"op": "search", "query": "q", "limit": 1}))["total"] == 1
    assert (await everything.query({"op": "documents_search", "query": "q", "limit": 1}))["total"] == 1


def test_two_surfaces_differ_in_what_they_reach() -> None:
    assert "t_pair" not in Steps("documents", TABLE).names()
    assert "t_pair" in Steps("compact", TABLE).names()


async def test_results_that_are_no_objects_are_handled(everything: Client) -> None:
    assert await everything.query({"op": "words"}) == {"result": ["one", "two"]}
    result = await everything.query({"op": "words"}, {"op": "t_string"})
    assert [step["result"] for step in result["steps"]] == [["one", "two"], "red é"]
    done = await everything.tool("execute", operations=[{"op": "t_list"}, {"op": "t_nothing"}])
    assert [r["result"] for r in done["structuredContent"]["results"]] == [[1, 2, 2**60], None]


async def test_content_of_a_single_step_is_content_of_the_tool(everything: Client) -> None:
    result = await everything.tool("query", steps=[{"op": "picture"}])
    assert result["content"] == [{"type": "image", "data": "iVBORw==", "mimeType": "image/png"}]
    assert "structuredContent" not in result
    result = await everything.tool("query", steps=[{"op": "picture", "broken": True}])
    assert result["isError"] is True
    result = await everything.query({"op": "picture"}, {"op": "picture", "broken": True}, {"op": "words"})
    assert result["steps"][0]["result"]["content"][0]["data"] == "iVBORw=="
    assert [step["isError"] for step in result["steps"]] == [False, True]


async def test_an_answer_has_a_bound_and_says_where_it_was_reached(
    everything: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "MAX_BYTES", 1000)
    small = {"op": "words", "size": 600}
    result = await everything.query(small, small, small)
    assert (result["completedSteps"], [s["isError"] for s in result["steps"]]) == (1, [False, True])
    assert "ask for less" in result["steps"][1]["result"]["error"]
    result = await everything.tool("query", steps=[{"op": "words", "size": 1001}])
    assert "ask for less" in result["content"][0]["text"]
    done = await everything.tool("execute", operations=[{"op": "add", "path": "x" * 2000}])
    assert done["isError"] is False
    assert done["structuredContent"]["succeeded"] == 1
    assert "ask for less" in done["structuredContent"]["results"][0]["result_omitted"]


# progress, cancellation, deadlines


async def test_progress_of_steps_is_progress_of_the_call(everything: Client) -> None:
    await everything.query({"op": "t_long"}, {"op": "t_long"})
    progress = [n["params"] for n in everything.notices if n["method"] == "notifications/progress"]
    assert all(p["total"] == 2 for p in progress)
    values = [p["progress"] for p in progress]
    assert values == sorted(set(values))
    assert values[-1] == 1.25
    assert progress[-1]["message"] == "t_long: quarter"
    assert sum(n["method"] == "notifications/message" for n in everything.notices) == 2


async def test_a_single_step_has_its_progress_to_itself(everything: Client) -> None:
    await everything.query({"op": "t_long"})
    progress = [n["params"] for n in everything.notices if n["method"] == "notifications/progress"]
    assert [(p["progress"], p["total"], p["message"]) for p in progress] == [(1, 4, "quarter")]


@pytest.mark.parametrize("modern", [False, True])
async def test_a_cancelled_query_withdraws_the_step_that_runs_and_begins_no_other(modern: bool) -> None:
    async with served("compact") as (wire, dispatcher):
        await (wire.open_modern() if modern else wire.initialize())
        meta = META if modern else None
        await wire.call("query", {"steps": [{"op": "t_long", "wait": True}, {"op": "words"}]}, id=7, meta=meta)
        with trio.fail_after(5):
            await dispatcher.started.wait()
        await wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        with trio.fail_after(5):
            await dispatcher.withdrawn.wait()
        await wire.call("t_string", id=8, meta=meta)
        while "id" not in (message := await wire.receive()):
            continue
        assert message["id"] == 8
        assert dispatcher.cancelled == ["t_long"]
        assert "words" not in dispatcher.calls
