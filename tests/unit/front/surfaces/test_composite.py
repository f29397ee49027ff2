"""The composite tools: all is checked before a step runs, steps see the result before, nothing is cut or lost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import trio

from proto import ops
from proto.mcp import FAILURE as FAILURE_META
from proto.outcomes import per_item
from services.front.composite import answer
from services.front.surfaces.steps import Steps
from tests.unit.front.inprocess import InProcess
from tests.unit.front.steps import TABLE, open_service
from tests.unit.front.wire import META, Wire, connected, gateway_in_process


class Client:
    """A client of one surface; each call is a connection of its own."""

    def __init__(self, surface: str) -> None:
        self.surface = surface
        self.notices: list[dict[str, Any]] = []
        self.calls: list[str] = []

    async def tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The result of a call."""
        async with served(self.surface) as (wire, dispatcher):
            await wire.initialize()
            await wire.call(name, arguments, id=1, meta={"progressToken": "p"})
            while "id" not in (message := await wire.receive()):
                self.notices.append(message)
            self.calls = dispatcher.calls
        result: dict[str, Any] = message["result"]
        return result

    async def query(self, *steps: dict[str, Any]) -> Any:
        """The structured content of a query that must succeed; it is the text, too."""
        result = await self.tool("query", steps=list(steps))
        assert result["isError"] is False, result
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        return result["structuredContent"]

    async def refused(self, name: str, **arguments: Any) -> str:
        """The message of a call that is refused; nothing must have run."""
        result = await self.tool(name, **arguments)
        assert result["isError"] is True, result
        assert self.calls == []
        assert result["_meta"][FAILURE_META]["kind"] == "invalid_params"
        text: str = result["content"][0]["text"]
        return text


@contextlib.asynccontextmanager
async def served(surface: str) -> AsyncIterator[tuple[Wire, InProcess]]:
    async with gateway_in_process(TABLE, open_service) as (gateway, dispatcher), connected(gateway, surface) as wire:
        yield wire, dispatcher


@pytest.fixture(params=["documents", "all"])
def client(request: pytest.FixtureRequest) -> Client:
    return Client(request.param)


@pytest.fixture
def everything() -> Client:
    return Client("compact")


GOOD = {"op": "search", "params": {"query": "a"}}


async def test_one_step_answers_its_own_result(client: Client) -> None:
    result = await client.query({"op": "search", "params": {"query": "a", "limit": 1}})
    assert result == {"total": 1, "results": [{"hash": "a-0", "score": 1.0, "raw": "AA=="}]}


async def test_several_steps_answer_each_result_in_order(client: Client) -> None:
    result = await client.query(GOOD, {"op": "get", "params": {"hash": "$prev.results[1].hash"}})
    assert [(s["stepIndex"], s["op"], s["isError"]) for s in result["steps"]] == [
        (0, "search", False),
        (1, "get", False),
    ]
    assert (result["totalSteps"], result["completedSteps"]) == (2, 2)
    assert result["steps"][1]["result"]["hash"] == "a-1"


async def test_a_failing_step_ends_the_pipeline_and_completed_steps_says_where(client: Client) -> None:
    result = await client.query(GOOD, {"op": "grep", "params": {"pattern": "x"}}, GOOD)
    assert [s["isError"] for s in result["steps"]] == [False, True]
    assert result["steps"][1]["result"]["error"] == "no match for x"
    assert result["steps"][1]["result"]["failure"]["kind"] == "operation"
    assert (result["totalSteps"], result["completedSteps"]) == (3, 1)


