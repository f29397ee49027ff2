"""Validates a document against a JSON Schema: the document as plain data, each fault with its position in the file."""

import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final

from jsonschema import (
    Draft3Validator,
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
    _format,
    _keywords,
    _legacy_keywords,
    _utils,
    exceptions,
    validators,
)
from jsonschema.protocols import Validator
from referencing.exceptions import Unresolvable
from referencing.jsonschema import EMPTY_REGISTRY

from services.shared import linear
from services.yaml.errors import Code, YamlError, line_and_column
from services.yaml.operations import Fault
from services.yaml.path import Index, Key, show_path
from services.yaml.syntax.events import ALIAS, MAPPING, SCALAR, Document
from services.yaml.tree import NodePlace, Tree

Data = None | bool | int | float | str | list["Data"] | dict[str, "Data"]

MAX_VALUES: Final = 1_000_000  # most values of the document, with aliases expanded
MAX_DEPTH: Final = 200  # jsonschema recurses: deeper data is refused rather than left to Python's stack
MAX_FAULTS: Final = 100
MAX_MATCH: Final = 200_000_000  # a pattern's instructions times characters: some seconds in the worst case
MAX_CPU_S: Final = 5.0  # the alternatives and references of a schema multiply: a few lines can ask for years
_SHOWN_CHARS: Final = 200  # longest excerpt of a value in a message
_SHOWN_ITEMS: Final = 10
_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE: Final = re.compile(r"0o([0-7]+)|0x([0-9a-fA-F]+)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: Final[dict[str, Data]] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".nan": math.nan, ".NaN": math.nan, ".NAN": math.nan,
    **{sign + word: number for word in (".inf", ".Inf", ".INF") for sign, number in
       (("", math.inf), ("+", math.inf), ("-", -math.inf))},
}  # fmt: skip
_FLOAT_TAG: Final = "tag:yaml.org,2002:float"
_RESOLVED_TAGS: Final = frozenset((_FLOAT_TAG, *(f"tag:yaml.org,2002:{name}" for name in ("int", "bool", "null"))))


def resolve_scalar(style: str, value: str, tag: str | None) -> Data:
    """Resolve a scalar under the core schema of YAML 1.2 (10.3): quoted and block scalars are strings."""
    if style != ":" if tag is None else tag not in _RESOLVED_TAGS:
        return value
    if value in _WORDS:
        return _WORDS[value]
    if _INTEGER.fullmatch(value):
        if len(value) > 4000:  # Python's own bound on digits is 4300
            return value
        return float(value) if tag == _FLOAT_TAG else int(value)
    if match := _OTHER_BASE.fullmatch(value):
        return int(match.group(1), 8) if match.group(1) else int(match.group(2), 16)
    return float(value) if _FLOAT.fullmatch(value) else value


def data_of(tree: Tree, node: int) -> Data:
    """Return a node as plain data. Raises YamlError (-32001) if that would be too large."""
    return _Composer(tree).value(node, 0)[0]


