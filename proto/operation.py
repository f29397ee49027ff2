"""What an operation is: declared once, everything else derived.

An operation is a frozen Struct of its parameters (a subclass of `Params[Result]`) under `@operation` or a method of a
`Family`. Its JSON Schemas, its validation, its place in each tool surface, its HTTP route, what may be retried and who
may call it are all read from that one declaration; the docstring is its description and each field's
`Meta(description=…)` its parameters'.
"""

from __future__ import annotations

import enum
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypedDict, TypeVar, Unpack

import msgspec

from linckia.proto.errors import Executed, Kind, LinckiaError
from linckia.proto.grants import Grant
from linckia.proto.later import LaterCall
from linckia.proto.validation import JsonSchema, json_schema, respelled, validate

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
P = TypeVar("P", bound="Params[object]")

CLIENT = "client"
"""The caller's name of everyone outside who comes through MCP or HTTP."""

OPERATOR = "operator"
"""The caller's name of the command line on this machine: whatever a client may do, and more."""

ALL = "all"
"""The surface of every tool, which clients over HTTP get that name none."""

CORE = "core"
"""The surface that lists the few tools which reach the rest; what `all` has answers there by name as well."""

COMPACT = "compact"

REFERENCES = ("documents", "yaml", "knowledge", "files", "transcripts")
"""Surfaces of other systems' tools, whose names for parameters they list."""

SURFACES = (CORE, ALL, COMPACT, *REFERENCES)
"""The tool surfaces that a client may ask for; each is an URL, `/mcp/NAME`."""


class Declare(Protocol):
    """A decorator that leaves the Struct as it is."""

    def __call__(self, params: type[P], /) -> type[P]: ...


class Access(enum.StrEnum):
    """What an operation may do to what is stored."""

    READ = "read"
    WRITE = "write"
    DESTRUCTIVE = "destructive"


class Role(enum.StrEnum):
    """How MCP clients meet the operation."""

    TOOL = "tool"
    STEP = "step"
    """Of the composite tools only."""
    RESOURCE = "resource"
    PROMPT = "prompt"
    INTERNAL = "internal"
    """Not at all: between services, or over HTTP alone."""


