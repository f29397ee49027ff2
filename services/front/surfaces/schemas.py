"""Schemas as listed on a surface: the operation's own, reduced to what a model reads and a client validates.

A list of tools is read in every conversation. For parameters, the listed schema omits limits that honest calls never
reach, nulls that mean *not given*, and explanations that only repeat the name. For results, it omits explanations; in a
long list, also the page size. Deeply nested values are summarized in a line instead (`{type: size, minSize?,
maxSize?}`). All calls and results that match the full schema also match the listed one, which is looser. The op
`describe` returns the full one.

Many clients reject the whole list if they cannot read one schema. So listed schemas use only what all clients accept:
every schema has a single `type` or is an `anyOf` without other keywords, every array has `items`, and the root has no
combinators (`tests/unit/front/surfaces/client_rules.py` has the rules and their sources).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from proto.json_types import JsonObject
from proto.operation import DETAIL, FOR_PROGRAMS, IF_ANY

DRAWN = 450
"""Length of a parameter's schema above which its form is summarized in a line."""

RESULT = 450
"""Length of a result's schema above which nested objects keep only their type."""

FORM_OF = "x-form-of"
"""Keyword in the schema of a parameter: the operation that lists its form."""

_DEPTH = 8
_LARGE = 10_000
_PLAIN = frozenset({"enum", "const", "required", "format", "x-mcp-header"})
Kind = Literal["parameters", "details", "result"]

_PAGING = frozenset({"limit", "offset", "cursor"})
_FEW = 3
_SAVED = 24
_FUNCTION_WORDS = frozenset(
    {"a", "an", "the", "of", "or", "and", "to", "in", "is", "it", "at", "its", "by"}
    | {"field", "name", "only", "whether", "what", "how"}
)
_PLACED = ("type", "properties", "required", "additionalProperties", "$defs", "description", "title")


def parameters(schema: JsonObject, names: Mapping[str, str], *, description: str, detailed: bool) -> JsonObject:
    """Return the listed schema of parameters. `names` has the common names of parameters that the operation declares
    under other names, and `description` is the tool's description. If `detailed`, include `detail` texts."""
    definitions = schema.get("$defs", {})
    properties = {}
    for name, whole in schema.get("properties", {}).items():
        short = _short(whole, definitions, _DEPTH, "details" if detailed else "parameters")
        if _is_plain(name, short, description):
            del short["description"]
        if name in _PAGING and not detailed:
            short = {key: value for key, value in short.items() if key not in ("default", "maximum")}
        if len(msgspec.json.encode(short)) > DRAWN:
            explanation = f"{short.get('description', '')}: {_form(whole, definitions)}".removeprefix(": ")
            short = {**_outline(short), "description": explanation}
        properties[names.get(name, name)] = _unaccompanied(short)
    rules = {key: value for key, value in schema.items() if key not in _PLACED}
    required = [names.get(name, name) for name in schema.get("required", ())]
    return {"type": "object", "properties": properties, **({"required": required} if required else {}), **rules}


def explain_once(tools: list[JsonObject], *, briefly: bool = False) -> None:
    """If several tools share an explanation for a parameter name, keep it only in the first tool. The others refer to
    that tool; with `briefly`, they omit the explanation if the reference would not be shorter."""
    first: dict[tuple[str, str], str] = {}
    for tool in tools:
        for name, parameter in tool["inputSchema"]["properties"].items():
            explained = parameter["anyOf"][0] if "anyOf" in parameter else parameter
            whole = explained.get("description", "")
            teller = first.setdefault((name, whole), tool["name"])
            there = f"As in {teller}"
            if not whole or teller == tool["name"]:
                continue
            if len(whole) - len(there) >= _SAVED:
                explained["description"] = there
            elif briefly:
                del explained["description"]


def _is_plain(name: str, parameter: JsonObject, description: str) -> bool:
    """Return whether a parameter's explanation can be omitted: it has only words of its name and values; or it is short
    and has only those and words of the tool's description; or it is short and belongs to a paging parameter."""
    if "description" not in parameter:
        return False
    words = _stems(parameter["description"])
    known = _stems(" ".join([name, *map(str, parameter.get("enum", ()))]))
    short = len(words) <= _FEW
    return words <= known or (short and (name in _PAGING or words <= known | _stems(description)))


def _stems(text: str) -> set[str]:
    """Return the first letters of the words in a text, so that `sort_desc` and "Sort descending" are equal."""
    return {word[:4] for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in _FUNCTION_WORDS}


def result(schema: JsonObject) -> JsonObject:
    """Return the schema of a result without explanations; a long one is cut to a depth that fits."""
    definitions = schema.get("$defs", {})
    for depth in range(_DEPTH, 0, -1):
        short = _short(schema, definitions, depth, "result")
        if len(msgspec.json.encode(short)) <= RESULT:
            break
    # The root is an object, whatever its alternatives are.
    return {"type": "object", **{key: value for key, value in short.items() if key != "anyOf"}}


