"""Checks of what clients send: limits on their JSON, and its validation against a msgspec type.

Errors name the field and say what would be right.

Names may be given in camelCase or snake_case, whichever a type declares, and under the common names that it states
(`respelled`); values may be written as models write them (`proto.lenient`).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import cache
from itertools import accumulate, chain
from types import NoneType
from typing import Any, TypeAlias, TypeVar

import msgspec

from proto.errors import InvalidParams
from proto.lenient import converted
from proto.suggestions import close

JsonSchema: TypeAlias = dict[str, Any]
"""A JSON Schema 2020-12; its values may be any JSON."""

P = TypeVar("P", bound=msgspec.Struct)

_LARGEST = 2**63 - 1
"""Largest integer that frames and databases can hold; JSON itself has no limit."""

_LONGEST = 300
"""Maximum number of characters of the input that an error repeats."""

_NO_FLOATS = frozenset({str, int, bool, NoneType})
_NO_INTEGERS = frozenset({str, float, bool, NoneType})
_NO_MAPPINGS = _NO_INTEGERS | {int, list}
"""JSON types; lists with only these are skipped at once, such as lists of 100,000 paths."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_AT = re.compile(r" - at `(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>[^`]*)`")
_PATTERN = re.compile(r"^Expected `str` matching regex '(?P<pattern>.*)'$")
_JSON_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "bytes": "string"}
_TYPES = re.compile(r"`[a-z]+(?: \| [a-z]+)*`")
_CONVERTIBLE = re.compile(r"got `(?:str|null)`")
_FIRST = re.compile(r"[^.\[]+")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]*)`")


def json_schema(tp: object) -> JsonSchema:
    """Return the JSON Schema 2020-12 of a msgspec type, with the top level inlined so that `type` is at its root."""
    (schema,), definitions = msgspec.json.schema_components((tp,), ref_template="#/$defs/{name}")
    ref = schema.get("$ref", "")
    name = ref.removeprefix("#/$defs/")
    if name in definitions:
        schema = dict(definitions[name])
        if not any(f'"{ref}"' in msgspec.json.encode(each).decode() for each in definitions.values()):
            del definitions[name]
        # Titles here are Python class names, which mean nothing to clients.
        schema.pop("title", None)
    return {**schema, "$defs": definitions} if definitions else schema


@cache
def _declared(tp: type[msgspec.Struct]) -> Mapping[str, str]:
    """Map all accepted names of a Struct's fields to their names on the wire: common names, snake_case, the names
    themselves, and those that clients of a reference system use. Names of parameters that make no difference map to
    ""."""
    names = [field.encode_name for field in msgspec.structs.fields(tp)]
    common = {other: name for name, other in _common(tp).items()}
    taken: Mapping[str, str] = getattr(tp, "taken", {})
    return {**taken, **common} | {_HUMP.sub("_", name).lower(): name for name in names} | {name: name for name in names}


def _common(tp: type[msgspec.Struct]) -> Mapping[str, str]:
    common: Mapping[str, str] = getattr(tp, "common", {})
    return common


def respelled(tp: type[msgspec.Struct], arguments: Mapping[str, object]) -> Mapping[str, object]:
    """Return the arguments under the names that `tp` declares. Unknown names are left unchanged.

    Raises:
        InvalidParams: a parameter was given in both spellings, with different values.
    """
    declared = _declared(tp)
    if len(arguments) > len(declared) or all(declared.get(key) == key for key in arguments):
        # All are as declared; or at least one is unknown, which `validate` reports.
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
                f"`{written[name]}` and `{key}` are the same parameter, given twice with different values", field=name
            )
        result[name] = value
        written[name] = key
    return result


def validate(tp: type[P], arguments: Mapping[str, object], *, strict: bool = True, reference: bool = False) -> P:
    """Convert decoded JSON to a `tp`. If that fails, `proto.lenient` converts what models write.

    Args:
        strict: whether numbers and booleans may not be given as text.
        reference: whether errors name parameters as the type declares them, and not by their common names.

    Raises:
        InvalidParams: with `field` set, and a message that says what would be right.
    """
    try:
        try:
            parsed, taken = _converted(tp, arguments, strict)
        except msgspec.ValidationError as error:
            # Other errors cannot be fixed by conversion, so large arguments are not searched in vain.
            put = converted(tp, arguments) if _CONVERTIBLE.search(str(error)) else arguments
            if put is arguments:
                raise
            parsed, taken = _converted(tp, put, strict)
    except msgspec.ValidationError as error:
        raise _invalid(tp, str(error), {} if reference else _common(tp)) from None
    if _any_too_large(taken):
        field = _renamed(_short(next(_too_large(taken, ""))), {} if reference else _common(tp))
        raise InvalidParams(f"parameter `{field}`: integers must be from -{_LARGEST} to {_LARGEST}", field=field)
    return parsed


