"""Bad arguments for any operation, made from its declaration: each wrong in one parameter, all else being right.

An argument is bad if the operation's own declaration refuses it; nothing else is ever sent, so that the tests change
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from proto.errors import InvalidParams
from proto.operation import Operation

HUGE = "x" * (1 << 16)

LARGEST = 4 << 20
"""The limit in bytes of texts that are too long by one character; each text is sent through a real kernel."""

WRONG_TYPES: tuple[Any, ...] = (None, True, 7, -1.5, "text", [], ["x"], {}, {"a": 1}, [{"a": [None]}])

EDGES: tuple[Any, ...] = (
    -1,
    0,
    2**31,
    2**63,
    -(2**63) - 1,
    10**30,
    1e308,
    "",
    " ",
    "\x00",
    "../../etc/passwd",
    "é" * 300,
    HUGE,
)

_EXAMPLES: tuple[Any, ...] = (
    "x", "a/b.md", "/x", "notes", "00000000", "a" * 64, "2026-01-01", "2026-01-01T00:00:00Z", "weighted", "*.md", "1",
    1, 0, 10, 0.5, True, ["x"], [1], [], {}, {"a": "b"}, None,
)  # fmt: skip


ONE_OF: dict[str, dict[str, Any]] = {
    "collections_search": {"query": "x"},
    "collections_delete": {"ids": ["x"]},
    "files_edit": {"edits": [{"old": "x", "new": "y"}]},
    "notes_edit": {"id": "x", "append": "x"},
    "notes_rename": {"id": "x"},
    "memory_update": {"text": "x"},
    "memory_forget": {"id": "x"},
    "timers_create": {"cron": "0 3 * * *"},
}
"""For operations that take exactly one of several parameters, the one to send."""


class NoExample(Exception):
    """No valid argument could be found; the operation needs one in `_EXAMPLES`."""


def example(schema: dict[str, Any], definitions: dict[str, Any]) -> Any:
    """An argument that the schema takes."""
    whole = {**schema, "$defs": definitions}
    validator = jsonschema.Draft202012Validator(whole)
    if "default" in schema:
        return schema["default"]
    resolved = definitions[schema["$ref"].rsplit("/", 1)[-1]] if "$ref" in schema else schema
    if "enum" in resolved:
        return resolved["enum"][0]
    if resolved.get("type") == "object" and resolved.get("properties"):
        required = resolved.get("required", ())
        return {name: example(resolved["properties"][name], definitions) for name in required}
    if resolved.get("type") == "array" and isinstance(resolved.get("items"), dict) and resolved["items"]:
        return [example(resolved["items"], definitions)] * max(1, resolved.get("minItems", 1))
    for branch in resolved.get("anyOf", ()):
        if branch.get("type") != "null":
            return example(branch, definitions)
    for candidate in _EXAMPLES:
        if validator.is_valid(candidate):
            return candidate
    if "pattern" in resolved:
        return _matching(resolved["pattern"], validator)
    raise NoExample(str(schema))


def _matching(pattern: str, validator: Any) -> str:
    found: list[str] = []

    @settings(max_examples=50, derandomize=True, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.from_regex(pattern, fullmatch=True))
    def look(text: str) -> None:
        if validator.is_valid(text):
            found.append(text)

    look()
    if not found:
        raise NoExample(pattern)
    return found[0]


def good_arguments(operation: Operation[Any]) -> dict[str, Any]:
    """Required parameters, all right as far as the declaration says."""
    schema = operation.input_schema
    definitions = schema.get("$defs", {})
    required = {name: example(schema["properties"][name], definitions) for name in schema.get("required", ())}
    return required | ONE_OF.get(operation.name, {})


def _too_long(operation: Operation[Any], name: str) -> list[str]:
    """A text that is longer than the parameter may be."""
    schema = operation.input_schema["properties"][name]
    lengths = [each["maxLength"] for each in (schema, *schema.get("anyOf", ())) if "maxLength" in each]
    return ["x" * (length + 1) for length in lengths if length < LARGEST]


def bad_arguments(operation: Operation[Any]) -> Iterator[tuple[str, dict[str, Any], InvalidParams]]:
    """What parameter is wrong, the arguments, and the error that the declaration gives."""
    good = good_arguments(operation)
    candidates: list[tuple[str, dict[str, Any]]] = [
        ("no_such_parameter", {**good, "no_such_parameter": 1}),
        (HUGE[:200], {**good, HUGE: 1}),
    ]
    for field in msgspec.structs.fields(operation.params):
        name = field.encode_name
        if field.required:
            candidates.append((name, {key: value for key, value in good.items() if key != name}))
        candidates += [(name, {**good, name: value}) for value in (*WRONG_TYPES, *EDGES, *_too_long(operation, name))]
    for name, arguments in candidates:
        try:
            operation.parse(arguments)
        except InvalidParams as error:
            yield name, arguments, error
