"""Results on Linckia's own surfaces have no members that say nothing; those of other programs keep them."""

from __future__ import annotations

from typing import Annotated, Any

import jsonschema
import msgspec
import pytest
from msgspec import Raw

from proto import ops
from proto.operation import Operation, Params, SaidIfAny, SaidToPrograms
from services.front.composite.run import query
from services.front.operations.steps import Query
from services.front.protocol.calls import encoded_tool_result, tool_result
from services.front.surfaces import schemas
from services.front.surfaces.steps import Steps
from services.front.surfaces.surface import Surface, output_schema
from services.front.terse import Terse, terse
from tests.unit.front.surfaces.test_listings import clients, examples

TABLE = ops.load()

GREPPED: dict[str, Any] = {
    "match_count": 1, "file_count": 1, "files": None, "counts": None, "counts_left_out": 0, "truncated": False,
    "next_cursor": None, "searched": 1, "execution_time_ms": 0.4, "degraded": [],
    "matches": [
        {
            "file": "/a.md", "hash": "ab", "line_number": 1, "column": 1, "line_text": "", "context_before": [],
            "context_after": ["next"],
        }
    ],
}  # fmt: skip
SAID = {
    "match_count": 1, "file_count": 1, "searched": 1,
    "matches": [{"file": "/a.md", "line_number": 1, "line_text": "",
                 "context_after": ["next"]}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("surface", "shown"), [("all", SAID), ("core", SAID), ("compact", SAID), ("documents", GREPPED)]
)
async def test_members_that_say_nothing_are_left_out_on_our_own_surfaces(surface: str, shown: object) -> None:
    op = TABLE["documents_grep"]
    params, made = op.parse({"pattern": "x"}), Surface(surface, TABLE)
    result = tool_result(made, op, params, GREPPED)
    assert result["structuredContent"] == shown
    assert msgspec.json.decode(result["content"][0]["text"]) == shown
    # The fast path and JSON that a service wrote give the same.
    for value in (GREPPED, Raw(msgspec.json.encode(GREPPED))):
        encoded = await encoded_tool_result(op, params, value, b"", bounds=made.bounds(op), terse=made.terse(op))
        assert msgspec.json.decode(encoded) == result


class Inner(msgspec.Struct, kw_only=True):
    name: str
    note: str = ""
    level: int = 1
    flag: bool = True


class Outer(msgspec.Struct, kw_only=True, rename="camel"):
    value: Any
    free_form: dict[str, Any]
    maybe: int | None
    inner: Inner | None = None
    many: list[Inner] = []
    by_name: dict[str, Inner] = {}
    one_or_text: Inner | str = ""
    count: int = 0
    anything: Any = None
    least: float = 0.0
    taken_ms: Annotated[float, SaidToPrograms] = 1.0
    later: Annotated[list[str], SaidIfAny]


class _Outer(Params[Outer], frozen=True, kw_only=True):
    pass


def made_terse() -> Terse:
    op: Operation[Any] = msgspec.structs.replace(TABLE["mcp_echo"], params=_Outer, result=Outer)
    made = terse(op)
    assert made is not None
    return made


@pytest.mark.parametrize("as_json", [False, True])
def test_only_what_the_declared_type_says_is_empty_is_left_out(as_json: bool) -> None:
    inner = {"name": "", "note": "", "level": 1, "flag": True}
    value: dict[str, Any] = {
        "value": None, "freeForm": {"a": None, "b": []}, "maybe": None, "inner": inner, "many": [inner],
        "byName": {"x": inner}, "oneOrText": inner, "count": 0, "anything": None, "takenMs": 3.0, "later": [],
    }  # fmt: skip
    said = {"name": "", "level": 1, "flag": True}
    result = msgspec.json.decode(
        msgspec.json.encode(made_terse()(Raw(msgspec.json.encode(value)) if as_json else value))
    )
    # A null or an empty list that a client or file supplied is content; so is a default that is not empty.
    assert result == {
        "value": None, "freeForm": {"a": None, "b": []}, "inner": said, "many": [said], "byName": {"x": said},
        "oneOrText": said, "anything": None,
    }  # fmt: skip


@pytest.mark.parametrize("as_json", [False, True])
def test_members_that_say_something_stay(as_json: bool) -> None:
    value: dict[str, Any] = {
        "value": 0, "freeForm": {}, "maybe": 0, "oneOrText": "text", "count": 2, "anything": False, "least": 0.5,
        "later": ["x"],
    }  # fmt: skip
    given = Raw(msgspec.json.encode(value)) if as_json else value
    assert msgspec.json.decode(msgspec.json.encode(made_terse()(given))) == value


@pytest.mark.parametrize("op", [op for op in clients(TABLE) if op.output_schema], ids=lambda op: op.name)
def test_terse_results_are_parts_of_the_whole_and_match_the_listed_schema(op: Operation[object]) -> None:
    assert op.output_schema is not None
    listed = output_schema(op, "all")
    assert listed is not None
    full = jsonschema.Draft202012Validator(schemas.terse(op.output_schema))
    for value in examples(op.output_schema, op.output_schema.get("$defs", {}), 0):
        whole = value["result"] if op.wraps_result else value
        encoded = msgspec.json.encode(whole)
        try:
            op.decoders[1](Raw(encoded))
        except msgspec.DecodeError:
            # Schemas say less than types.
            continue
        made = terse(op)
        short = whole if made is None else msgspec.json.decode(msgspec.json.encode(made(whole)))
        if made is not None:
            assert short == msgspec.json.decode(msgspec.json.encode(made(Raw(encoded))))
        is_part(short, whole)
        shown = {"result": short} if op.wraps_result else short
        jsonschema.validate(shown, listed)
        full.validate(shown)


def is_part(short: Any, whole: Any) -> None:
    """Check that only empty members, and those for programs, are missing."""
    if isinstance(whole, dict):
        assert short.keys() <= whole.keys()
        for name, value in whole.items():
            if name in short:
                is_part(short[name], value)
            else:
                assert not value or name in {"execution_time_ms", "id", "name", "extension", "column", "hash"}
    elif isinstance(whole, list):
        assert len(short) == len(whole)
        for a, b in zip(short, whole, strict=True):
            is_part(a, b)
    else:
        assert short == whole


def test_results_without_such_members_are_not_touched() -> None:
    assert terse(TABLE["mcp_echo"]) is None
    assert terse(TABLE["yaml_get"]) is None


@pytest.mark.parametrize(("surface", "is_terse"), [("all", True), ("documents", False)])
async def test_steps_are_terse_too_but_the_next_step_sees_the_whole_result(surface: str, is_terse: bool) -> None:
    seen: list[Any] = []

    async def call(
        operation: Operation[object], arguments: Params[object], own: object, key: str | None = None
    ) -> object:
        seen.append(arguments)
        return GREPPED if operation.name == "documents_grep" else {"documents": [], "paths": None, "truncated": False}

    grep, listing = ("documents_grep", "documents_list") if is_terse else ("grep", "list")
    steps = [
        {"op": grep, "params": {"pattern": "x"}},
        {
            "op": listing,
            "params": {"tags": "$prev.degraded", "collection": "$prev.next_cursor", "limit": "$prev.searched"},
        },
    ]
    answer: Any = (await query(Query(steps=steps), Steps(surface, TABLE), call, None, is_terse=is_terse)).plain()
    assert answer["steps"][0]["result"] == (SAID if is_terse else GREPPED)
    assert ("truncated" in answer["steps"][1]["result"]) is not is_terse
    assert (seen[1].tags, seen[1].collection, seen[1].limit) == ([], None, 1)
    alone: Any = (await query(Query(steps=[steps[0]]), Steps(surface, TABLE), call, None, is_terse=is_terse)).plain()
    assert alone == (SAID if is_terse else GREPPED)
