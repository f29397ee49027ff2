"""The composite tool `execute`: all is checked before anything is done, and every failure is counted."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from proto import ops
from proto.outcomes import per_item
from tests.unit.front.surfaces.composite import GOOD, Client


async def test_a_batch_is_understood_as_models_write_it(client: Client) -> None:
    changes = json.dumps([{"op": "delete", "params": '{"name": "nothing"}'}, {"op": "add", "params": {"path": "a"}}])
    result = await client.tool("execute", operations=changes, continueOnError="true")
    assert (result["structuredContent"]["succeeded"], result["structuredContent"]["failed"]) == (1, 1)
    result = await client.tool("session", action="start", params='{"label": "x"}')
    assert result["isError"] is False, result


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


CHANGES = (
    "files_copy", "files_delete", "files_move", "files_rename", "folders_create", "trash_restore", "trash_empty",
)  # fmt: skip


def test_results_that_count_items_declare_members_that_exist() -> None:
    declared = [each for each in ops.load().values() if per_item(each.result) is not None]
    assert {*CHANGES, "documents_add", "documents_put_commit"} == {each.name for each in declared}
    for each in declared:
        found = per_item(each.result)
        assert found is not None
        members = {field.encode_name for field in msgspec.structs.fields(each.result)}
        assert {*found.done, found.failed, found.details} <= members