async def test_a_single_step_that_fails_is_an_error_of_the_tool(client: Client) -> None:
    result = await client.tool("query", steps=[{"op": "grep", "params": {"pattern": "x", "maybe": True}}])
    assert result["isError"] is True
    assert "may have been done" in result["content"][0]["text"]
    assert result["_meta"][FAILURE_META]["kind"] == "maybe_executed"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "missing required parameter `steps`"),
        ({"steps": []}, "length >= 1"),
        ({"steps": {"op": "search"}}, "expected `array`"),
        ({"steps": None}, "expected `array`"),
        ({"steps": "search"}, "expected `array`"),
        ({"steps": [5]}, "`steps[0]`: expected `object`"),
        ({"steps": [GOOD, {}]}, "steps[1]: missing required parameter `op`"),
        ({"steps": [GOOD, {"op": None}]}, "steps[1]: missing required parameter `op`"),
        ({"steps": [{"op": 5}]}, "steps[0].op: expected the name of an op"),
        ({"steps": [GOOD, {"op": "serach"}]}, "steps[1].op: unknown op `serach`"),
        ({"steps": [GOOD, {"op": "add", "params": {"path": "x"}}]}, "call it in `execute`"),
        ({"steps": [{"op": "session.start"}]}, "action of the tool `session`"),
        ({"steps": [{"op": "query"}]}, "`query` is a tool, which cannot be a step"),
        ({"steps": [{"op": "search", "params": []}]}, "steps[0].params: expected an object"),
        ({"steps": [{"op": "search", "params": "$prev"}]}, "steps[0].params: expected an object"),
        ({"steps": [GOOD, {"op": "search"}]}, "steps[1] (search): missing required parameter `query`"),
        ({"steps": [GOOD, {"op": "search", "params": {"query": 5}}]}, "steps[1] (search): parameter `query`"),
        ({"steps": [GOOD, {"op": "search", "query": "x", "limit": 0}]}, "steps[1] (search): parameter `limit`"),
        ({"steps": [GOOD, {"op": "search", "params": {"query": "x", "colour": 1}}]}, "unknown parameter `colour`"),
        # What a reference will give is not known yet; all else is.
        ({"steps": [GOOD, {"op": "get", "params": {"hash": "$prev.x", "depth": "deep"}}]}, "parameter `depth`"),
        ({"steps": [GOOD, {"op": "get", "params": {"depth": "$prev.total"}}]}, "missing required parameter `hash`"),
        ({"steps": [GOOD, {"op": "get", "params": {"hash": "a", "colour": "$prev"}}]}, "unknown parameter `colour`"),
        ({"steps": [{"op": "get", "hash": "$prev.hash"}, GOOD]}, "has nothing for `hash` ($prev.hash)"),
        ({"steps": [{"op": "get", "hash": "$prev.hash"}]}, "steps[0] (get): missing required parameter `hash`"),
        (
            {"steps": [{"op": "get", "hash": "a", "output_path": "b", "outputPath": "c"}]},
            "the same parameter, given twice",
        ),
        ({"steps": [GOOD], "colour": 1}, "unknown parameter `colour`"),
        ({"steps": [GOOD] * 101}, "length <= 100"),
    ],
)
async def test_a_wrong_pipeline_is_refused_before_any_step_runs(
    client: Client, arguments: dict[str, Any], said: str
) -> None:
    assert said in await client.refused("query", **arguments)


@pytest.mark.parametrize(
    ("given", "received"),
    [
        ("$prev", {"total": 2, "results": [{"hash": "a-0", "score": 1.0, "raw": "AA=="},
                                           {"hash": "a-1", "score": 0.5, "raw": "AA=="}]}),
        ("$prev.results[1]", {"hash": "a-1", "score": 0.5, "raw": "AA=="}),
        ({"nested": "$prev.total", "list": ["$prev"]}, {"nested": "$prev.total", "list": ["$prev"]}),
    ],
)  # fmt: skip
async def test_a_reference_keeps_its_type_and_nested_text_is_left_alone(
    client: Client, given: object, received: object
) -> None:
    step = {"op": "get", "params": {"hash": "h", "options": given}}
    result = await client.query({"op": "search", "query": "a", "limit": 2}, step)
    assert result["steps"][1]["result"]["options"] == received


