"""Arguments as models write them are accepted if their meaning is certain, and refused by name otherwise."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, inspect

from proto import ops
from proto.errors import InvalidParams
from proto.lenient import converted
from proto.operation import CLIENT, Params
from proto.validation import respelled, validate

TABLE = ops.load()


class Order(enum.StrEnum):
    UP = "up"


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    depth: int = 1
    names: list[str] = []
    next: Inner | None = None


class Cut(msgspec.Struct, frozen=True, tag="cut", tag_field="op"):
    at: int
    note: str = ""


class Join(msgspec.Struct, frozen=True, tag="join", tag_field="op"):
    ids: list[int]


class Everything(Params[None], frozen=True, kw_only=True):
    text: str = "kept"
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    share: float = 0.5
    flag: bool = False
    order: Order = Order.UP
    mode: Literal["a", "b"] = "a"
    moment: str | float | None = None
    names: list[str] = msgspec.field(default_factory=lambda: ["x"])
    numbers: list[int] = msgspec.field(default_factory=list)
    inner: Inner = Inner(depth=3)
    inners: list[Inner] = msgspec.field(default_factory=list)
    edits: list[Cut | Join] = msgspec.field(default_factory=list)
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    by_name: dict[str, int] = msgspec.field(default_factory=dict)
    levels: int | None = 1
    most: Annotated[int, Meta(ge=1, description="Absent: all")] | None = None
    tags: Annotated[list[int], Meta(min_length=1, description="Absent: any")] | None = None
    job: int | str = 0


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        # Null is as if it were not there, at every depth.
        ({"text": None, "limit": None, "share": None, "flag": None, "order": None, "mode": None}, {}),
        ({"names": None, "inner": None, "data": None, "by_name": None, "edits": None}, {}),
        ({"inner": {"depth": None, "names": None}}, {"inner": {}}),
        ({"inner": {"next": {"depth": None}}}, {"inner": {"next": {}}}),
        ({"inners": [{"depth": None}, {"names": None, "depth": 4}]}, {"inners": [{}, {"depth": 4}]}),
        ({"edits": [{"op": "cut", "at": 1, "note": None}]}, {"edits": [{"op": "cut", "at": 1}]}),
        # Numbers and booleans as text.
        ({"limit": "5"}, {"limit": 5}),
        ({"most": "5", "tags": "[1, 2]"}, {"most": 5, "tags": [1, 2]}),
        ({"most": "7.0", "tags": ["1", "2"]}, {"most": 7, "tags": [1, 2]}),
        ({"limit": " 5 "}, {"limit": 5}),
        ({"limit": "5.0"}, {"limit": 5}),
        ({"share": "0.25"}, {"share": 0.25}),
        ({"share": "1"}, {"share": 1}),
        ({"share": "-2.5e-1"}, {"share": -0.25}),
        ({"flag": "true"}, {"flag": True}),
        ({"flag": "False"}, {"flag": False}),
        ({"limit": "null"}, {}),
        ({"numbers": ["1", 2, "-3"]}, {"numbers": [1, 2, -3]}),
        ({"by_name": {"a": "7"}}, {"by_name": {"a": 7}}),
        # Lists and objects as JSON text, with nested conversions.
        ({"names": '["a", "b"]'}, {"names": ["a", "b"]}),
        ({"names": "[]"}, {"names": []}),
        ({"numbers": '["1", 2]'}, {"numbers": [1, 2]}),
        ({"inner": '{"depth": "4", "names": null}'}, {"inner": {"depth": 4}}),
        ({"inners": '[{"depth": 2}]'}, {"inners": [{"depth": 2}]}),
        ({"inners": ['{"depth": 2}']}, {"inners": [{"depth": 2}]}),
        ({"edits": '[{"op": "cut", "at": "3"}, {"op": "join", "ids": "[1]"}]'},
         {"edits": [{"op": "cut", "at": 3}, {"op": "join", "ids": [1]}]}),
        ({"data": '{"a": null, "b": "5"}'}, {"data": {"a": None, "b": "5"}}),
        # Values that already fit are unchanged.
        ({"limit": "5", "moment": "5", "text": "5", "data": {"x": 5.0}},
         {"limit": 5, "moment": "5", "text": "5", "data": {"x": 5.0}}),
    ],
)  # fmt: skip
def test_unambiguous_values_are_converted(sent: dict[str, Any], meant: dict[str, Any]) -> None:
    parsed = validate(Everything, sent)
    assert parsed == validate(Everything, meant)
    # 5 and 5.0 are equal in Python, but not in JSON.
    assert msgspec.json.encode(parsed) == msgspec.json.encode(validate(Everything, meant))


@pytest.mark.parametrize(
    "sent",
    [
        {"text": "5"}, {"text": "true"}, {"text": "null"}, {"text": "[1]"}, {"moment": "1700000000"},
        {"names": ["1", "null", "[]"]}, {"job": "12"}, {"mode": "a"}, {"data": {"a": "5", "b": None, "c": "[1]"}},
    ],
)  # fmt: skip
def test_text_that_may_be_intended_is_never_converted(sent: dict[str, Any]) -> None:
    (name,) = sent
    assert getattr(validate(Everything, sent), name) == sent[name]
    # Also when another argument is converted.
    assert getattr(validate(Everything, {**sent, "limit": "5"}), name) == sent[name]


def test_null_stays_where_it_is_a_value() -> None:
    assert validate(Everything, {"levels": None}).levels is None
    assert validate(Everything, {"levels": None, "limit": "5"}).levels is None
    assert validate(Everything, {"data": {"gone": None}, "text": None}).data == {"gone": None}
    assert TABLE["sets_children"].parse({"name": "a", "depth": None}) != TABLE["sets_children"].parse({"name": "a"})
    assert TABLE["notes_edit"].parse({"path": "a.md", "id": None, "front_matter": {"tag": None}}) == TABLE[
        "notes_edit"
    ].parse({"path": "a.md", "front_matter": {"tag": None}})


@pytest.mark.parametrize(
    ("sent", "field", "says"),
    [
        ({"limit": "5.5"}, "limit", "expected `integer`, got `string`"),
        ({"limit": "five"}, "limit", "expected `integer`, got `string`"),
        ({"limit": ""}, "limit", "expected `integer`, got `string`"),
        ({"limit": "1,000"}, "limit", "expected `integer`, got `string`"),
        ({"limit": "0x10"}, "limit", "expected `integer`, got `string`"),
        ({"limit": "true"}, "limit", "expected `integer`, got `string`"),
        ({"limit": "500"}, "limit", "<= 100"),
        ({"limit": "[5]"}, "limit", "expected `integer`, got `string`"),
        ({"limit": "99999999999999999999"}, "limit", "integer"),
        ({"limit": True}, "limit", "expected `integer`, got `boolean`"),
        ({"share": "NaN"}, "share", "expected `number`, got `string`"),
        ({"flag": "1"}, "flag", "expected `boolean`, got `string`"),
        ({"flag": "yes"}, "flag", "expected `boolean`, got `string`"),
        ({"flag": 1}, "flag", "expected `boolean`, got `integer`"),
        ({"names": "["}, "names", "expected `array`, got `string`"),
        ({"names": "a, b"}, "names", "expected `array`, got `string`"),
        ({"names": '{"0": "a"}'}, "names", "expected `array`, got `string`"),
        ({"names": ["a", None]}, "names[1]", "expected `string`, got `null`"),
        ({"names": "[" * 5000}, "names", "expected `array`, got `string`"),
        ({"inner": "{"}, "inner", "expected `object`, got `string`"),
        ({"inner": '{"depht": 1}'}, "inner.depht", "unknown parameter"),
        ({"edits": '[{"op": "cut"}]'}, "edits[0].at", "missing required parameter"),
        ({"edits": [{"op": "cut", "at": None}]}, "edits[0].at", "expected `integer`, got `null`"),
        ({"text": 5}, "text", "expected `string`, got `integer`"),
        ({"nothing": None}, "nothing", "unknown parameter"),
    ],
)
def test_ambiguous_values_are_refused_by_name(sent: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        validate(Everything, sent)
    assert caught.value.failure.field == field
    assert says in str(caught.value)


def test_valid_values_are_left_unchanged() -> None:
    fitting = {"limit": 5, "names": ["a"], "inner": {"depth": 2}}
    assert converted(Everything, fitting) is fitting
    assert converted(list[int], "[1]") == [1]


def test_a_parameter_that_is_given_twice_once_as_null_is_given_once() -> None:
    index = TABLE["files_index"]
    for sent in ({"root": "/a", "path": None}, {"path": None, "root": "/a"}, {"path": "/a", "root": None}):
        assert index.parse(sent) == index.parse({"root": "/a"})
    with pytest.raises(InvalidParams, match="given twice"):
        index.parse({"root": "/a", "path": "/b"})
    assert respelled(index.params, {"path": None}) == {"root": None}


def _optional() -> list[tuple[str, str]]:
    return [
        (op.name, field.encode_name)
        for op in TABLE.values()
        if op.admits(CLIENT)
        for field in msgspec.structs.fields(op.params)
        if not field.required and (op.name, field.encode_name) not in MEANT_AS_NULL
    ]


MEANT_AS_NULL = {("sets_children", "depth"), ("sets_parents", "depth")}
"""Where the reference says what null means: without a limit."""


@pytest.mark.parametrize(("name", "parameter"), _optional())
def test_null_for_an_optional_parameter_of_any_operation_is_as_if_absent(name: str, parameter: str) -> None:
    params = TABLE[name].params
    (field,) = (each for each in msgspec.structs.fields(params) if each.encode_name == parameter)
    assert converted(params, {parameter: None}) == {} or field.default is None


def _types(info: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(info, inspect.Metadata):
        yield from _types(info.type)
    elif isinstance(info, inspect.UnionType):
        for each in info.types:
            yield from _types(each)
    else:
        yield info


def test_every_parameter_that_is_a_number_may_be_text() -> None:
    seen = 0
    for operation in TABLE.values():
        info = inspect.type_info(operation.params)
        assert isinstance(info, inspect.StructType)
        for field in info.fields:
            types = set(map(type, _types(field.type)))
            if inspect.IntType in types and types <= {inspect.IntType, inspect.FloatType, inspect.NoneType}:
                seen += 1
                found = converted(operation.params, {field.encode_name: "7"})
                assert found == {field.encode_name: 7}, f"{operation.name}: {field.encode_name}"
    assert seen > 100
