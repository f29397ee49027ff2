"""Arguments as clients send them, checked against a msgspec type: errors name the field and what would be right.

Names may be given in camelCase or in snake_case, whichever a type declares, and under the common names that it states
(`respelled`); values as models write them (`proto.lenient`).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from types import NoneType
from typing import Any, TypeAlias, TypeVar

import msgspec

from linckia.proto.errors import InvalidParams
from linckia.proto.lenient import mended

JsonSchema: TypeAlias = dict[str, Any]
"""A JSON Schema 2020-12: its values are of any form that JSON has."""

P = TypeVar("P", bound=msgspec.Struct)

_LARGEST = 2**63 - 1
"""What the frames and the databases hold; JSON itself knows no bound."""

_LONGEST = 300
"""Characters of what was sent that an error repeats; the caller knows the rest."""

_NO_FLOATS = frozenset({str, int, bool, NoneType})
_NO_INTEGERS = frozenset({str, float, bool, NoneType})
_NO_MAPPINGS = _NO_INTEGERS | {int, list}
"""Types of JSON; lists of these alone are passed over at once, as lists of 100,000 paths."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_AT = re.compile(r" - at `(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>[^`]*)`")
_PATTERN = re.compile(r"^Expected `str` matching regex '(?P<pattern>.*)'$")
_JSON_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "bytes": "string"}
_TYPES = re.compile(r"`[a-z]+(?: \| [a-z]+)*`")
_MENDABLE = re.compile(r"got `(?:str|null)`")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]*)`")


def json_schema(tp: object) -> JsonSchema:
    """JSON Schema 2020-12 of a msgspec type, the top level inlined so that `type` is at its root."""
    (schema,), definitions = msgspec.json.schema_components((tp,), ref_template="#/$defs/{name}")
    ref = schema.get("$ref", "")
    name = ref.removeprefix("#/$defs/")
    if name in definitions:
        schema = dict(definitions[name])
        if not any(f'"{ref}"' in msgspec.json.encode(each).decode() for each in definitions.values()):
            del definitions[name]
        # Titles here are Python class names, which tell a client nothing.
        schema.pop("title", None)
    return {**schema, "$defs": definitions} if definitions else schema


@cache
def _declared(tp: type[msgspec.Struct]) -> Mapping[str, str]:
    """The names of a Struct's fields on the wire, by their common names, by their snake_case, by themselves, and by
    what clients of a reference call them; empty of what such a client sends that makes no difference here."""
    names = [field.encode_name for field in msgspec.structs.fields(tp)]
    common = {other: name for name, other in _common(tp).items()}
    taken: Mapping[str, str] = getattr(tp, "taken", {})
    return {**taken, **common} | {_HUMP.sub("_", name).lower(): name for name in names} | {name: name for name in names}


def _common(tp: type[msgspec.Struct]) -> Mapping[str, str]:
    common: Mapping[str, str] = getattr(tp, "common", {})
    return common


def respelled(tp: type[msgspec.Struct], arguments: Mapping[str, object]) -> Mapping[str, object]:
    """The arguments under the names that `tp` declares; one that it does not declare stays as it is.

    Raises:
        InvalidParams: one parameter was given in both spellings, with different values.
    """
    declared = _declared(tp)
    if len(arguments) > len(declared) or all(declared.get(key) == key for key in arguments):
        # As declared; or one of them at least is unknown, which `validate` says of the first.
        return arguments
    result: dict[str, object] = {}
    written: dict[str, str] = {}
    for key, value in arguments.items():
        name = declared.get(key) or declared.get(_HUMP.sub("_", key).lower(), key)
        if not name:
            continue
        if name in result and value is None:
            continue
        if result.get(name) is not None and result[name] != value:
            raise InvalidParams(
                f"`{written[name]}` and `{key}` are one parameter, given twice with different values", field=name
            )
        result[name] = value
        written[name] = key
    return result


def validate(tp: type[P], arguments: Mapping[str, object], *, strict: bool = True) -> P:
    """Decoded JSON as a `tp`, each field by itself. If that fails, `proto.lenient` converts what models write; not
    `strict`, numbers and booleans may be given as text.

    Raises:
        InvalidParams: with `field` set and a message that says what would be right.
    """
    try:
        try:
            parsed, taken = _converted(tp, arguments, strict)
        except msgspec.ValidationError as error:
            # No other fault can be mended, and large arguments must not be searched for nothing.
            put = mended(tp, arguments) if _MENDABLE.search(str(error)) else arguments
            if put is arguments:
                raise
            parsed, taken = _converted(tp, put, strict)
    except msgspec.ValidationError as error:
        raise _invalid(tp, str(error)) from None
    if _any_too_large(taken):
        field = _short(next(_too_large(taken, "")))
        raise InvalidParams(f"parameter `{field}`: no integer may be beyond {_LARGEST} or -{_LARGEST}", field=field)
    return parsed


