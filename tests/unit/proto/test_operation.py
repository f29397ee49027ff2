"""What a declaration gives: schemas, validation with the field's name, text, and its place in the table."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
import pytest
from msgspec import Meta

from proto import ops
from proto.errors import InvalidParams, UnknownOperation
from proto.operation import Access, Params, operation, operation_of, words_of
from proto.validation import validate


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A thing."""

    name: Annotated[str, Meta(description="Its name")]


class Order(enum.Enum):
    UP = "up"
    DOWN = "down"


class Inner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nested."""

    depth: Annotated[int, Meta(ge=1, le=5)] = 1
    at_most: int | None = None
    order: Order | None = None
    orders: list[Order] = []
    more: dict[str, Any] = {}
    codes: list[Annotated[str, Meta(pattern="^[0-9]{4}$", description="Four digits")]] = []
    code: Annotated[str, Meta(pattern="^[0-9]{4}$", description="Four digits")] | None = None


@operation("find", service="finder", access=Access.READ, idempotent=True, deadline_s=1.5)
class Find(Params[Found], frozen=True, kw_only=True):
    """Find a thing.

    By its name.
    """

    name: Annotated[str, Meta(description="What it is called", max_length=10)]
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    tags: list[str] = msgspec.field(default_factory=list)
    inner: Inner | None = None


@operation("names", service="finder", access=Access.READ, idempotent=True, deadline_s=1)
class Names(Params[list[str]], frozen=True, kw_only=True):
    """All names."""


def test_input_schema_is_an_object_with_descriptions_and_bounds() -> None:
    schema = operation_of(Find).input_schema
    assert schema["type"] == "object"
    assert schema["required"] == ["name"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["name"] == {"type": "string", "description": "What it is called", "maxLength": 10}
    assert schema["properties"]["limit"] == {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}
    assert "title" not in schema


def test_rules_that_types_cannot_express_are_part_of_the_schema() -> None:
    @operation("either", service="finder", access=Access.READ, idempotent=True, deadline_s=1)
    class Either(Params[Found], frozen=True, kw_only=True):
        """One of two."""

        rules: ClassVar[Mapping[str, Any]] = {
            "$defs": {"X": {"type": "string"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        }

        a: str = ""
        b: Inner | None = None

    schema = operation_of(Either).input_schema
    assert schema["type"] == "object"
    assert schema["anyOf"] == [{"required": ["a"]}, {"required": ["b"]}]
    assert set(schema["$defs"]) == {"X", "Inner", "Order"}
    assert set(schema["properties"]) == {"a", "b"}


def test_schema_references_are_local_and_resolve() -> None:
    for op in ops.load().values():
        for schema in (op.input_schema, op.output_schema):
            if schema is not None:
                assert schema["type"] == "object", op.name
                for ref in _refs(schema):
                    assert ref.startswith("#/$defs/"), op.name
                    assert ref.removeprefix("#/$defs/") in schema["$defs"], op.name


def _refs(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for value in node.values() for ref in _refs(value)]
    if isinstance(node, list):
        return [ref for value in node for ref in _refs(value)]
    return []


def test_a_result_other_than_an_object_is_wrapped() -> None:
    op = operation_of(Names)
    assert op.wraps_result
    assert op.output_schema == {
        "type": "object",
        "properties": {"result": {"type": "array", "items": {"type": "string"}}},
        "required": ["result"],
    }
    assert not operation_of(Find).wraps_result


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("plans_list", "List plans"),
        ("queries_list", "List queries"),
        ("sets_get", "Get set"),
        ("collections_create", "Create collection"),
        ("files_diagnose", "Diagnose files"),
        ("files_rename", "Rename files"),
        ("notes_write", "Write note"),
        ("jobs_list", "List jobs"),
        ("index", "Index"),
        ("session", "Session"),
        ("mcp.echo", "Echo mcp"),
    ],
)
def test_a_title_is_made_of_the_name(name: str, title: str) -> None:
    assert words_of(name) == title


def test_description_is_the_docstring_and_deadline_is_in_milliseconds() -> None:
    op = operation_of(Find)
    assert op.description == "Find a thing.\n\nBy its name."
    assert op.deadline_ms == 1500


@pytest.mark.parametrize(
    ("arguments", "field", "says"),
    [
        ({}, "name", "missing required parameter `name`"),
        ({"name": 3}, "name", "expected `string`, got `integer`"),
        ({"name": None}, "name", "expected `string`, got `null`"),
        ({"name": "a", "nme": "b"}, "nme", "known parameters: name, limit, tags, inner"),
        ({"name": "a" * 11}, "name", "length <= 10"),
        ({"name": "a", "limit": 0}, "limit", ">= 1"),
        ({"name": "a", "limit": 101}, "limit", "<= 100"),
        ({"name": "a", "limit": "5.5"}, "limit", "expected `integer`, got `string`"),
        ({"name": "a", "limit": 1.5}, "limit", "expected `integer`"),
        ({"name": "a", "limit": True}, "limit", "expected `integer`, got `boolean`"),
        ({"name": "a", "tags": ["x", 1]}, "tags[1]", "expected `string`, got `integer`"),
        ({"name": "a", "tags": "x"}, "tags", "expected `array`, got `string`"),
        ({"name": "a", "inner": {"depth": 9}}, "inner.depth", "<= 5"),
        ({"name": "a", "inner": {"width": 9}}, "inner.width", "unknown parameter"),
        ({"name": "a", "inner": {"code": "123"}}, "inner.code", "expected: Four digits"),
        ({"name": "a", "inner": {"codes": ["1234", ""]}}, "inner.codes[1]", "expected: Four digits"),
        ({"name": "a", "inner": {"order": "u"}}, "inner.order", "'u'; there are: down, up"),
        ({"name": "a", "inner": {"orders": ["up", "u"]}}, "inner.orders[1]", "'u'; there are: down, up"),
    ],
)
def test_bad_argument_is_named_with_the_correct_form(arguments: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        validate(Find, arguments)
    assert caught.value.failure.field == field
    assert says in caught.value.failure.message


def _patterned(node: object) -> list[dict[str, Any]]:
    if isinstance(node, dict):
        own = [node] if isinstance(node.get("pattern"), str) else []
        return own + [each for value in node.values() for each in _patterned(value)]
    return [each for value in node for each in _patterned(value)] if isinstance(node, list) else []


def test_errors_name_a_parameter_as_the_surface_lists_it() -> None:
    index = ops.load()["files_index"]
    for reference, shown in ((False, "path"), (True, "root")):
        for arguments, says in (
            ({"pth": "/x"}, "unknown parameter `pth`"),
            ({}, f"missing required parameter `{shown}`"),
            ({"root": 5}, f"parameter `{shown}`"),
        ):
            with pytest.raises(InvalidParams, match=says) as caught:
                index.parse(arguments, reference=reference)
            assert caught.value.failure.field == ("pth" if "pth" in arguments else shown)
            if "pth" in arguments:
                assert f"known parameters: {shown}, " in str(caught.value)
                assert ("(did you mean `path`?)" in str(caught.value)) is not reference


def test_every_pattern_of_an_operation_has_a_description_for_errors() -> None:
    silent = [
        (declared.name, each["pattern"])
        for declared in ops.load().values()
        for each in _patterned(declared.input_schema)
        if not each.get("description")
    ]
    assert not silent


@pytest.mark.parametrize("number", [2**63, 10**30, -(2**63), 1e30])
def test_an_integer_that_no_frame_or_database_holds_is_refused_by_its_name(number: float) -> None:
    with pytest.raises(InvalidParams, match="integers must be from") as caught:
        validate(Find, {"name": "a", "inner": {"at_most": number}})
    assert caught.value.failure.field == "inner.at_most"


def test_an_integer_too_large_is_found_in_what_has_no_type() -> None:
    with pytest.raises(InvalidParams, match="integers must be from") as caught:
        validate(Find, {"name": "a", "inner": {"more": {"a": [0, {"n": 2**64}]}}})
    assert caught.value.failure.field == "inner.more.a[1].n"
    assert validate(Find, {"name": "a", "inner": {"more": {"n": 1e300}}}).inner == Inner(more={"n": 1e300})


def test_integral_float_is_an_integer_as_json_schema_says() -> None:
    assert validate(Find, {"name": "a", "limit": 5.0}).limit == 5


def test_undeclared_params_are_refused() -> None:
    class Bare(Params[Found], frozen=True, kw_only=True):
        pass

    with pytest.raises(TypeError, match="not declared"):
        operation_of(Bare)


def test_operation_without_docstring_is_refused() -> None:
    with pytest.raises(TypeError, match="docstring"):

        @operation("mute", service="finder", access=Access.READ, idempotent=True, deadline_s=1)
        class Mute(Params[Found], frozen=True, kw_only=True):
            name: str


def test_table_finds_by_name_and_suggests_similar_names() -> None:
    table = ops.load()
    assert table.find("kernel_status").service == "kernel"
    with pytest.raises(UnknownOperation, match="kernel_status"):
        table.find("kernel_statsu")


def test_reads_are_idempotent_and_changes_must_declare_it() -> None:
    @operation("look", service="finder", access=Access.READ, deadline_s=1)
    class Look(Params[Found], frozen=True, kw_only=True):
        """Look."""

    assert operation_of(Look).idempotent
    with pytest.raises(TypeError, match="say whether it is idempotent"):
        operation("change", service="finder", access=Access.WRITE, deadline_s=1)
    with pytest.raises(TypeError, match="there is no surface fils"):
        operation("look", service="finder", access=Access.READ, deadline_s=1, surfaces=("fils",))
