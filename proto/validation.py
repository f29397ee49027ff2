"""Arguments as clients send them, checked against a msgspec type: errors name the field and what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from proto.errors import InvalidParams

JsonSchema: TypeAlias = dict[str, Any]
"""A JSON Schema 2020-12: its values are of any form that JSON has."""

P = TypeVar("P", bound=msgspec.Struct)


def json_schema(tp: object) -> JsonSchema:
    """JSON Schema 2020-12 of a msgspec type, the top level inlined so that `type` is at its root."""
    (schema,), definitions = msgspec.json.schema_components((tp,), ref_template="#/$defs/{name}")
    ref = schema.get("$ref", "")
    name = ref.removeprefix("#/$defs/")
    if name in definitions:
        top = dict(definitions[name])
        if not any(f'"{ref}"' in msgspec.json.encode(d).decode() for d in definitions.values()):
            definitions = {key: value for key, value in definitions.items() if key != name}
        # Titles here are Python class names, which tell a client nothing.
        top.pop("title", None)
        schema = top
    if definitions:
        schema = {**schema, "$defs": definitions}
    return schema


_AT = re.compile(r" - at `(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>[^`]*)`")
_PATTERN = re.compile(r"^Expected `str` matching regex '(?P<pattern>.*)'$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]*)`")


def validate(tp: type[P], arguments: Mapping[str, object], *, strict: bool = True) -> P:
    """Decoded JSON as a `tp`, each field by itself; not `strict`, numbers and booleans may be given as text.

    Raises:
        InvalidParams: with `field` set and a message that says what would be right.
    """
    taken: object = arguments
    try:
        parsed: P
        try:
            parsed = msgspec.convert(arguments, tp, strict=strict)
        except msgspec.ValidationError:
            # To JSON Schema 5.0 is an integer, and some clients write it so; msgspec takes it for a float alone.
            taken = _integral(arguments)
            parsed = msgspec.convert(taken, tp, strict=strict)
    except msgspec.ValidationError as error:
        raise _invalid(tp, str(error)) from None
    path = _too_large(taken)
    if path is not None:
        field = _short(path)
        raise InvalidParams(f"parameter `{field}`: no integer may be beyond {_LARGEST} or -{_LARGEST}", field=field)
    return parsed


_LARGEST = 2**63 - 1
"""What the frames and the databases hold; JSON itself knows no bound."""


def _too_large(value: object, path: str = "") -> str | None:
    """The path of an integer beyond `_LARGEST`, if there is one."""
    match value:
        case int():
            return None if -_LARGEST <= value <= _LARGEST else path
        case Mapping():
            found = (_too_large(item, f"{path}.{key}" if path else str(key)) for key, item in value.items())
        case list():
            found = (_too_large(item, f"{path}[{index}]") for index, item in enumerate(value))
        case _:
            return None
    return next((place for place in found if place is not None), None)


def _integral(value: object) -> object:
    match value:
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            return {key: _integral(item) for key, item in value.items()}
        case list():
            return [_integral(item) for item in value]
        case _:
            return value


_LONGEST = 300
"""Characters of what was sent that an error repeats; the caller knows the rest."""


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


def _invalid(tp: type[msgspec.Struct], message: str) -> InvalidParams:
    at = _AT.search(message)
    path = at["path"].removeprefix("$").removeprefix(".") if at else ""
    text = _AT.sub("", message)
    prefix = f"{path}." if path else ""
    if match := _UNKNOWN.match(text):
        names = dict.fromkeys(name for node in _schemas_at(tp, path) for name in node.get("properties", ()))
        field = prefix + _short(match["field"])
        known = ", ".join(names) or "none"
        return InvalidParams(f"unknown parameter `{field}`; known parameters: {known}", field=field)
    if match := _MISSING.match(text):
        field = prefix + _short(match["field"])
        return InvalidParams(f"missing required parameter `{field}`", field=field)
    if text.startswith(("Invalid enum value", "Invalid value")) and (allowed := _choices(tp, path)):
        text += f"; there are: {', '.join(allowed)}"
    if (match := _PATTERN.match(text)) and (form := _form(tp, path, match["pattern"])):
        # A regular expression tells people nothing.
        text = f"not of the form that is expected: {form}"
    if not path:
        return InvalidParams(f"invalid parameters: {_short(text[0].lower() + text[1:])}")
    return InvalidParams(f"parameter `{path}`: {_short(text[0].lower() + text[1:])}", field=path)


def _choices(tp: type[msgspec.Struct], path: str) -> list[str]:
    """The values that an enumeration at `path` has; [] where it is none, or cannot be found."""
    return [str(value) for node in _schemas_at(tp, path) for value in node.get("enum", ())]


def _form(tp: type[msgspec.Struct], path: str, pattern: str) -> str:
    """What the text at `path` that has to match `pattern` is, in the words of its description."""
    told = (node.get("description", "") for node in _schemas_at(tp, path) if node.get("pattern") == pattern)
    return next((text for text in told if text), "")


def _schemas_at(tp: type[msgspec.Struct], path: str) -> list[JsonSchema]:
    """What the JSON Schema says of the place that an error names: each of the choices, where there are several."""
    schema = json_schema(tp)
    definitions = schema.get("$defs", {})

    def below(node: JsonSchema, steps: list[str]) -> list[JsonSchema]:
        node = definitions[node["$ref"].rpartition("/")[2]] if "$ref" in node else node
        found = [each for choice in node.get("anyOf", ()) for each in below(choice, steps)]
        if not steps:
            return [*found, node]
        inner = node.get("items") if steps[0] == "[...]" else node.get("properties", {}).get(steps[0])
        return found + (below(inner, steps[1:]) if isinstance(inner, dict) else [])

    return below(schema, re.findall(r"\[\.\.\.\]|[^.\[\]]+", re.sub(r"\[\d+\]", "[...]", path)))
