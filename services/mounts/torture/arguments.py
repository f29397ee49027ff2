"""The smallest arguments that a JSON Schema admits, for tools that only read."""

from __future__ import annotations

from typing import Any

import jsonschema

from proto.json_types import JsonObject

_FORMATS = {
    "date": "2026-01-01", "date-time": "2026-01-01T00:00:00Z", "time": "00:00:00Z", "uri": "https://example.org/",
    "url": "https://example.org/", "email": "a@example.org", "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "127.0.0.1", "hostname": "example.org",
}  # fmt: skip
_DEEPEST = 20


class Unmade(Exception):
    """No arguments can be made from the schema."""


def smallest(schema: object) -> JsonObject:
    """Return arguments with what is required, and nothing else. Raises Unmade."""
    if not isinstance(schema, dict):
        raise Unmade("its schema is no object")
    made = _value(schema, schema, 0)
    try:
        jsonschema.validate(made, schema)
    except (jsonschema.ValidationError, jsonschema.SchemaError) as error:
        raise Unmade(error.message[:200]) from None
    except Exception as error:  # noqa: BLE001  # schemas of strangers, with references and patterns of any kind
        raise Unmade(f"its schema: {error}"[:200]) from None
    if not isinstance(made, dict):
        raise Unmade("its arguments are no object")
    return made


def huge(schema: object, arguments: JsonObject, length: int) -> JsonObject:
    """Return the arguments with a text of this length in the first place that takes any text, or as one too many."""
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    for name, declared in properties.items():
        if isinstance(declared, dict) and declared.get("type") == "string" and "enum" not in declared:
            return {**arguments, name: "x" * length}
    return {**arguments, "linckia_torture": "x" * length}


def _value(schema: object, root: JsonObject, depth: int) -> Any:
    if depth > _DEEPEST:
        raise Unmade("its schema refers to itself without end")
    if not isinstance(schema, dict):
        return {}
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    for name in ("enum", "examples"):
        if isinstance(schema.get(name), list) and schema[name]:
            return schema[name][0]
    if "$ref" in schema:
        return _value(_referred(schema["$ref"], root), root, depth + 1)
    for name in ("anyOf", "oneOf"):
        if schema.get(name) and "properties" not in schema:
            return _value(schema[name][0], root, depth + 1)
    if schema.get("allOf") and "properties" not in schema:
        merged: JsonObject = {}
        for part in schema["allOf"]:
            made = _value(part, root, depth + 1)
            merged = {**merged, **made} if isinstance(made, dict) else made
        return merged
    kind = schema.get("type", "object" if "properties" in schema else None)
    return _of_type(kind[0] if isinstance(kind, list) and kind else kind, schema, root, depth)


def _of_type(kind: object, schema: JsonObject, root: JsonObject, depth: int) -> Any:
    match kind:
        case "object":
            declared = schema.get("properties", {})
            return {name: _value(declared.get(name, {}), root, depth + 1) for name in schema.get("required", [])}
        case "array":
            return [_value(schema.get("items", {}), root, depth + 1) for _ in range(schema.get("minItems", 0))]
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return False
        case "null":
            return None
    text = _FORMATS.get(str(schema.get("format")), "a")
    return text.ljust(schema.get("minLength", 0), "a")


def _number(schema: JsonObject) -> float:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    if isinstance(above, int | float) and not isinstance(above, bool):
        return above + 1
    if low is not None:
        return float(low) if isinstance(low, float) and not low.is_integer() else int(low)
    high = schema.get("maximum", 1)
    return min(1, high) if isinstance(high, int | float) else 1


def _referred(reference: object, root: JsonObject) -> object:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        raise Unmade(f"its schema refers to {reference!r}"[:200])
    found: Any = root
    for step in reference[2:].split("/"):
        if not isinstance(found, dict) or step not in found:
            raise Unmade(f"its schema refers to {reference!r}"[:200])
        found = found[step]
    return found