def _converted(tp: type[P], value: object, strict: bool) -> tuple[P, object]:
    """Convert `value` to a `tp`; also returns the value used.  Raises msgspec.ValidationError."""
    try:
        return msgspec.convert(value, tp, strict=strict), value
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        # To JSON Schema 5.0 is an integer, and some clients write it so; msgspec takes it for a float alone.
        value = _integral(value)
        return msgspec.convert(value, tp, strict=strict), value


def _any_too_large(value: object) -> bool:
    """Whether an integer is beyond 64 bits: level by level, by loops within the interpreter's C."""
    # Whatever JSON holds.
    level: list[Any] = [value]
    while not (kinds := set(map(type, level))) <= _NO_INTEGERS:
        integers = level if kinds == {int} else [v for v in level if type(v) is int]
        try:
            # Faster than to compare each; it takes one integer too many.
            array("q", integers)
        except OverflowError:
            return True
        if -_LARGEST - 1 in integers:
            return True
        lists = [v for v in level if type(v) is list] if list in kinds else []
        mappings = [v.values() for v in level if isinstance(v, Mapping)] if kinds - _NO_MAPPINGS else []
        level = [*chain.from_iterable(lists), *chain.from_iterable(mappings)]
    return False


def _too_large(value: object, path: str) -> Iterator[str]:
    """The paths of the integers beyond 64 bits."""
    match value:
        case int() if not -_LARGEST <= value <= _LARGEST:
            yield path
        case Mapping():
            for key, item in value.items():
                if type(item) not in _NO_INTEGERS:
                    yield from _too_large(item, f"{path}.{_short(str(key))}" if path else _short(str(key)))
        case list():
            for index, item in enumerate(value):
                if type(item) not in _NO_INTEGERS:
                    yield from _too_large(item, f"{path}[{index}]")


def _integral(value: object) -> object:
    """`value` with the integers that were written as floats as such; a list of floats alone stays if any has a part."""
    if type(value) is float:
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {key: _integral(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    kinds = set(map(type, value))
    if kinds == {float}:
        integers = list(map(int, value))
        return integers if integers == value else value
    return value if kinds <= _NO_FLOATS else [_integral(item) for item in value]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


def _invalid(tp: type[msgspec.Struct], message: str) -> InvalidParams:
    at = _AT.search(message)
    path = at["path"].removeprefix("$").removeprefix(".") if at else ""
    text = _AT.sub("", message)
    if match := _UNKNOWN.match(text) or _MISSING.match(text):
        field = (f"{path}." if path else "") + _short(match["field"])
        if match.re is _MISSING:
            other = f" (or `{_common(tp)[field]}`)" if field in _common(tp) else ""
            return InvalidParams(f"missing required parameter `{field}`{other}", field=field)
        known = dict.fromkeys(name for node in _schemas_at(tp, path) for name in node.get("properties", ()))
        return InvalidParams(
            f"unknown parameter `{field}`; known parameters: {', '.join(known) or 'none'}", field=field
        )
    if text.startswith(("Invalid enum value", "Invalid value")):
        if allowed := [str(value) for node in _schemas_at(tp, path) for value in node.get("enum", ())]:
            text += f"; there are: {', '.join(allowed)}"
    elif match := _PATTERN.match(text):
        # A regular expression tells people nothing; the description of what has to match it does.
        pattern = match["pattern"].replace(r"\\", "\\")
        nodes = (node for node in _schemas_at(tp, path) if node.get("pattern") == pattern)
        told = (node.get("description") for node in nodes)
        text = next((f"not of the form that is expected: {form}" for form in told if form), text)
    text = _short(_TYPES.sub(_as_json_says, text[0].lower() + text[1:]))
    return InvalidParams(f"parameter `{path}`: {text}" if path else f"invalid parameters: {text}", field=path or None)


def _as_json_says(match: re.Match[str]) -> str:
    types = match[0].strip("`").split(" | ")
    return "`" + " | ".join(dict.fromkeys(_JSON_TYPES.get(each, each) for each in types)) + "`"


_schema_of = cache(json_schema)
"""For reading alone: clients' mistakes come in floods as well."""


def _schemas_at(tp: type[msgspec.Struct], path: str) -> list[JsonSchema]:
    """What the JSON Schema says of the place that an error names: each of the choices, where there are several."""
    schema = _schema_of(tp)
    definitions = schema.get("$defs", {})

    def below(node: JsonSchema, steps: list[str]) -> list[JsonSchema]:
        node = definitions[node["$ref"].rpartition("/")[2]] if "$ref" in node else node
        found = [each for choice in node.get("anyOf", ()) for each in below(choice, steps)]
        if not steps:
            return [*found, node]
        inner = node.get("items") if steps[0] == "[...]" else node.get("properties", {}).get(steps[0])
        return found + (below(inner, steps[1:]) if isinstance(inner, dict) else [])

    return below(schema, re.findall(r"\[\.\.\.\]|[^.\[\]]+", re.sub(r"\[\d+\]", "[...]", path)))