async def test_text_around_a_reference_is_left_alone_and_numbers_stay_numbers(client: Client) -> None:
    step = {"op": "get", "hash": "see $prev.total", "depth": "$prev.total"}
    result = await client.query({"op": "search", "query": "a", "limit": 7}, step)
    assert result["steps"][1]["result"]["hash"] == "see $prev.total"
    assert result["steps"][1]["result"]["depth"] == 7


@pytest.mark.parametrize(
    "reference",
    ["$prev.nothing", "$prev.results[99].hash", "$prev.results[-1].hash", "$prev.results.hash", "$prev.total[0]",
     "$prev[0]", "$previous", "$prev.", "$prev.results[", "$prev.results[x]", "$prev.results[0]hash"],
)  # fmt: skip
async def test_unresolvable_references_count_as_absent(client: Client, reference: str) -> None:
    result = await client.query(GOOD, {"op": "get", "params": {"hash": "h", "depth": reference}})
    assert result["steps"][1]["result"]["depth"] == 2
    result = await client.query(GOOD, {"op": "get", "params": {"hash": reference}})
    assert result["completedSteps"] == 1
    said = result["steps"][1]["result"]["error"]
    assert "missing required parameter `hash`" in said
    assert reference in said


async def test_on_the_first_step_prev_is_an_empty_object(client: Client) -> None:
    result = await client.query({"op": "get", "params": {"hash": "h", "options": "$prev", "depth": "$prev.depth"}})
    assert (result["options"], result["depth"]) == ({}, 2)


async def test_null_counts_as_absent_unless_it_is_a_valid_value(client: Client) -> None:
    result = await client.query({"op": "get", "params": {"hash": "h", "depth": None, "output_path": None}})
    assert (result["depth"], result["outputPath"]) == (2, None)


@pytest.mark.parametrize("step", [
    {"op": "get", "params": {"hash": "h", "includeContent": True, "output_path": "p"}},
    {"op": "get", "hash": "h", "include_content": True, "outputPath": "p"},
    {"op": "get", "hash": "lost", "outputPath": "p", "includeContent": False,
     "params": {"hash": "h", "include_content": True}},
    {"op": "get", "hash": "h", "outputPath": "p", "output_path": "p", "includeContent": True},
])  # fmt: skip
async def test_both_spellings_and_keys_beside_op_are_understood(client: Client, step: dict[str, Any]) -> None:
    result = await client.query(step)
    assert (result["hash"], result["include_content"], result["outputPath"]) == ("h", True, "p")


# execute


STEP = {"op": "get", "params": {"hash": "h", "depth": 3}}


@pytest.mark.parametrize(
    "steps",
    [
        json.dumps([STEP]),
        [json.dumps(STEP)],
        [{"op": "get", "params": json.dumps(STEP["params"])}],
        [{"op": "get", "params": '{"hash": "h", "depth": "3"}'}],
        [{"op": "get", "params": {"hash": "h", "depth": "3", "include_content": None, "options": None}}],
        [{"op": "get", "depth": 3, "hash": "h", "params": {"depth": None}}],
        [{"op": "get", "depth": "3", "hash": "h", "params": None}],
    ],
)
async def test_steps_are_understood_as_models_write_them(client: Client, steps: object) -> None:
    result = await client.tool("query", steps=steps, max_tokens=None)
    assert result["isError"] is False, result
    assert result["structuredContent"] == await client.query(STEP)


async def test_a_batch_is_understood_as_models_write_it(client: Client) -> None:
    changes = json.dumps([{"op": "delete", "params": '{"name": "nothing"}'}, {"op": "add", "params": {"path": "a"}}])
    result = await client.tool("execute", operations=changes, continueOnError="true")
    assert (result["structuredContent"]["succeeded"], result["structuredContent"]["failed"]) == (1, 1)
    result = await client.tool("session", action="start", params='{"label": "x"}')
    assert result["isError"] is False, result


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("[", "parameter `steps`: expected `array`, got `string`"),
        ("get", "parameter `steps`: expected `array`, got `string`"),
        (json.dumps(STEP), "parameter `steps`: expected `array`, got `string`"),
        ([{"op": "get", "params": "{"}], "steps[0].params: expected an object"),
        ([{"op": "get", "params": {"hash": "h", "depth": "3.5"}}], "parameter `depth`: expected `integer`"),
        ([{"op": "get", "params": {"hash": None}}], "hash"),
    ],
)
async def test_text_that_is_not_valid_json_is_refused_by_its_field(client: Client, steps: object, said: str) -> None:
    assert said in await client.refused("query", steps=steps)