def _converted(tp: type[P], value: object, strict: bool) -> tuple[P, object]:
    """Convert `value` to a `tp`; also return the value used. Raises msgspec.ValidationError."""
    try:
        return msgspec.convert(value, tp, strict=strict), value
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        # In JSON Schema, 5.0 is an integer, and some clients write integers that way; msgspec accepts it only as a
        # float.
        value = _integral(value)
        return msgspec.convert(value, tp, strict=strict), value


def _any_too_large(value: object) -> bool:
    """Return whether an integer exceeds 64 bits. Works level by level, with loops inside the interpreter's C code."""
    # Any JSON.
    level: list[Any] = [value]
    while not (kinds := set(map(type, level))) <= _NO_INTEGERS:
        integers = level if kinds == {int} else [v for v in level if type(v) is int]
        try:
            # Faster than comparing each; it accepts one integer too many.
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
    """Yield the paths of integers that exceed 64 bits."""
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
    """Convert integral floats in `value` to integers; a list of floats stays unchanged if any of them has a
    fraction."""
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


def unknown_parameter(field: str, known: Iterable[str]) -> InvalidParams:
    """Return the error for a parameter that does not exist; `field` is its path, `known` are the names there."""
    known = list(known)
    near = close(field.rpartition(".")[2], known, 1)
    meant = f" (did you mean `{near[0]}`?)" if near else ""
    return InvalidParams(
        f"unknown parameter `{field}`{meant}; known parameters: {', '.join(known) or 'none'}", field=field
    )


def _invalid(tp: type[msgspec.Struct], message: str, names: Mapping[str, str]) -> InvalidParams:
    """Return the error for what msgspec says. `names` replace those of some parameters."""
    at = _AT.search(message)
    path = at["path"].removeprefix("$").removeprefix(".") if at else ""
    text = _AT.sub("", message)
    if match := _UNKNOWN.match(text) or _MISSING.match(text):
        field = (f"{path}." if path else "") + _short(match["field"])
        if match.re is _MISSING:
            field = _renamed(field, names)
            return InvalidParams(f"missing required parameter `{field}`", field=field)
        known = dict.fromkeys(name for node in _schemas_at(tp, path) for name in node.get("properties", ()))
        return unknown_parameter(_renamed(field, names), known if path else [names.get(name, name) for name in known])
    if text.startswith(("Invalid enum value", "Invalid value")):
        if allowed := [str(value) for node in _schemas_at(tp, path) for value in node.get("enum", ())]:
            text += f"; there are: {', '.join(allowed)}"
    elif match := _PATTERN.match(text):
        # A regular expression means nothing to people; the description of the value does.
        pattern = match["pattern"].replace(r"\\", "\\")
        nodes = (node for node in _schemas_at(tp, path) if node.get("pattern") == pattern)
        descriptions = (node.get("description") for node in nodes)
        text = next((f"expected: {form}" for form in descriptions if form), text)
    text = _short(_TYPES.sub(_as_json_says, text[0].lower() + text[1:]))
    path = _renamed(path, names)
    return InvalidParams(f"parameter `{path}`: {text}" if path else f"invalid parameters: {text}", field=path or None)


def _renamed(path: str, names: Mapping[str, str]) -> str:
    """Return the path with its first name replaced."""
    first = _FIRST.match(path)
    return path if first is None else names.get(first[0], first[0]) + path[first.end() :]


def _as_json_says(match: re.Match[str]) -> str:
    types = match[0].strip("`").split(" | ")
    return "`" + " | ".join(dict.fromkeys(_JSON_TYPES.get(each, each) for each in types)) + "`"


_schema_of = cache(json_schema)
"""A cached, read-only schema, since clients' mistakes may come in floods."""


def _schemas_at(tp: type[msgspec.Struct], path: str) -> list[JsonSchema]:
    """Return the JSON Schema nodes at the path that an error names: one for each choice, if there are several."""
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


# Limits on JSON from outside, counted in its bytes before any object is created. An empty list takes three bytes to
# send and fifty in memory, and each level of nesting is a stack frame of code that walks it later. Without limits, a
# few hundred kilobytes stall a process, and thirty megabytes take gigabytes of memory. Counting with
# `bytes.translate` and `bytes.count` takes half a millisecond per MiB, and one to five if there is much structure. An
# ordinary message needs only the first check.

