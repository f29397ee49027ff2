"""What an operation is: declared once, everything else derived.

An operation is a frozen Struct of its parameters (a subclass of `Params[Result]`) under the `@operation` decorator.
Its JSON Schemas, its validation, its place in each tool surface, what may be retried and who may call it are all read
from that one declaration; the docstring is its description and each field's `Meta(description=…)` its parameters'.
"""

from __future__ import annotations

import enum
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from proto.errors import InvalidParams
from proto.spelling import respelled

R = TypeVar("R")
P = TypeVar("P", bound="Params[Any]")

CLIENT = "client"
"""The caller's name of everyone outside who comes through MCP."""

OPERATOR = "operator"
"""The caller's name of the command line on this machine: whatever a client may do, and more."""


class Access(enum.StrEnum):
    """What an operation may do to what is stored."""

    READ = "read"
    WRITE = "write"
    DESTRUCTIVE = "destructive"


class Role(enum.StrEnum):
    """How clients meet the operation: as a tool, as a step of the composite tools only, as a resource, as a prompt, or
    not at all (between services)."""

    TOOL = "tool"
    STEP = "step"
    RESOURCE = "resource"
    PROMPT = "prompt"
    INTERNAL = "internal"


class Params(msgspec.Struct, Generic[R], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every operation's parameters; `R` is the type of its result.

    `rules` are further keywords of the parameters' JSON Schema, for what no field's type can say (one of two fields
    must be there); the handler checks it, or `check`.
    """

    rules: ClassVar[Mapping[str, Any]] = {}

    def check(self) -> None:
        """What only several fields together tell: before a call is sent, and where it is handled.

        Raises:
            InvalidParams: names the field.
        """


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """Where an operation of role RESOURCE is found.

    `uri` may be a template (RFC 6570: `test://template/{id}/data`, and `{+path}` for a variable that holds slashes);
    its variables are the operation's parameters.  `query` names parameters that may follow as `?name=value&…`; the URI
    itself is listed without them.
    """

    uri: str
    name: str
    mime_type: str
    query: tuple[str, ...] = ()

    @property
    def is_template(self) -> bool:
        return "{" in self.uri


class Operation(msgspec.Struct, Generic[R], frozen=True, kw_only=True, dict=True):
    """One capability of the system, as its declaration in `proto/ops` states it."""

    name: str
    title: str
    description: str
    service: str
    params: type[Params[Any]]
    result: Any
    access: Access
    idempotent: bool
    deadline_ms: int
    role: Role = Role.TOOL
    surfaces: frozenset[str] = frozenset()
    callers: frozenset[str] = frozenset({CLIENT})
    codes: Mapping[int, str] = {}
    text: str | None = None
    stream: str | None = None
    resource: Resource | None = None
    once_with: frozenset[str] = frozenset()
    asks: bool = False
    completion: str | None = None
    step: str = ""
    both_spellings: bool = False
    open_world: bool = False

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema 2020-12 of the parameters; always of `type: object`, references local only."""
        schema = json_schema(self.params)
        definitions = {**schema.get("$defs", {}), **self.params.rules.get("$defs", {})}
        return {**schema, **self.params.rules, **({"$defs": definitions} if definitions else {})}

    @cached_property
    def output_schema(self) -> dict[str, Any] | None:
        """JSON Schema 2020-12 of the structured result; None where the result is MCP content of its own.

        A result that is not an object is wrapped as `{"result": …}`, since structured content must be an object.
        """
        if self.is_content:
            return None
        schema = json_schema(self.result)
        if schema.get("type") == "object":
            return schema
        definitions = schema.pop("$defs", None)
        # A JSON Schema: its values are of any form that JSON has.
        wrapped: dict[str, Any] = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
        if definitions:
            wrapped["$defs"] = definitions
        return wrapped

    @cached_property
    def is_content(self) -> bool:
        """Whether the result is MCP content of its own (`proto.content`), passed to the client as it is."""
        return isinstance(self.result, type) and getattr(self.result, "__mcp_content__", False) is True

    @cached_property
    def wraps_result(self) -> bool:
        """Whether the result is wrapped as `{"result": …}` to be structured content."""
        return not self.is_content and json_schema(self.result).get("type") != "object"

    def parse(self, arguments: Mapping[str, object], *, strict: bool = True) -> Params[Any]:
        """The parameters from decoded JSON; not `strict`, numbers and booleans may be given as text.

        Raises:
            InvalidParams: names the field and says what would be right.
        """
        if self.both_spellings:
            arguments = respelled(self.params, arguments)
        return validate(self.params, arguments, strict=strict)

    def admits(self, caller: str) -> bool:
        """Whether `caller` (`client`, `operator`, or the name of a service) may call this operation."""
        return bool(self.callers & {caller, "*"}) or (caller == OPERATOR and CLIENT in self.callers)


def operation(
    name: str,
    *,
    service: str,
    access: Access,
    idempotent: bool,
    deadline_s: float,
    role: Role = Role.TOOL,
    title: str | None = None,
    surfaces: tuple[str, ...] = (),
    callers: tuple[str, ...] = (CLIENT,),
    codes: Mapping[int, str] | None = None,
    text: str | None = None,
    stream: str | None = None,
    resource: Resource | None = None,
    once_with: tuple[str, ...] = (),
    asks: bool = False,
    completion: str | None = None,
    step: str | None = None,
    both_spellings: bool = False,
    open_world: bool = False,
) -> Callable[[type[P]], type[P]]:
    """Declare the decorated `Params[Result]` as an operation.

    Args:
        surfaces: tool surfaces besides `all` and `compact` that show it.
        callers: who may call it: `client`, names of services, or `*`.
        codes: JSON-RPC codes of the operation's own failures; an operation that has any answers its failures, invalid
            parameters included, as JSON-RPC errors, others as tool results with `isError`.
        text: the field of the result that is the text content for clients; without it, the result as JSON.
        once_with: parameters that, where they are given, make an idempotent operation one that must not be repeated
            unasked (a content hash that the first execution has made stale).
        stream: the field of the result (a list) whose items the handler emits one by one.
        asks: whether the handler may ask the client (`proto.asking`); nobody else's question is passed on.
        completion: the internal operation that completes arguments of this prompt or resource template; its parameters
            are `argument`, `value` and `context` (the arguments already known), its result a list of strings.
        step: its name as a step of the composite tools `query` and `execute`, where it is another than `name`; one that
            starts with `session.` is an action of the tool `session`.
        both_spellings: whether its parameters may be given in camelCase and in snake_case, however they are declared.
        open_world: whether it reaches beyond this machine's own store.
    """

    def declare(params: type[P]) -> type[P]:
        doc = inspect.getdoc(params)
        if not doc or doc == inspect.getdoc(Params):
            raise TypeError(f"operation {name}: {params.__name__} needs a docstring, its description")
        # Of which result is known when it runs: whoever is decorated may answer any.
        declared: Operation[Any] = Operation(
            name=name,
            title=title or name.replace("_", " ").replace("-", " ").replace(".", " ").capitalize(),
            description=doc,
            service=service,
            params=params,
            result=_result_type(params),
            access=access,
            idempotent=idempotent,
            deadline_ms=int(deadline_s * 1000),
            role=role,
            surfaces=frozenset(surfaces),
            callers=frozenset(callers),
            codes=codes or {},
            text=text,
            stream=stream,
            resource=resource,
            once_with=frozenset(once_with),
            asks=asks,
            completion=completion,
            step=step or name,
            both_spellings=both_spellings,
            open_world=open_world,
        )
        params.__operation__ = declared  # type: ignore[attr-defined]  # read back by operation_of only
        return params

    return declare


def operation_of(params: type[Params[R]] | Params[R]) -> Operation[R]:
    """The operation that a parameter Struct declares.

    Raises:
        TypeError: the Struct was never declared with `@operation`.
    """
    cls = params if isinstance(params, type) else type(params)
    declared = cls.__dict__.get("__operation__")
    if declared is None:
        raise TypeError(f"{cls.__name__} is not declared as an operation")
    return typing.cast("Operation[R]", declared)


def _result_type(params: type[Params[Any]]) -> Any:
    for base in getattr(params, "__orig_bases__", ()):
        if typing.get_origin(base) is Params:
            return typing.get_args(base)[0]
    raise TypeError(f"{params.__name__} must be a subclass of Params[Result]")


def json_schema(tp: Any) -> dict[str, Any]:
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


def validate(tp: type[P], arguments: Mapping[str, object], *, strict: bool = True, whole: bool = True) -> P:
    """Decoded JSON as a `tp`; not `strict`, numbers and booleans may be given as text; not `whole`, each by itself.

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
    if whole:
        parsed.check()
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


def _schemas_at(tp: type[msgspec.Struct], path: str) -> list[dict[str, Any]]:
    """What the JSON Schema says of the place that an error names: each of the choices, where there are several."""
    schema = json_schema(tp)
    definitions = schema.get("$defs", {})

    def below(node: dict[str, Any], steps: list[str]) -> list[dict[str, Any]]:
        node = definitions[node["$ref"].rpartition("/")[2]] if "$ref" in node else node
        found = [each for choice in node.get("anyOf", ()) for each in below(choice, steps)]
        if not steps:
            return [*found, node]
        inner = node.get("items") if steps[0] == "[...]" else node.get("properties", {}).get(steps[0])
        return found + (below(inner, steps[1:]) if isinstance(inner, dict) else [])

    return below(schema, re.findall(r"\[\.\.\.\]|[^.\[\]]+", re.sub(r"\[\d+\]", "[...]", path)))
