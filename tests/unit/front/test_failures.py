"""Failures as clients read them: what happened, whether it may have been done, when to try again; never a traceback."""

from __future__ import annotations

import ast
import json
import re
from itertools import product
from pathlib import Path

import pytest

from proto import errors
from proto.errors import Executed, Failure, Kind
from services.front.protocol.failures import message_of
from tests.unit.front.operations import How
from tests.unit.front.wire import connected, gateway_in_process

TEXTS = {
    How.INVALID: "`how` is not to the handler's liking",
    How.UNAVAILABLE: "service test is starting. Nothing was done. Try again in 2.5 s.",
    How.OVERLOADED: "the queue of service test is full. Nothing was done. Try again in 100 ms.",
    How.TIMEOUT: "no answer within 1 s. The work may have been done: check before you repeat it.",
    How.MAYBE: "service test died with the call in flight. The work may have been done: check before you repeat it.",
    How.OPERATION: "no such file: x",
    How.INTERNAL: "a defect in service test. The work may have been done: check before you repeat it.",
}


@pytest.mark.parametrize("how", list(How))
async def test_a_failure_says_what_the_model_needs_to_know(how: How) -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize()
        await wire.call("t_fail", {"how": how.value})
        answer = await wire.receive()
        result = answer["result"]
        assert result["isError"] is True
        text = result["content"][0]["text"]
        assert "secret" not in json.dumps(answer)
        assert "Traceback" not in json.dumps(answer)
        if how in TEXTS:
            assert text == TEXTS[how]
        failure = result["_meta"]["linckia/failure"]
        assert set(failure) >= {"kind", "executed"}
        assert failure.get("retryAfterMs") == {How.UNAVAILABLE: 2500, How.OVERLOADED: 100}.get(how)


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (How.INVALID, -32602),
        (How.OPERATION, -32002),
        (How.UNAVAILABLE, -32603),
        (How.DEFECT, -32603),
        (How.MAYBE, -32603),
    ],
)
async def test_an_operation_with_codes_answers_errors_of_the_protocol(how: How, code: int) -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize()
        await wire.call("t_fail_coded", {"how": how.value})
        error = (await wire.receive())["error"]
        assert error["code"] == code
        assert set(error["data"]) >= {"kind", "executed"}
        assert "secret" not in json.dumps(error)


async def test_invalid_parameters_of_an_operation_with_codes_name_the_field() -> None:
    async with gateway_in_process() as (gateway, dispatcher), connected(gateway) as wire:
        await wire.initialize()
        await wire.call("t_fail_coded", {"how": 5})
        error = (await wire.receive())["error"]
        assert error["code"] == -32602
        assert error["data"]["field"] == "how"
        assert "how" in error["message"]
        assert dispatcher.calls == []


DONE = {
    "Nothing was done.": Executed.NO,
    "The work may have been done": Executed.MAYBE,
    "The work was done.": Executed.YES,
}


@pytest.mark.parametrize(("kind", "executed", "retry_ms"), [*product(Kind, Executed, (None, 500))])
def test_a_message_says_at_most_once_whether_the_work_was_done(
    kind: Kind, executed: Executed, retry_ms: int | None
) -> None:
    text = message_of(Failure(kind=kind, message="it failed", executed=executed, retry_after_ms=retry_ms))
    said = [each for statement, each in DONE.items() if statement in text]
    assert said in ([], [executed])
    assert "safe to try again" not in text or executed is Executed.NO
    if kind in (Kind.TIMEOUT, Kind.MAYBE_EXECUTED, Kind.CANCELLED, Kind.UNAVAILABLE, Kind.OVERLOADED):
        assert said


_SAYS = re.compile(r"(been|was|were) (executed|done|run)\b|may (have|not have) run|safe to try", re.IGNORECASE)
_OWN = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, errors.LinckiaError)}


def test_no_error_says_itself_whether_the_work_was_done() -> None:
    # Whether it was is corrected on the way, for operations that only read. Only those that are not explained say so.
    explained = _OWN - {"OperationError", "InvalidParams", "Forbidden", "UnknownOperation"}
    root, found = Path(errors.__file__).parents[1], []
    for path in (each for part in ("proto", "kernel", "services") for each in (root / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in explained and node.args:
                texts = [each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)]
                if _SAYS.search(" ".join(str(each) for each in texts)):
                    found.append(f"{path.relative_to(root)}:{node.lineno}")
    assert found == []
