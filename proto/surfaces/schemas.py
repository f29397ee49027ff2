"""Schemas as a surface lists them: the operation's own, shortened to what a model reads and a client validates.

A list of tools is read with every conversation. Left out are, of parameters, bounds that no honest call comes near and
nulls that mean *not given*; of results, what explains them. What nests deeply is drawn in a line instead
(`{type: size, minSize?, maxSize?}`). Every call and every answer that fits the whole schema fits the listed one, which
is looser; the whole one is what the op `describe` answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from proto.json_types import JsonObject

DRAWN = 450
"""Characters of a parameter beyond which its form is drawn in a line."""

RESULT = 450
"""Characters of a result beyond which what is in its objects is told by its type alone."""

FORM_OF = "x-form-of"
"""In the schema of a parameter: the operation that lists its form."""

_DEPTH = 8
_LARGE = 1_000_000
_PLAIN = frozenset({"enum", "const", "required", "format", "x-mcp-header", "uniqueItems", "exclusiveMinimum"})
_PLACED = ("type", "properties", "required", "additionalProperties", "$defs", "description", "title")


def parameters(schema: JsonObject, names: Mapping[str, str] | None = None) -> JsonObject:
    """The schema of parameters; `names` has the common names of those that the operation declares under another."""
    definitions = schema.get("$defs", {})
    named = names or {}
    properties = {}
    for name, whole in schema.get("properties", {}).items():
        short = _short(whole, definitions, _DEPTH, explained=True)
        if len(msgspec.json.encode(short)) > DRAWN:
            form = f"as in {whole[FORM_OF]}" if FORM_OF in whole else _form(whole, definitions)
            told = f"{short.get('description', '')}: {form}".removeprefix(": ")
            short = {"type": short["type"]} if "type" in short else {}
            short["description"] = told
        properties[named.get(name, name)] = short
    rules = {key: value for key, value in schema.items() if key not in _PLACED}
    required = [named.get(name, name) for name in schema.get("required", ())]
    return {"type": "object", "properties": properties, **({"required": required} if required else {}), **rules}


def result(schema: JsonObject) -> JsonObject:
    """The schema of a result, without its explanations; of a long one, only as deep as its length allows."""
    definitions = schema.get("$defs", {})
    for depth in range(_DEPTH, 0, -1):
        short = _short(schema, definitions, depth, explained=False)
        if len(msgspec.json.encode(short)) <= RESULT:
            break
    # At its root it is an object, whatever its alternatives are.
    return {"type": "object", **short}


def _short(node: JsonObject, definitions: JsonObject, depth: int, *, explained: bool) -> JsonObject:
    """The node, with what its references lead to in their places; `explained` as parameters are, results are not."""
    node = _resolved(node, definitions)
    choices = node.get("anyOf", ())
    given = [each for each in choices if each != {"type": "null"}] if explained else list(choices)
    if len(given) == 1:
        node = {**_resolved(given[0], definitions), **{key: node[key] for key in node if key != "anyOf"}}
        given = node.get("anyOf", ())
    short: JsonObject = {}
    for key, value in node.items():
        if key == "type" or (key in _PLAIN and value) or (explained and (key == "description" or _tells(key, value))):
            short[key] = value
        elif depth > 0 and key == "properties":
            inner = {name: _short(each, definitions, depth - 1, explained=explained) for name, each in value.items()}
            short[key] = inner
        elif depth > 0 and key in ("items", "additionalProperties") and isinstance(value, dict) and value:
            short[key] = _short(value, definitions, depth - 1, explained=explained)
    if "properties" not in short:
        short.pop("required", None)
    if given and depth > 0:
        short |= _alternatives([_short(each, definitions, depth - 1, explained=explained) for each in given])
    return short


def _tells(key: str, value: Any) -> bool:
    """Whether a bound or a default of a parameter is news to the caller."""
    if key == "default":
        return value not in (None, False, "", [], {})
    bounds = ("minimum", "maximum", "minItems", "minLength")
    return key in bounds and bool(1 < abs(value) < _LARGE)


def _alternatives(choices: list[JsonObject]) -> JsonObject:
    """One of them: by a list of types, where they differ in nothing else."""
    types = [each["type"] for each in choices if each.keys() == {"type"} and isinstance(each["type"], str)]
    if len(types) == len(choices):
        several = list(dict.fromkeys(types))
        return {"type": several if len(several) > 1 else several[0]}
    if types == ["null"] and len(choices) == 2:
        (other,) = (each for each in choices if each.get("type") != "null")
        if "enum" in other:
            return {"enum": [*other["enum"], None]}
        if isinstance(other.get("type"), str):
            return {**other, "type": [other["type"], "null"]}
    return {"anyOf": choices}


def _resolved(node: JsonObject, definitions: JsonObject) -> JsonObject:
    """The node and what its reference leads to; of two descriptions, its own."""
    target = definitions.get(str(node.get("$ref", "")).rpartition("/")[2])
    return node if target is None else {**target, **{key: node[key] for key in node if key != "$ref"}}


def _form(node: JsonObject, definitions: JsonObject, above: tuple[str, ...] = ()) -> str:
    """The form of a value in one line: `{type: size, minSize?, maxSize?} | …`; text is not named as such."""
    choices = [each for each in node.get("anyOf", ()) if each != {"type": "null"}]
    ref = " ".join(str(each.get("$ref", "")) for each in (choices or [node]))
    if ref.strip() and ref in above:
        return "…"
    above = (*above, ref)
    node = _resolved(node, definitions)
    if choices:
        return " | ".join(dict.fromkeys(_form(each, definitions, above) for each in choices))
    if "const" in node or "enum" in node:
        return "|".join(str(each) for each in node.get("enum", [node.get("const")]) if each is not None)
    if node.get("type") == "array":
        return f"[{_form(node.get('items', {}), definitions, above)}]"
    if "properties" not in node:
        return {"string": "text", "object": "{}"}.get(str(node.get("type")), str(node.get("type", "any")))
    members = []
    for name, each in node["properties"].items():
        form = _form(each, definitions, above)
        members.append(
            name + ("" if name in node.get("required", ()) else "?") + ("" if form == "text" else f": {form}")
        )
    return f"{{{', '.join(members)}}}"