class Params(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every operation's parameters; `R_co` is the type of its result.

    `rules` are further keywords of the parameters' JSON Schema, for what no field's type can say; the handler checks
    it, or `check`.  That one of two fields must be there is said in the description instead: clients refuse `anyOf` at
    the root.  `common` has the names by which all operations know parameters
    that a reference calls otherwise (`{"root": "path"}`); clients may use either.  `taken` has what clients of a
    reference send beside its documented parameters: each with the parameter that it is here, or nothing where it makes
    no difference.  It is in no schema.
    """

    rules: ClassVar[Mapping[str, Any]] = {}
    common: ClassVar[Mapping[str, str]] = {}
    taken: ClassVar[Mapping[str, str]] = {}

    def check(self) -> None:
        """What only several fields together tell: before a call is sent, and where it is handled.

        Raises:
            InvalidParams: names the field.
        """

    def later_calls(self) -> Iterable[LaterCall]:
        """The calls that it asks to have made later, in the name of whoever sends it."""
        return ()

    def later_source(self) -> str:
        """What those calls are part of, for the audit log."""
        return ""


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """Where an operation of role RESOURCE is found.

    `uri` may be a template (RFC 6570: `test://template/{id}/data`, and `{+path}` for a variable that holds slashes);
    its variables are the operation's parameters.  `query` names parameters that may follow as `?name=value&…`; the URI
    itself is listed without them.  `former` are URIs that it is still read by, and that are listed nowhere.  What a
    reference has keeps the reference's URI; all else is below `linckia://`.
    """

    uri: str
    name: str
    mime_type: str
    query: tuple[str, ...] = ()
    former: tuple[str, ...] = ()

    @property
    def uris(self) -> tuple[str, ...]:
        """Every URI that it is read by."""
        return self.uri, *self.former


class Route(msgspec.Struct, frozen=True):
    """Where an operation is served over HTTP, for programs that know no MCP.

    GET takes the parameters from the path's variables (`/dag/node/{hash}`) and the query, and ignores what the
    operation does not know; POST takes them from a JSON body.  The answer is the result as JSON.

    `body` names the parameter that takes the whole body as bytes instead.  `missing` is the message of the 404 that is
    answered where the result is null.  `file` marks results that are a `proto.http.FileChunk`: the whole file is
    served, in ranges if asked.  `detached` calls are carried out though their client has left.  Failures are
    `{"error": message}`, or worded `like_openai`; `statuses` go over the ordinary status of a kind of failure.
    """

    method: str
    path: str
    body: str = ""
    missing: str = ""
    file: bool = False
    detached: bool = False
    like_openai: bool = False
    statuses: Mapping[Kind, int] = {}


class Options(TypedDict, total=False):
    """What a declaration may say; `Operation` has the meanings and the defaults."""

    title: str
    former: Collection[str]
    step: str
    role: Role
    surfaces: Collection[str]
    callers: Collection[str]
    codes: Mapping[int, str]
    text: str
    resource: Resource
    http: Route
    once_with: Collection[str]
    asks: bool
    completion: str | None
    open_world: bool
    within_roots: bool
    is_exact: bool


class Operation(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True, dict=True):
    """One capability of the system, as its declaration in `proto/ops` states it.

    Attributes:
        title: for people; by default the name as words.
        former: names that clients may still call it by; they are listed nowhere.
        step: its name as a step of the composite tools `query` and `execute`, by default `name`; one that starts with
            `session.` is an action of the tool `session`.
        surfaces: tool surfaces besides `all` that list it, of `SURFACES`.
        callers: who may call it: `client`, `operator`, and names of services; clients by default, and of an operation
            between services no caller that it does not name.
        codes: JSON-RPC codes of the operation's own failures; an operation that has any answers its failures, invalid
            parameters included, as JSON-RPC errors, others as tool results with `isError`.
        text: the field of the result that is the text content for clients; without it, the result as JSON.
        http: where it is served over HTTP as well.
        once_with: parameters that, where they are given, make an idempotent operation one that must not be repeated
            unasked (a content hash that the first execution has made stale).
        asks: whether the handler may ask the client (`proto.mcp`); no other operation's question is passed on.
        completion: the internal operation that completes arguments of this prompt or resource template; its parameters
            are `argument`, `value` and `context` (the arguments already known), its result a list of strings.
        open_world: whether it reaches beyond this machine's own store.
        is_exact: whether its answer is given whole on every surface, however long, since it is asked for as it is.
        within_roots: whether a client that is limited to some of the roots may call it: `services.runtime.roots` checks
            each path that it is given or answers, or it has nothing to do with files. What answers from a store of all
            roots is refused to such a client.
    """

    name: str
    description: str
    service: str
    params: type[Params[object]]
    result: Any  # a type, or what typing makes of several
    access: Access
    idempotent: bool
    deadline_ms: int
    title: str = ""
    former: Collection[str] = ()
    step: str = ""
    role: Role = Role.TOOL
    surfaces: Collection[str] = ()
    callers: Collection[str] = (CLIENT,)
    codes: Mapping[int, str] = {}
    text: str | None = None
    resource: Resource | None = None
    http: Route | None = None
    once_with: Collection[str] = ()
    asks: bool = False
    completion: str | None = None
    open_world: bool = False
    within_roots: bool = False
    is_exact: bool = False

    @cached_property
    def input_schema(self) -> JsonSchema:
        """JSON Schema 2020-12 of the parameters; always of `type: object`, references local only."""
        schema = json_schema(self.params)
        definitions = {**schema.get("$defs", {}), **self.params.rules.get("$defs", {})}
        return {**schema, **self.params.rules, **({"$defs": definitions} if definitions else {})}

    @cached_property
    def output_schema(self) -> JsonSchema | None:
        """JSON Schema 2020-12 of the structured result; None where the result is MCP content of its own.

        A result that is not an object is wrapped as `{"result": …}`, since structured content must be an object.
        """
        if self.is_content:
            return None
        schema = json_schema(self.result)
        if not self.wraps_result:
            return schema
        definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
        return {"type": "object", "properties": {"result": schema}, "required": ["result"], **definitions}

    @cached_property
    def decoders(self) -> tuple[Callable[[bytes], R_co], Callable[[msgspec.Raw], R_co]]:
        """What reads its result and takes nothing else, from msgpack and from JSON.  For `proto.results`."""
        return msgspec.msgpack.Decoder(self.result).decode, msgspec.json.Decoder(self.result).decode

    @cached_property
    def is_content(self) -> bool:
        """Whether the result is MCP content of its own (`proto.mcp`), passed to the client as it is."""
        return isinstance(self.result, type) and getattr(self.result, "__mcp_content__", False) is True

    @cached_property
    def wraps_result(self) -> bool:
        """Whether the result is wrapped as `{"result": …}` to be structured content."""
        return not self.is_content and json_schema(self.result).get("type") != "object"

    def parse(self, arguments: Mapping[str, object], *, strict: bool = True) -> Params[object]:
        """The parameters from decoded JSON, in camelCase or snake_case and under common names or declared ones; not
        `strict`, numbers and booleans may be given as text.

        Raises:
            InvalidParams: names the field and says what would be right.
        """
        parsed = validate(self.params, respelled(self.params, arguments), strict=strict)
        parsed.check()
        return parsed

    def admits(self, caller: str) -> bool:
        """Whether `caller` (`client`, `operator`, or the name of a service) may call this operation."""
        return caller in self.callers or (caller == OPERATOR and CLIENT in self.callers)

    def refusal(self, grant: Grant) -> str:
        """Why a client of this grant may not call it; empty where it may."""
        if grant.read_only and self.access is not Access.READ:
            return f"{self.name} changes something, and the token {grant.name} may only read"
        if grant.surfaces and not set(grant.surfaces).intersection(self.surfaces):
            return f"{self.name} is on no surface of the token {grant.name}, which has: {', '.join(grant.surfaces)}"
        if grant.roots and not self.within_roots:
            limited = f"the token {grant.name} is limited to {', '.join(grant.roots)}"
            return f"{self.name} tells of what all roots hold, and {limited}"
        return ""

    def failure(self, error: LinckiaError) -> LinckiaError:
        """`error` as the caller is told it: an operation that only reads was not executed, whatever went wrong."""
        if self.access is Access.READ:
            error.failure = msgspec.structs.replace(error.failure, executed=Executed.NO)
        return error


_VERBS = {"create", "delete", "diagnose", "drop", "execute", "get", "list", "modify", "start", "stop", "update"}


def words_of(name: str) -> str:
    """The name of an operation as a title, used unless it declares another: `plan-list` is "List plans"."""
    *words, last = re.split("[_.-]", name)
    if words and last in _VERBS:
        noun = " ".join(words)
        words, last = [last], re.sub("y$", "ie", noun) + "s" if last == "list" else noun
    title = " ".join([*words, last])
    return re.sub(r"\bdb\b", "database", title[:1].upper() + title[1:])


def operation(
    name: str,
    *,
    service: str,
    access: Access,
    deadline_s: float,
    idempotent: bool | None = None,
    **options: Unpack[Options],
) -> Declare:
    """Declare the decorated `Params[Result]` as an operation; the options are those of `Operation`.

    `idempotent` may be left out where it only reads.
    """
    if idempotent is None and access is not Access.READ:
        raise TypeError(f"operation {name}: it changes something, so say whether it is idempotent")
    if unknown := set(options.get("surfaces", ())).difference(SURFACES):
        raise TypeError(f"operation {name}: there is no surface {', '.join(unknown)}")

    callers = () if options.get("role") is Role.INTERNAL else (CLIENT,)
    named: Options = {"callers": callers, "title": words_of(name), "step": name, **options}

    def declare(params: type[P]) -> type[P]:
        doc = inspect.getdoc(params)
        if not doc or doc == inspect.getdoc(Params):
            raise TypeError(f"operation {name}: {params.__name__} needs a docstring, its description")
        # A hyphen at the end of a line is part of a name, such as `find-duplicates`.
        doc = re.sub(r"(?<=\w)-\n", "-", doc)
        declared: Operation[object] = Operation(
            name=name, description=doc, service=service, params=params, result=_result_type(params), access=access,
            idempotent=idempotent is not False, deadline_ms=int(deadline_s * 1000), **named,
        )  # fmt: skip
        params.__operation__ = declared  # type: ignore[attr-defined]  # read back by operation_of only
        return params

    return declare


DETAIL = "x-detail"


def detail(text: str) -> msgspec.Meta:
    """An explanation of a parameter that `describe` gives, and a list of tools leaves out: its name is well known."""
    return msgspec.Meta(description=text, extra_json_schema={DETAIL: True})


class Family:
    """Operations of one service that have options in common: `Family("graph", surfaces=("knowledge",))`.

    Its methods declare the decorated `Params[Result]` as `operation` does; what one names goes before the family's.
    """

    def __init__(self, service: str, **shared: Unpack[Options]) -> None:
        self._service = service
        self._shared = shared

    def read(self, name: str, *, deadline_s: float, idempotent: bool = True, **own: Unpack[Options]) -> Declare:
        """It changes nothing, and may be repeated unless that is said to be a bad idea."""
        return self._declare(name, Access.READ, idempotent, deadline_s, own)

    def write(self, name: str, *, idempotent: bool, deadline_s: float, **own: Unpack[Options]) -> Declare:
        """It adds or changes."""
        return self._declare(name, Access.WRITE, idempotent, deadline_s, own)

    def destroy(self, name: str, *, idempotent: bool, deadline_s: float, **own: Unpack[Options]) -> Declare:
        """It removes or overwrites what cannot be brought back."""
        return self._declare(name, Access.DESTRUCTIVE, idempotent, deadline_s, own)

    def _declare(self, name: str, access: Access, idempotent: bool, deadline_s: float, own: Options) -> Declare:
        merged: Options = {**self._shared, **own}
        return operation(
            name, service=self._service, access=access, idempotent=idempotent, deadline_s=deadline_s, **merged
        )


def operation_of(params: type[Params[R]] | Params[R]) -> Operation[R]:
    """The operation that a parameter Struct declares.

    Raises:
        TypeError: the Struct was never declared with `@operation`.
    """
    cls = params if isinstance(params, type) else type(params)
    if (declared := cls.__dict__.get("__operation__")) is None:
        raise TypeError(f"{cls.__name__} is not declared as an operation")
    return typing.cast("Operation[R]", declared)


def _result_type(params: type[Params[object]]) -> Any:
    for base in getattr(params, "__orig_bases__", ()):
        if typing.get_origin(base) is Params:
            return typing.get_args(base)[0]
    raise TypeError(f"{params.__name__} must be a subclass of Params[Result]")