def terse(node: Any) -> Any:
    """Return the schema of a result whose members may be left out (`services.front.terse`)."""
    match node:
        case list():
            return [terse(each) for each in node]
        case dict():
            changed = {key: terse(value) for key, value in node.items()}
            properties = node.get("properties")
            if isinstance(properties, dict) and isinstance(node.get("required"), list):
                changed["required"] = [name for name in node["required"] if not _may_lack(properties.get(name, {}))]
            return changed
    return node


def _may_lack(member: JsonObject) -> bool:
    return IF_ANY in member or FOR_PROGRAMS in member or {"type": "null"} in member.get("anyOf", ())


def _short(node: JsonObject, definitions: JsonObject, depth: int, kind: Kind) -> JsonObject:
    """Return the node with its references resolved; parameters keep explanations, results do not. Objects deeper than
    `depth` keep only their type."""
    explained = kind != "result"
    node = _resolved(node, definitions)
    choices = node.get("anyOf", ())
    given = [each for each in choices if each != {"type": "null"}] if explained else list(choices)
    if len(given) == 1:
        node = {**_resolved(given[0], definitions), **{key: node[key] for key in node if key != "anyOf"}}
        given = node.get("anyOf", ())
    short: JsonObject = {}
    for key, value in node.items():
        is_explained = explained and (
            _tells(key, value) or (key == "description" and (kind == "details" or DETAIL not in node))
        )
        if key == "type" or (key in _PLAIN and value) or is_explained:
            short[key] = value
        elif depth > 0 and key == "properties":
            short[key] = {
                name: _short(each, definitions, depth - 1, kind)
                for name, each in value.items()
                if explained or DETAIL not in each
            }
        elif key == "items" or (key == "additionalProperties" and depth > 0 and value and not explained):
            short[key] = _short(value, definitions, depth - 1, kind)
    if "properties" not in short:
        short.pop("required", None)
    if given:
        short |= _alternatives([_short(each, definitions, depth - 1, kind) for each in given])
    return _typed(short)


def _typed(short: JsonObject) -> JsonObject:
    """Add the type to an enumeration of strings."""
    values = short.get("enum", ())
    if values and "type" not in short and all(isinstance(each, str) for each in values):
        return {"type": "string", **short}
    return short


def _outline(short: JsonObject) -> JsonObject:
    """Keep the types only; objects lose their properties."""
    if "anyOf" in short:
        outlines: list[JsonObject] = []
        for each in map(_outline, short["anyOf"]):
            if each not in outlines:
                outlines.append(each)
        return outlines[0] if len(outlines) == 1 else {"anyOf": outlines}
    return {"type": short["type"], **({"items": _outline(short["items"])} if "items" in short else {})}


def _unaccompanied(short: JsonObject) -> JsonObject:
    """Move the keywords beside each `anyOf` into its first choice, since Gemini allows none there."""
    if "properties" in short:
        short["properties"] = {name: _unaccompanied(each) for name, each in short["properties"].items()}
    if "items" in short:
        short["items"] = _unaccompanied(short["items"])
    if "anyOf" not in short:
        return short
    first, *others = map(_unaccompanied, short["anyOf"])
    beside = {key: value for key, value in short.items() if key != "anyOf"}
    return {"anyOf": [{**first, **beside}, *others]}


def _tells(key: str, value: Any) -> bool:
    """Return whether a limit or default of a parameter is informative for the caller."""
    if key == "default":
        return value not in (None, False, "", [], {}) and not (isinstance(value, int) and value >= _LARGE)
    return key in ("minimum", "maximum", "minItems", "minLength") and bool(1 < abs(value) < _LARGE)


def _alternatives(choices: list[JsonObject]) -> JsonObject:
    """Return `anyOf` for the choices, without duplicates and without integers if there are numbers."""
    several: list[JsonObject] = []
    for each in choices:
        if each not in several and not (each == {"type": "integer"} and {"type": "number"} in choices):
            several.append(each)
    return several[0] if len(several) == 1 else {"anyOf": several}


def _resolved(node: JsonObject, definitions: JsonObject) -> JsonObject:
    """Return the node with its reference resolved; its own description takes precedence."""
    target = definitions.get(str(node.get("$ref", "")).rpartition("/")[2])
    return node if target is None else {**target, **{key: node[key] for key in node if key != "$ref"}}


def _form(node: JsonObject, definitions: JsonObject, above: tuple[str, ...] = ()) -> str:
    """Return the form of a value in one line: `{type: size, minSize?, maxSize?} | …`; strings have no type name."""
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
