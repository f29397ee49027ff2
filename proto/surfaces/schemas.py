"""Schemas as a surface lists them: the operation's own, shortened to what a model reads and a client validates.

A list of tools is read with every conversation. Left out are, of parameters, bounds that no honest call comes near,
nulls that mean *not given*, and explanations that say no more than the name does; of results, what explains them. What
nests deeply is drawn in a line instead (`{type: size, minSize?, maxSize?}`). Every call and every answer that fits the
whole schema fits the listed one, which is looser; the whole one is what the op `describe` answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from proto.json_types import JsonObject
from proto.operation import DETAIL

DRAWN = 450
"""Characters of a parameter beyond which its form is drawn in a line."""

RESULT = 450
"""Characters of a result beyond which what is in its objects is told by its type alone."""

FORM_OF = "x-form-of"
"""In the schema of a parameter: the operation that lists its form."""

_DEPTH = 8
_LARGE = 10_000
_PLAIN = frozenset({"enum", "const", "required", "format", "x-mcp-header", "uniqueItems", "exclusiveMinimum"})
Kind = Literal["parameters", "details", "result"]

_PAGING = frozenset({"limit", "offset", "cursor"})
_FEW = 3
_SAVED = 24
_FUNCTION_WORDS = frozenset(
    {"a", "an", "the", "of", "or", "and", "to", "in", "is", "it", "at", "its", "by"}
    | {"field", "name", "only", "whether", "what", "how"}
)
_PLACED = ("type", "properties", "required", "additionalProperties", "$defs", "description", "title")


def parameters(schema: JsonObject, names: Mapping[str, str], *, told: str, detailed: bool) -> JsonObject:
    """The schema of parameters; `names` has the common names of those that the operation declares under another, and
    `told` is what the tool's own description says. If `detailed`, what `detail` explains is explained."""
    definitions = schema.get("$defs", {})
    properties = {}
    for name, whole in schema.get("properties", {}).items():
        short = _short(whole, definitions, _DEPTH, "details" if detailed else "parameters")
        if _is_plain(name, short, told):
            del short["description"]
        if len(msgspec.json.encode(short)) > DRAWN:
            explanation = f"{short.get('description', '')}: {_form(whole, definitions)}".removeprefix(": ")
            short = {"type": short["type"]} if "type" in short else {}
            short["description"] = explanation
        properties[names.get(name, name)] = short
    rules = {key: value for key, value in schema.items() if key not in _PLACED}
    required = [names.get(name, name) for name in schema.get("required", ())]
    return {"type": "object", "properties": properties, **({"required": required} if required else {}), **rules}


def explain_once(tools: list[JsonObject]) -> None:
    """A long explanation that several tools of a list give a parameter of one name stays with the first of them, which
    the others name."""
    first: dict[tuple[str, str], str] = {}
    for tool in tools:
        for name, parameter in tool["inputSchema"]["properties"].items():
            whole = parameter.get("description", "")
            there = f"As in {first.setdefault((name, whole), tool['name'])}"
            if len(whole) - len(there) >= _SAVED and not there.endswith(f" {tool['name']}"):
                parameter["description"] = there


def _is_plain(name: str, parameter: JsonObject, told: str) -> bool:
    """Whether a parameter's explanation has only words of its name and values; or is short, and has only those and
    words of the tool's description; or is of a parameter of all lists that are read page by page."""
    if "description" not in parameter:
        return False
    words = _stems(parameter["description"])
    known = _stems(" ".join([name, *map(str, parameter.get("enum", ()))]))
    short = len(words) <= _FEW
    return words <= known or (short and (name in _PAGING or words <= known | _stems(told)))


def _stems(text: str) -> set[str]:
    """The first letters of the words of a text, by which `sort_desc` and "Sort descending" are the same."""
    return {word[:4] for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in _FUNCTION_WORDS}


def result(schema: JsonObject) -> JsonObject:
    """The schema of a result, without its explanations; of a long one, only as deep as its length allows."""
    definitions = schema.get("$defs", {})
    for depth in range(_DEPTH, 0, -1):
        short = _short(schema, definitions, depth, "result")
        if len(msgspec.json.encode(short)) <= RESULT:
            break
    # At its root it is an object, whatever its alternatives are.
    return {"type": "object", **short}


def _short(node: JsonObject, definitions: JsonObject, depth: int, kind: Kind) -> JsonObject:
    """The node, with what its references lead to in their places; parameters are explained, results are not."""
    explained = kind != "result"
    node = _resolved(node, definitions)
    choices = node.get("anyOf", ())
    given = [each for each in choices if each != {"type": "null"}] if explained else list(choices)
    if len(given) == 1:
        node = {**_resolved(given[0], definitions), **{key: node[key] for key in node if key != "anyOf"}}
        given = node.get("anyOf", ())
    short: JsonObject = {}
    for key, value in node.items():
        told = explained and (
            _tells(key, value) or (key == "description" and (kind == "details" or DETAIL not in node))
        )
        if key == "type" or (key in _PLAIN and value) or told:
            short[key] = value
        elif depth > 0 and key == "properties":
            short[key] = {name: _short(each, definitions, depth - 1, kind) for name, each in value.items()}
        elif depth > 0 and key in ("items", "additionalProperties") and isinstance(value, dict) and value:
            short[key] = _short(value, definitions, depth - 1, kind)
    if "properties" not in short:
        short.pop("required", None)
    if given and depth > 0:
        short |= _alternatives([_short(each, definitions, depth - 1, kind) for each in given])
    return short


def _tells(key: str, value: Any) -> bool:
    """Whether a bound or a default of a parameter is news to the caller."""
    if key == "default":
        return value not in (None, False, "", [], {}) and not (isinstance(value, int) and value >= _LARGE)
    return key in ("minimum", "maximum", "minItems", "minLength") and bool(1 < abs(value) < _LARGE)


def _alternatives(choices: list[JsonObject]) -> JsonObject:
    """One of them: by a list of types, where they differ in nothing else."""
    types = [each["type"] for each in choices if each.keys() == {"type"} and isinstance(each["type"], str)]
    if len(types) == len(choices):
        several = [each for each in dict.fromkeys(types) if each != "integer" or "number" not in types]
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
    if FORM_OF in node:
        return f"as in {node[FORM_OF]}"
    choices = [each for each in node.get("anyOf", ()) if each != {"type": "null"}]
    ref = " ".join(str(each.get("$ref", "")) for each in (choices or [node]))
    if ref.strip() and ref in above:
        return "…"
    above = (*above, ref)
    node = _resolved(node, definitions)
    if choices:
        forms = dict.fromkeys(_form(each, definitions, above) for each in choices)
        return " | ".join(form for form in forms if form != "integer" or "number" not in forms)
    if "const" in node or "enum" in node:
        return "|".join(str(each) for each in node.get("enum", [node.get("const")]) if each is not None)
    kind = str(node.get("type", "any"))
    if kind == "array":
        return f"[{_form(node.get('items', {}), definitions, above)}]"
    if "properties" not in node:
        return {"string": "text", "object": "{}"}.get(kind, kind)
    members = []
    for name, each in node["properties"].items():
        form = _form(each, definitions, above)
        optional = "" if name in node.get("required", ()) else "?"
        members.append(f"{name}{optional}" if form == "text" else f"{name}{optional}: {form}")
    return f"{{{', '.join(members)}}}"