async def test_a_batch_is_done_in_order(client: Client) -> None:
    operations = [{"op": "add", "params": {"path": "a", "mime_type": "text/plain"}}, {"op": "add", "path": "$prev.x"}]
    result = await client.tool("execute", operations=operations)
    assert result["isError"] is False
    assert result["structuredContent"] == {
        "results": [
            {"op": "add", "success": True, "hash": "sha256-a", "mime": "text/plain", "added": 1},
            {"op": "add", "success": True, "hash": "sha256-$prev.x", "mime": "", "added": 2},
        ],
        "totalOps": 2,
        "succeeded": 2,
        "failed": 0,
    }
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]


@pytest.mark.parametrize("name", ["gone", "said"])
async def test_a_batch_stops_at_the_first_failure_unless_it_is_to_go_on(client: Client, name: str) -> None:
    operations = [{"op": "delete", "params": {"name": name}}, {"op": "add", "params": {"path": "a"}}]
    result = await client.tool("execute", operations=operations)
    content = result["structuredContent"]
    assert result["isError"] is True
    assert json.loads(result["content"][0]["text"]) == content
    assert [r["success"] for r in content["results"]] == [False]
    assert (content["totalOps"], content["succeeded"], content["failed"]) == (2, 0, 1)
    if name == "gone":
        assert content["results"][0]["error"] == "nothing is called gone"
    for spelling in ("continueOnError", "continue_on_error"):
        result = await client.tool("execute", operations=operations, **{spelling: True})
        assert result["isError"] is True
        assert [r["success"] for r in result["structuredContent"]["results"]] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "missing required parameter `operations`"),
        ({"operations": []}, "length >= 1"),
        (
            {"operations": [{"op": "add", "path": "a"}, {"op": "add"}]},
            "operations[1] (add): missing required parameter",
        ),
        (
            {"operations": [{"op": "add", "path": "a"}, {"op": "delete", "name": "b", "also": "b"}]},
            "operations[1] (delete): parameters `name` and `also`: twice the same",
        ),
        ({"operations": [{"op": "add", "path": "a"}, {"op": "ad"}]}, "operations[1].op: unknown op `ad`"),
        (
            {"operations": [{"op": "add", "path": "a"}, GOOD]},
            "operations[1].op: `search` only reads: call it in `query`",
        ),
        ({"operations": [{"op": "add", "path": "a"}], "continueOnError": "yes"}, "continueOnError"),
    ],
)
async def test_a_wrong_batch_is_refused_before_anything_is_done(
    client: Client, arguments: dict[str, Any], said: str
) -> None:
    assert said in await client.refused("execute", **arguments)


async def test_a_result_with_names_of_the_entry_is_kept_whole(client: Client) -> None:
    result = await client.tool("execute", operations=[{"op": "add", "params": {"path": "a", "op": "other"}}])
    assert result["structuredContent"]["results"] == [
        {"op": "add", "success": True, "result": {"op": "other", "path": "a"}}
    ]


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
        "query_ops": ["search", "get", "grep", "describe"],
        "execute_ops": ["add", "delete", "move"],
        "session_ops": ["start"],
    }