MAX_DEPTH = 100
"""Maximum nesting of lists and objects: well below what Python's stack allows."""

MAX_CONTAINERS = 16_384
"""Maximum number of lists and objects in a message: 10,000 files can be renamed at once."""

MAX_STRINGS = 131_072
"""Maximum number of strings in a message, including object keys: a set of files takes 100,000 paths at once."""

MAX_KEYS = 65_536
"""Maximum number of members of all objects in a message; each costs twice as much as a string in a list."""

MAX_VALUES = 320_000
"""Maximum number of values in a message: texts to embed may be given as tokens, and OpenAI allows 300,000 at once."""

_STEP_BYTES = 1024 * 1024
"""Bytes counted at a time: a flood exceeds the limits early."""

_STRUCTURE = b'"[]{},:'
_ALL_BUT_STRUCTURE = bytes(set(range(256)).difference(_STRUCTURE))
_ALL_BUT_NESTING = bytes(set(range(256)).difference(b"[]{}"))
_STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")


def exceeded(data: bytes, *, times: int = 1) -> str | None:
    """Return which limit the JSON text exceeds, in words that follow "it has"; None if it exceeds none.

    Invalid JSON does not matter here, since the decoder reports it.

    Args:
        times: multiplies each limit, for bodies that contain what many messages would.
    """
    counting = counted(data, times=times)
    while True:
        try:
            next(counting)
        except StopIteration as done:
            found: str | None = done.value
            return found


def counted(data: bytes, *, times: int = 1) -> Generator[None, None, str | None]:
    """Like `exceeded`, in steps of some milliseconds, between which an event loop may run other tasks."""
    if len(data) <= times * MAX_STRINGS and data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        # No count can exceed the number of bytes.
        return None
    count = _Count(times)
    beyond = False
    for start in range(0, len(data), _STEP_BYTES):
        beyond = beyond or count.may_exceed(data[start : start + _STEP_BYTES])
        yield
    if not beyond:
        return None
    # These counts include characters within strings. Count again without them.
    start = 0
    while start < len(data):
        end = start + _STEP_BYTES
        while data[end - 1 : end] == b"\\":
            # Do not split an escape sequence.
            end += 1
        if (found := count.exceeds(data[start:end])) is not None:
            return found
        start = end
        yield
    return None


class _Count:
    """Counts for a text that arrives in pieces."""

    def __init__(self, times: int) -> None:
        self._times = times
        self._any = [0, 0, 0, 0]
        self._quotes = self._keys = self._values = self._containers = self._depth = 0

    def may_exceed(self, piece: bytes) -> bool:
        """Count including strings. Removing all other bytes first takes a twentieth of the time of counting in them."""
        piece = piece.translate(None, _ALL_BUT_STRUCTURE)
        here = (piece.count(b"[") + piece.count(b"{"), piece.count(b'"'), piece.count(b":"), piece.count(b","))
        self._any = [before + now for before, now in zip(self._any, here, strict=True)]
        limits = (MAX_DEPTH, 2 * MAX_STRINGS * self._times + 1, MAX_KEYS * self._times, MAX_VALUES * self._times)
        return any(count > limit for count, limit in zip(self._any, limits, strict=True))

    def exceeds(self, piece: bytes) -> str | None:
        """Count without the contents of strings."""
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        piece = piece.translate(None, _ALL_BUT_STRUCTURE)
        in_string = self._quotes % 2
        self._quotes += piece.count(b'"')
        if (strings := self._quotes // 2) > self._times * MAX_STRINGS:
            return f"{strings} strings, more than {self._times * MAX_STRINGS}"
        # Two adjacent quotes can be removed: the text after them is inside or outside a string as before.
        piece = piece.replace(b'""', b"")
        piece = b"".join(piece.split(b'"')[in_string::2])
        self._keys += piece.count(b":")
        self._values += piece.count(b",")
        for name, count, limit in (("keys", self._keys, MAX_KEYS), ("values", self._values, MAX_VALUES)):
            if count > self._times * limit:
                return f"{count} {name}, more than {self._times * limit}"
        nesting = piece.translate(_STEPS, _ALL_BUT_NESTING)
        self._containers += nesting.count(1)
        if self._containers > self._times * MAX_CONTAINERS:
            return f"{self._containers} lists and objects, more than {self._times * MAX_CONTAINERS}"
        depths = array("l", accumulate(array("b", nesting), initial=self._depth))
        self._depth = depths[-1]
        return f"{max(depths)} levels, more than {MAX_DEPTH}" if max(depths) > MAX_DEPTH else None
