"""Completion: from listed values, or from the operation that completes."""

from __future__ import annotations

from typing import Any

import pytest

from proto import ops
from services.front.protocol.completion import completion_result, listed_values
from tests.conformance.main import open_service
from tests.unit.front.operations import TABLE
from tests.unit.front.wire import connected, gateway_in_process


def test_values_are_found_in_enums_references_and_unions() -> None:
    operation = TABLE["t_string"]
    schema = operation.input_schema
    assert listed_values(schema["properties"]["colour"], schema.get("$defs", {})) == ["blue", "red", "rose"]
    assert listed_values({"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, {}) == ["a"]
    assert listed_values({"type": "string"}, {}) == []


def test_an_answer_has_at_most_a_hundred_values_and_says_how_many_there_are() -> None:
    result = completion_result([str(n) for n in range(150)])["completion"]
    assert (len(result["values"]), result["total"], result["hasMore"]) == (100, 150, True)


@pytest.mark.parametrize(
    ("ref", "argument", "values"),
    [
        ({"type": "ref/prompt", "name": "test_prompt_with_arguments"}, "arg1", ["paris", "park", "party"]),
        ({"type": "ref/resource", "uri": "test://template/{id}/data"}, "id", ["paris", "park", "party"]),
        ({"type": "ref/prompt", "name": "test_prompt_with_embedded_resource"}, "resourceUri", []),
        ({"type": "ref/prompt", "name": "nobody"}, "arg1", None),
        ({"type": "ref/prompt", "name": "test_prompt_with_arguments"}, "arg9", None),
    ],
)
async def test_an_argument_is_completed_with_the_names_its_operation_returns(
    ref: dict[str, Any], argument: str, values: list[str] | None
) -> None:
    table = ops.load(["tests.conformance.operations"])
    async with gateway_in_process(table, open_service) as (gateway, _), connected(gateway) as wire:
        await wire.initialize()
        params = {"ref": ref, "argument": {"name": argument, "value": "par"}}
        await wire.send({"jsonrpc": "2.0", "id": 1, "method": "completion/complete", "params": params})
        answer = await wire.receive()
        if values is None:
            assert answer["error"]["code"] == -32602
        else:
            assert answer["result"]["completion"]["values"] == values