async def test_describe_answers_one_op_in_full(client: Client) -> None:
    result = await client.query({"op": "describe", "params": {"target": "get"}})
    assert (result["op"], result["category"], result["readOnly"]) == ("get", "query", True)
    assert result["description"] == "Return the given value."
    assert result["paramsSchema"]["required"] == ["hash"]
    assert result["paramsSchema"]["properties"]["depth"] == {"type": "integer", "default": 2}
    result = await client.query({"op": "describe", "params": {"target": "delete"}})
    assert (result["category"], result["readOnly"]) == ("execute", False)
    result = await client.query({"op": "describe", "params": {"target": "start"}})
    assert (result["category"], result["readOnly"]) == ("session", False)


async def test_describe_of_an_unknown_target_returns_an_answer(client: Client) -> None:
    result = await client.query({"op": "describe", "params": {"target": "nonsense"}})
    assert "nonsense" in result["error"]
    assert {"search", "add", "start"} <= set(result["available"])


# every service


async def test_every_operation_is_within_reach_of_three_tools(everything: Client) -> None:
    listed = await everything.query({"op": "describe"})
    assert {"search", "get", "t_pair", "words", "mcp.echo" if "mcp.echo" in TABLE else "words"} <= set(
        listed["query_ops"]
    )
    assert {"add", "delete", "t_list", "t_nothing"} <= set(listed["execute_ops"])
    hidden = {"t_inner", "t_operator", "t_page", "t_asks", "query", "execute", "session"}
    assert not hidden & {name for ops in listed.values() for name in ops}
    result = await everything.query({"op": "words"}, {"op": "t_pair", "params": {"text": "$prev[1]"}})
    assert result["steps"][1]["result"]["text"] == "two"


async def test_on_a_name_clash_the_step_keeps_the_short_name(everything: Client) -> None:
    listed = await everything.query({"op": "describe"})
    assert "test_search" in listed["query_ops"]
    assert await everything.query({"op": "test_search"}) == {"result": "the other"}
    # The full name of an operation is understood wherever every operation is.
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


@pytest.mark.parametrize(
    ("names", "success", "error", "counts"),
    [
        (["a", "b"], True, None, (1, 0, None)),
        (["a", ".b", ".c"], True, "2 of 3 items failed; see `reasons`", (0, 0, 1)),
        ([".a", ".b"], False, "2 of 2 items failed; see `reasons`", (0, 1, None)),
        ([".a"], False, "1 of 1 item failed; see `reasons`", (0, 1, None)),
        ([], True, None, (1, 0, None)),
    ],
)
async def test_an_operation_without_a_successful_item_has_failed(
    client: Client, names: list[str], success: bool, error: str | None, counts: tuple[int, int, int | None]
) -> None:
    result = await client.tool("execute", operations=[{"op": "move", "params": {"names": names}}])
    content = result["structuredContent"]
    assert (content["succeeded"], content["failed"], content.get("partlyFailed")) == counts
    assert result["isError"] is not success
    (entry,) = content["results"]
    assert (entry["success"], entry.get("error")) == (success, error)
    assert len(entry["kept"]) == sum(name.startswith(".") for name in names)


async def test_a_failed_operation_on_items_ends_the_batch_and_a_partly_failed_one_does_not(client: Client) -> None:
    def moves(*names: str) -> dict[str, Any]:
        return {"op": "move", "params": {"names": names}}

    result = await client.tool("execute", operations=[moves("a", ".b"), moves(".c"), moves("d")])
    content = result["structuredContent"]
    assert [entry["success"] for entry in content["results"]] == [True, False]
    assert (content["totalOps"], content["succeeded"], content["failed"], content["partlyFailed"]) == (3, 0, 1, 1)


CHANGES = ("delete-files", "move-files", "rename-files", "restore-files", "empty-trash")


def test_results_that_count_items_declare_members_that_exist() -> None:
    declared = [each for each in ops.load().values() if per_item(each.result) is not None]
    assert {*CHANGES, "documents_add", "documents_put_commit"} == {each.name for each in declared}
    for each in declared:
        found = per_item(each.result)
        assert found is not None
        members = {field.encode_name for field in msgspec.structs.fields(each.result)}
        assert {*found.done, found.failed, found.details} <= members