class _Composer:
    """Builds plain data from a document: aliases shared, merge keys applied, keys as text."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.done: dict[int, tuple[Data, int, int]] = {}
        self.open: set[int] = set()

    def value(self, node: int, depth: int) -> tuple[Data, int, int]:
        """Return the data of a node, the number of its values, and its depth.

        Raises YamlError (-32001) if it is too deep, contains itself, or would be too large with its aliases expanded.
        """
        kind, style, text, _, tag = self.tree.stream.events[node]
        if kind == SCALAR:
            return resolve_scalar(style, text, tag), 1, 0
        if kind == ALIAS:
            node = self.tree.alias_targets()[node]
            if self.tree.stream.events[node][0] == SCALAR:
                return self.value(node, depth)
        found = self.done.get(node)
        if found is None:
            if node in self.open:
                raise YamlError(Code.PARSE, "a value that contains itself through an alias cannot be validated")
            self.open.add(node)
            found = self.done[node] = self._collection(node, depth)
            self.open.discard(node)
        if found[1] > MAX_VALUES:
            raise YamlError(Code.PARSE, f"with aliases expanded, the document has more than {MAX_VALUES} values")
        _check_depth(depth + found[2])
        return found

    def _collection(self, node: int, depth: int) -> tuple[Data, int, int]:
        _check_depth(depth)
        size, deepest = 1, 0
        if self.tree.stream.events[node][0] != MAPPING:
            items: list[Data] = []
            for child in self.tree.children(node):
                data, count, below = self.value(child.node, depth + 1)
                items.append(data)
                size, deepest = size + count, max(deepest, below)
            return items, size, deepest + 1
        own: dict[str, Data] = {}
        merged: dict[str, Data] = {}
        for name, child in self.tree.keys(node).items():
            data, count, below = self.value(child.node, depth + 1)
            size, deepest = size + count, max(deepest, below)
            if name == "<<" and isinstance(data, dict | list):
                for source in [data] if isinstance(data, dict) else data:
                    if isinstance(source, dict):
                        for key, value in source.items():
                            merged.setdefault(key, value)
            else:
                own[name] = data
        return {**merged, **own}, size, deepest + 1


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise YamlError(Code.PARSE, f"the document is nested more than {MAX_DEPTH} levels deep and cannot be validated")


_UNICODE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)


@lru_cache(maxsize=256)
def _expression(pattern: str) -> Any:
    """Compile a pattern in ECMA 262 syntax. Raises BadPattern."""
    return linear.compiled(_UNICODE.sub(lambda match: rf"\x{{{match[1]}}}" if match[1] else match[0], pattern))


def _bad_pattern(schema: object, path: str = "$") -> Iterator[str]:
    """Yield the location in a schema of each pattern that cannot be matched in linear time, and why."""
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from _bad_pattern(item, f"{path}[{index}]")
    if isinstance(schema, dict):
        for key, item in schema.items():
            among = item if key == "patternProperties" and isinstance(item, dict) else (item,) * (key == "pattern")
            for pattern in among:
                try:
                    _expression(str(pattern))
                except linear.BadPattern as error:
                    yield f"{path}.{key}: {str(pattern)[:200]!r} is not a valid RE2 regular expression: {error}"
            yield from _bad_pattern(item, f"{path}.{key}")


class _TooCostly(Exception):
    """The schema requires too much work; the message names the limit."""


_until = threading.local()
"""`cpu_s`, in a thread that validates: the thread's processor time at which it gives up."""


def _check_time() -> None:
    if time.thread_time() > getattr(_until, "cpu_s", math.inf):
        why = "its alternatives or references multiply, or the document is too large for it"
        raise _TooCostly(f"validation takes more than {MAX_CPU_S:g} s of processor time: {why}")


def _search(pattern: str, text: str) -> Any:
    _check_time()
    expression = _expression(pattern)
    if expression.programsize * len(text) > MAX_MATCH:
        raise _TooCostly(f"the pattern {_brief(repr(pattern))} is too large for a text of {len(text)} characters")
    return expression.search(linear.readable(text))


def _bounded(check: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a keyword's check so that it fails once time is up."""

    def bounded(validator: Validator, value: Any, instance: Any, schema: Any) -> Any:
        _check_time()
        return check(validator, value, instance, schema)

    return bounded


def _brief(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 60]} … {text[-57:]}"


class _Text(str):
    """A long string whose repr is truncated: the library formats every value in a message for each fault it
    considers."""

    def __repr__(self) -> str:
        return _brief(repr(self[:_SHOWN_CHARS] + self[-_SHOWN_CHARS:]))


class _Items(list[Data]):
    """A sequence whose repr shows only some items."""

    def __repr__(self) -> str:
        more = [f"… ({len(self)} items)"] if len(self) > _SHOWN_ITEMS else []
        return _brief(f"[{', '.join([*map(repr, self[:_SHOWN_ITEMS]), *more])}]")


class _Members(dict[str, Data]):
    """A mapping whose repr shows only some members."""

    def __repr__(self) -> str:
        more = [f"… ({len(self)} members)"] if len(self) > _SHOWN_ITEMS else []
        shown = (f"{name!r}: {value!r}" for name, value in islice(self.items(), _SHOWN_ITEMS))
        return _brief(f"{{{', '.join([*shown, *more])}}}")


