"""Input schemas of mounted tools in the form that all clients accept.

Servers write any JSON Schema; some clients reject a whole list because of one schema
(`services.front.surfaces.schemas`). On the surfaces that list Linckia's own tools, schemas of mounted ones are
therefore rewritten: references are resolved, every schema has a single `type` or is an `anyOf` without other keywords,
every array has `items`, and the root is an object without combinators. The rewritten schema accepts whatever the
original accepts. The server checks the arguments."""

from __future__ import annotations

from typing import Any

from proto.json_types import JsonObject

_DEPTH = 12
_KEPT = ("description", "title", "enum", "const", "default", "format", "minimum", "maximum", "minLength", "maxLength")
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array"})
_OF_VALUE = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def accepted(schema: object) -> JsonObject:
    """Return the schema of an object that all clients accept; an unusable one becomes an object with any members."""
    root = schema if isinstance(schema, dict) else {}
    definitions = {**_objects(root.get("definitions")), **_objects(root.get("$defs"))}
    node = _resolved(root, definitions, root)
    properties: JsonObject = {}
    required = _required(node)
    for part in (node, *_parts(node, "allOf", definitions, root)):
        properties |= {
            str(name): _accepted(each, definitions, root, _DEPTH)
            for name, each in _objects(part.get("properties")).items()
        }
        required += [name for name in _required(part) if name not in required]
    # A property that only some alternatives have is optional.
    for key in ("anyOf", "oneOf"):
        for part in _parts(node, key, definitions, root):
            for name, each in _objects(part.get("properties")).items():
                properties.setdefault(str(name), _accepted(each, definitions, root, _DEPTH))
    required = [name for name in required if name in properties]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _objects(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _required(node: JsonObject) -> list[str]:
    given = node.get("required")
    return [name for name in given if isinstance(name, str)] if isinstance(given, list) else []


def _parts(node: JsonObject, key: str, definitions: JsonObject, root: JsonObject) -> list[JsonObject]:
    given = node.get(key)
    parts = given if isinstance(given, list) else []
    return [_resolved(each, definitions, root) for each in parts if isinstance(each, dict)]


def _resolved(node: JsonObject, definitions: JsonObject, root: JsonObject) -> JsonObject:
    """Return the node with its local reference resolved; its own keywords take precedence."""
    for _ in range(_DEPTH):
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return node
        target = root if reference == "#" else definitions.get(reference.rpartition("/")[2])
        own = {key: value for key, value in node.items() if key != "$ref"}
        node = {**target, **own} if isinstance(target, dict) else own
    return {key: value for key, value in node.items() if key != "$ref"}


def _accepted(given: object, definitions: JsonObject, root: JsonObject, depth: int) -> JsonObject:
    if not isinstance(given, dict):
        return _anything()
    if depth == 0:
        return {"type": "object"}
    node = _resolved(given, definitions, root)
    merged = [node, *_parts(node, "allOf", definitions, root)]
    node = {key: value for part in reversed(merged) for key, value in part.items() if key != "allOf"}
    kinds = node.get("type")
    several = [each for each in kinds if each in _TYPES] if isinstance(kinds, list) else []
    choices = [*_parts(node, "anyOf", definitions, root), *_parts(node, "oneOf", definitions, root)]
    if not choices and len(several) > 1:
        choices = [{**node, "type": each} for each in several]
    choices = [each for each in choices if each.get("type") != "null" and each.get("const", "") is not None]
    if choices:
        return _union(node, [_accepted(each, definitions, root, depth - 1) for each in choices])
    kind = several[0] if several else kinds if kinds in _TYPES else _guessed(node)
    if kind is None:
        return _union(node, _anything()["anyOf"])
    kept: JsonObject = {"type": kind, **{key: node[key] for key in _KEPT if key in node}}
    _list_strings(kept)
    if kind == "array":
        items = node.get("items", node.get("prefixItems"))
        first = items[0] if isinstance(items, list) and items else items
        kept["items"] = _accepted(first, definitions, root, depth - 1)
    if kind == "object" and (members := _objects(node.get("properties"))):
        kept["properties"] = {
            str(name): _accepted(each, definitions, root, depth - 1) for name, each in members.items()
        }
        if required := [name for name in _required(node) if name in kept["properties"]]:
            kept["required"] = required
    return kept


def _list_strings(kept: JsonObject) -> None:
    """Keep enumerations of strings only, the one form that Gemini accepts; the description names other values."""
    values = [kept.pop("const")] if "const" in kept else kept.get("enum")
    if not isinstance(values, list):
        kept.pop("enum", None)
        return
    values = [each for each in values if each is not None]
    if values and all(isinstance(each, str) for each in values):
        kept["enum"] = values
        return
    kept.pop("enum", None)
    if values:
        listed = f"One of {', '.join(map(str, values))}"
        kept["description"] = f"{kept['description']} {listed}" if "description" in kept else listed


def _union(node: JsonObject, choices: list[JsonObject]) -> JsonObject:
    beside: JsonObject = {key: node[key] for key in ("description", "default", "title") if key in node}
    different: list[JsonObject] = []
    for each in choices:
        if each not in different:
            different.append(each)
    # Gemini allows no other keywords beside `anyOf`, so they move into the first choice.
    different[0] = {**different[0], **beside}
    return different[0] if len(different) == 1 else {"anyOf": different}


def _anything() -> JsonObject:
    """Return a schema for any value."""
    plain: list[JsonObject] = [{"type": kind} for kind in ("string", "number", "boolean", "object")]
    return {"anyOf": [*plain, {"type": "array", "items": {"type": "string"}}]}


def _guessed(node: JsonObject) -> str | None:
    """Return the type that a schema without one means; None if it allows any."""
    if "properties" in node or "additionalProperties" in node:
        return "object"
    if "items" in node or "prefixItems" in node:
        return "array"
    values = node.get("enum", [node["const"]] if "const" in node else [node.get("default")])
    kinds = {_OF_VALUE.get(type(each)) for each in values} if isinstance(values, list) else set()
    return kinds.pop() if len(kinds) == 1 else None
