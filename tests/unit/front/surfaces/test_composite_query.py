"""The composite tool `query`: all is checked before a step runs, and steps see the result before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proto.mcp import FAILURE as FAILURE_META
from tests.unit.front.surfaces.composite import GOOD, Client


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


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("$prev.totl", "; `$prev` has: total, results"),
        ("$prev.result[0].hash", "; `$prev` has: results, total"),
        ("$prev.results[99].hash", "; `$prev.results` has 10 items"),
        ("$prev.results[1].hsh", "; `$prev.results[1]` has: hash, score, raw"),
        ("$prev.total.x", "; `$prev.total` is a number or boolean"),
        ("$prev.results[0].hash.x", "; `$prev.results[0].hash` is a text"),
    ],
)
async def test_a_reference_to_nothing_is_told_what_exists(client: Client, reference: str, said: str) -> None:
    result = await client.query(GOOD, {"op": "get", "params": {"hash": reference}})
    error = result["steps"][1]["result"]["error"]
    assert error.endswith(f"the last step's result has nothing for `hash` ({reference}){said}")


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