def _shown_in_part(value: Any, done: dict[int, Any]) -> Any:
    """Return the same data in the types with a truncated repr; `done` contains conversions by id."""
    if isinstance(value, str):
        return _Text(value) if len(value) > 2 * _SHOWN_CHARS else value
    if not isinstance(value, list | dict):
        return value
    if id(value) not in done:
        if isinstance(value, list):
            done[id(value)] = _Items(_shown_in_part(item, done) for item in value)
        else:
            done[id(value)] = _Members((name, _shown_in_part(item, done)) for name, item in value.items())
    return done[id(value)]


def _unique(container: list[Data]) -> bool:
    """True if no two items are equal as JSON, where 1 is 1.0 but not true."""

    def key(value: Data) -> object:
        if isinstance(value, list):
            return tuple(map(key, value))
        if isinstance(value, dict):
            return frozenset((name, key(item)) for name, item in value.items())
        return (bool, value) if isinstance(value, bool) else value

    return len(set(map(key, container))) == len(container)


# The library has no settings for these, and its release is pinned: its regular expressions, its quadratic search for
# equal items, and the alternatives and references of a schema, which multiply.
for _module in (_format, _keywords, _legacy_keywords, _utils):
    vars(_module)["re"] = SimpleNamespace(compile=_expression, search=_search)
vars(_keywords)["uniq"] = _unique
for _draft in (Draft3Validator, Draft4Validator, Draft6Validator, Draft7Validator, Draft201909Validator,
               Draft202012Validator):  # fmt: skip
    for _name, _check in _draft.VALIDATORS.items():
        _draft.VALIDATORS[_name] = _bounded(_check)


def validate(tree: Tree, document: Document, schema: dict[str, Any]) -> list[Fault]:
    """Return the faults of a document under a schema, at most `MAX_FAULTS`, in document order.

    References to other files or hosts are not followed. Raises YamlError (-32602) if the schema itself is wrong.
    """
    data = _shown_in_part(_Composer(tree).value(document.event + 1, 0)[0], {})
    made = validators.validator_for(schema, default=Draft202012Validator)
    _until.cpu_s = time.thread_time() + MAX_CPU_S
    try:
        schema = _shown_in_part(schema, {})
        made.check_schema(schema)
        validator: Validator = made(schema, registry=EMPTY_REGISTRY)
        found = list(islice(validator.iter_errors(data), MAX_FAULTS))
    except exceptions.SchemaError as fault:
        raise YamlError(Code.INVALID_PARAMS, f"schema: {fault.message} at {fault.json_path}") from None
    except Unresolvable as fault:
        message = f"schema: the reference {fault.ref!r} points outside the schema: inline it"
        raise YamlError(Code.INVALID_PARAMS, message) from None
    except linear.BadPattern as error:
        raise YamlError(Code.INVALID_PARAMS, f"schema: {next(_bad_pattern(schema), error)}") from None
    except _TooCostly as error:
        raise YamlError(Code.INVALID_PARAMS, f"schema: {error}") from None
    except RecursionError:
        raise YamlError(Code.INVALID_PARAMS, "schema: its references never end for this document") from None
    finally:
        del _until.cpu_s
    faults = [_located(tree, document, fault) for fault in found]
    return sorted(faults, key=lambda fault: (fault.line, fault.column, fault.message))


def _located(tree: Tree, document: Document, fault: exceptions.ValidationError) -> Fault:
    """Locate a fault at the deepest node of its path that is in the file itself: merged and aliased parts are
    elsewhere."""
    steps: list[Key | Index] = []
    place: NodePlace = tree.root(document)
    exact = True
    for part in fault.absolute_path:
        steps.append(Index(part) if isinstance(part, int) else Key(str(part)))
        if not exact:
            continue
        kind = tree.stream.events[place.node][0]
        if kind == MAPPING and str(part) in tree.keys(place.node):
            place = tree.keys(place.node)[str(part)]
        elif isinstance(part, int) and kind not in (MAPPING, SCALAR, ALIAS):
            place = tree.children(place.node)[part]
        else:
            exact = False
    line, column = line_and_column(tree.text, tree.stream.starts[place.key if place.key >= 0 else place.node])
    message = fault.message
    brief = message if len(message) <= 300 else message[:200] + " … " + message[-80:]
    return Fault(show_path(list(steps)), line, column, brief)
