"""Operations: each is declared once, and everything else is derived.

An operation is a frozen Struct of its parameters (a subclass of `Params[Result]`) decorated with `@operation` or a
method of a `Family`. Its JSON Schemas, validation, place on each tool surface, HTTP route, retries and callers all
follow from that declaration. The docstring is its description, and each field's `Meta(description=…)` describes a
parameter.
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

from proto.errors import Executed, Kind, LinckiaError
from proto.grants import Grant
from proto.later import LaterCall
from proto.validation import JsonSchema, json_schema, respelled, validate
from proto.vocabulary import OTHER_NAMES, Names

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
P = TypeVar("P", bound="Params[object]")

CLIENT = "client"
"""Caller name for all outside clients, through MCP or HTTP."""

OPERATOR = "operator"
"""Caller name for the command line on this machine, which may do everything that clients may, and more."""

ALL = "all"
"""The surface with every tool, which is the default for clients over HTTP."""

CORE = "core"
"""The surface that lists the few tools that give access to the rest; the tools of `all` can also be called by name."""

COMPACT = "compact"

SYNC = "linckia:sync"
"""Caller name for the `linckia sync` of another machine; also the only surface of the tokens that allow it."""

REFERENCES = ("documents", "yaml", "knowledge", "files", "transcripts")
"""Surfaces of other systems' tools, which use those systems' parameter names."""

SURFACES = (CORE, ALL, COMPACT, *REFERENCES)
"""The tool surfaces that a client may choose; each has a URL, `/mcp/NAME`."""


class Declare(Protocol):
    """A decorator that returns the Struct unchanged."""

    def __call__(self, params: type[P], /) -> type[P]: ...


class Access(enum.StrEnum):
    """What an operation may do to stored data."""

    READ = "read"
    WRITE = "write"
    DESTRUCTIVE = "destructive"


class Role(enum.StrEnum):
    """How MCP clients use the operation."""

    TOOL = "tool"
    STEP = "step"
    """Only as a step of the composite tools."""
    RESOURCE = "resource"
    PROMPT = "prompt"
    INTERNAL = "internal"
    """Not at all: it is called between services, or over HTTP only."""


class Params(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every operation's parameters; `R_co` is the type of its result.

    `rules` are additional keywords for the parameters' JSON Schema, for constraints that field types cannot express;
    the handler or `check` enforces them. If one of two fields is required, the description says so instead, since
    clients reject `anyOf` at the root. `common` maps parameters to the names that all operations share, if a reference
    system has other names (`{"root": "path"}`); clients may use either. `taken` maps undocumented parameters that
    clients of a reference system send to the equivalent parameters here, or to "" if they make no difference; schemas
    omit them.
    """

    rules: ClassVar[Mapping[str, Any]] = {}
    common: ClassVar[Mapping[str, str]] = {}
    taken: ClassVar[Mapping[str, str]] = {}

    def check(self) -> None:
        """Check constraints between several fields, before a call is sent and where it is handled.

        Raises:
            InvalidParams: names the field.
        """

    def identity(self) -> bytes | None:
        """Return what a repeated call with the same idempotency key must have in common with the first; None means all
        parameters."""
        return None

    def later_calls(self) -> Iterable[LaterCall]:
        """Return the calls that it asks to have made later, on behalf of its sender."""
        return ()

    def later_source(self) -> str:
        """Return what those calls are part of, for the audit log."""
        return ""


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """Where an operation with role RESOURCE is found.

    `uri` may be a template (RFC 6570: `test://template/{id}/data`, and `{+path}` for a variable that may contain
    slashes) whose variables are the operation's parameters. `query` names parameters that may follow as
    `?name=value&…`; the URI is listed without them. `former` are URIs that still work but are not listed. Resources of
    a reference system keep its URIs; all others are below `linckia://`.
    """

    uri: str
    name: str
    mime_type: str
    query: tuple[str, ...] = ()
    former: tuple[str, ...] = ()

    @property
    def uris(self) -> tuple[str, ...]:
        """All URIs by which it can be read."""
        return self.uri, *self.former


class Route(msgspec.Struct, frozen=True):
    """An HTTP route to an operation, for programs that do not use MCP.

    GET takes the parameters from the path's variables (`/dag/node/{hash}`) and the query, ignoring unknown ones; POST
    takes them from a JSON body. The response is the result as JSON.

    `body` names a parameter that takes the whole body as bytes instead. `missing` is the message of a 404, sent if the
    result is null. `file` marks results of type `proto.http.FileChunk`: the whole file is served, in ranges if
    requested. `detached` calls are completed even if their client has left. Failures are `{"error": message}`, or have
    OpenAI's form if `like_openai`; `statuses` override the usual status for a kind of failure.
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
    """Options of a declaration; `Operation` documents them and their defaults."""

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
    is_essential: bool


class Operation(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True, dict=True):
    """One capability of the system, as declared in `proto/ops`.

    Attributes:
        title: name for people; by default derived from `name`.
        former: other names by which clients may call it; `proto.vocabulary` has those of this system's operations.
        reference: its name on the surfaces of other programs, and in data that older versions stored.
        step: its name as a step of the composite tools on the surface `documents`; one that starts with `session.` is
            an action of the tool `documents_session`.
        surfaces: tool surfaces besides `all` that list it, from `SURFACES`.
        callers: who may call it: `client`, `operator`, and names of services. The default is clients, or
            nobody for an operation between services.
        codes: JSON-RPC codes for the operation's own failures. If it has any, all its failures, including invalid
            parameters, are JSON-RPC errors; otherwise they are tool results with `isError`.
        text: field of the result that is the text content for clients; by default the whole result as JSON.
        http: an additional HTTP route.
        once_with: parameters that make an idempotent operation unsafe to repeat without asking, if they are given (such
            as a content hash that the first execution makes stale).
        asks: whether the handler may ask the client (`proto.mcp`); questions of other operations are refused.
        completion: internal operation that completes arguments of this prompt or resource template. Its parameters are
            `argument`, `value` and `context` (the arguments already known), its result a list of strings.
        open_world: whether it interacts with anything beyond this machine's own store.
        is_essential: whether clients that hide tools behind a search are asked to show it at once on `core`.
        is_exact: whether its result is never truncated on any surface, since it is requested for its exact content.
        within_roots: whether clients that are limited to some roots may call it: `services.runtime.roots` checks each
            path in its parameters and results, or it has nothing to do with files. Operations that answer from a store
            covering all roots are refused to such clients.
    """

    name: str
    description: str
    service: str
    params: type[Params[object]]
    result: Any  # a type, or a typing construct such as a union
    access: Access
    idempotent: bool
    deadline_ms: int
    title: str = ""
    former: Collection[str] = ()
    reference: str = ""
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
    is_essential: bool = False

    def shown_as(self, surface: str) -> str:
        """Return its name on a surface."""
        return self.stored_name if surface in REFERENCES else self.name

    def title_on(self, surface: str) -> str:
        """Return its title on a surface."""
        is_derived = self.title == words_of(self.name)
        return words_of(self.stored_name) if is_derived and surface in REFERENCES else self.title

    @cached_property
    def stored_name(self) -> str:
        """The name by which data directories know it."""
        return self.reference or self.name

    @property
    def routed(self) -> Operation[Any]:
        """The operation by which the kernel knows it: itself, unless it is a tool of a mounted server."""
        return self

    @property
    def is_foreign(self) -> bool:
        """Whether another server defines it, and checks its parameters."""
        return False

    def received(self, value: Any) -> Any:
        """Return the result in the value that the routed operation returned. Raises LinckiaError."""
        return value

    @cached_property
    def input_schema(self) -> JsonSchema:
        """JSON Schema 2020-12 of the parameters; always of `type: object`, with local references only."""
        schema = json_schema(self.params)
        definitions = {**schema.get("$defs", {}), **self.params.rules.get("$defs", {})}
        return {**schema, **self.params.rules, **({"$defs": definitions} if definitions else {})}

    @cached_property
    def output_schema(self) -> JsonSchema | None:
        """JSON Schema 2020-12 of the structured result; None if the result is MCP content.

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
        """Strict decoders for its result, from msgpack and from JSON, used by `proto.wire.results`."""
        return msgspec.msgpack.Decoder(self.result).decode, msgspec.json.Decoder(self.result).decode

    @cached_property
    def is_content(self) -> bool:
        """Whether the result is MCP content (`proto.mcp`), which is passed to the client unchanged."""
        return isinstance(self.result, type) and getattr(self.result, "__mcp_content__", False) is True

    @cached_property
    def wraps_result(self) -> bool:
        """Whether the result is wrapped as `{"result": …}` to become structured content."""
        return not self.is_content and json_schema(self.result).get("type") != "object"

    def parse(self, arguments: Mapping[str, object], *, strict: bool = True, reference: bool = False) -> Params[object]:
        """Return the parameters from decoded JSON, in camelCase or snake_case and under common or declared names. If
        not `strict`, numbers and booleans may be given as text. Errors use the common names, unless `reference`.

        Raises:
            InvalidParams: names the field and says what would be right.
        """
        parsed = validate(self.params, respelled(self.params, arguments), strict=strict, reference=reference)
        parsed.check()
        return parsed

    def admits(self, caller: str) -> bool:
        """Return whether `caller` (`client`, `operator`, or the name of a service) may call this operation."""
        return caller in self.callers or (caller == OPERATOR and CLIENT in self.callers)

    def admits_sync(self, grant: Grant | None) -> bool:
        """Return whether it is for `linckia sync`, and a client with this grant is another machine's."""
        return grant is not None and SYNC in grant.surfaces and SYNC in self.callers

    def refusal(self, grant: Grant) -> str:
        """Return why a client with this grant may not call it, or "" if it may."""
        if grant.read_only and self.access is not Access.READ:
            return f"{self.name} makes changes, and the token {grant.name} may only read"
        if grant.surfaces and not set(grant.surfaces).intersection(self.surfaces) and not self.admits_sync(grant):
            return f"{self.name} is on no surface of the token {grant.name}, which has: {', '.join(grant.surfaces)}"
        if grant.roots and not self.within_roots:
            limited = f"the token {grant.name} is limited to {', '.join(grant.roots)}"
            return f"{self.name} answers from all roots, and {limited}"
        return ""

    def failure(self, error: LinckiaError) -> LinckiaError:
        """Adjust `error` for the caller: an operation that only reads was not executed, whatever went wrong."""
        if self.access is Access.READ:
            error.failure = msgspec.structs.replace(error.failure, executed=Executed.NO)
        return error


_VERBS = frozenset(
    re.findall(
        r"\w+",
        "add append browse cancel cluster count create delete describe diagnose drop echo edit empty execute find"
        " forget get grep index inspect list modify move read recall rename restore run search start stop suggest tag"
        " update upsert verify wait write",
    )
)


_OF_ONE = frozenset(
    re.findall(
        r"\w+", "cancel create delete drop edit execute get inspect modify read start stop update upsert wait write"
    )
)


def words_of(name: str) -> str:
    """Derive a title from the name of an operation: `plans_list` becomes "List plans"."""
    *words, last = re.split("[_.-]", name)
    if words and last in _VERBS:
        noun = " ".join(words)
        if last in _OF_ONE:
            noun = re.sub("ie$", "y", noun.removesuffix("s"))
        elif last == "list" and not noun.endswith("s"):
            noun = re.sub("y$", "ie", noun) + "s"
        words, last = [last], noun
    title = " ".join([*words, last])
    return title[:1].upper() + title[1:]


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

    `idempotent` may be omitted if it only reads.
    """
    if idempotent is None and access is not Access.READ:
        raise TypeError(f"operation {name}: it makes changes, so say whether it is idempotent")
    if unknown := set(options.get("surfaces", ())).difference(SURFACES):
        raise TypeError(f"operation {name}: there is no surface {', '.join(unknown)}")

    callers = () if options.get("role") is Role.INTERNAL else (CLIENT,)
    other = OTHER_NAMES.get(name, Names())
    former = tuple(filter(None, (other.former, other.older)))
    named: Options = {
        "callers": callers, "title": words_of(name), "former": former, "step": other.step or name, **options
    }  # fmt: skip

    def declare(params: type[P]) -> type[P]:
        doc = inspect.getdoc(params)
        if not doc or doc == inspect.getdoc(Params):
            raise TypeError(f"operation {name}: {params.__name__} needs a docstring, its description")
        # A hyphen at the end of a line belongs to a name, such as `files_duplicates`.
        doc = re.sub(r"(?<=\w)-\n", "-", doc)
        declared: Operation[object] = Operation(
            name=name, description=doc, service=service, params=params, result=_result_type(params), access=access,
            idempotent=idempotent is not False, deadline_ms=int(deadline_s * 1000),
            reference=other.former or name, **named,
        )  # fmt: skip
        params.__operation__ = declared  # type: ignore[attr-defined]  # read only by operation_of
        return params

    return declare


DETAIL = "x-detail"


def detail(text: str) -> msgspec.Meta:
    """Explain a parameter whose name is well known: `describe` includes the text, and lists of tools omit it. They omit
    a member of a result as a whole, so only one that is seldom there may be explained by this."""
    return msgspec.Meta(description=text, extra_json_schema={DETAIL: True})


IF_ANY = "x-if-any"
FOR_PROGRAMS = "x-for-programs"

SaidIfAny = msgspec.Meta(extra_json_schema={IF_ANY: True})
"""Marks a member of a result that is often empty, false or 0: models get it only if it is not. Members whose type
declares that value as their default need no mark."""

SaidToPrograms = msgspec.Meta(extra_json_schema={FOR_PROGRAMS: True})
"""Marks a member of a result that models do not get: how long it took, or what another member says too."""


class Family:
    """Operations of one service that share options: `Family("graph", surfaces=("knowledge",))`.

    Its methods declare the decorated `Params[Result]` like `operation`; their options override the family's.
    """

    def __init__(self, service: str, **shared: Unpack[Options]) -> None:
        self._service = service
        self._shared = shared

    def read(self, name: str, *, deadline_s: float, idempotent: bool = True, **own: Unpack[Options]) -> Declare:
        """Declare an operation that changes nothing; by default it may be repeated."""
        return self._declare(name, Access.READ, idempotent, deadline_s, own)

    def write(self, name: str, *, idempotent: bool, deadline_s: float, **own: Unpack[Options]) -> Declare:
        """Declare an operation that adds or changes data."""
        return self._declare(name, Access.WRITE, idempotent, deadline_s, own)

    def destroy(self, name: str, *, idempotent: bool, deadline_s: float, **own: Unpack[Options]) -> Declare:
        """Declare an operation that irreversibly removes or overwrites data."""
        return self._declare(name, Access.DESTRUCTIVE, idempotent, deadline_s, own)

    def _declare(self, name: str, access: Access, idempotent: bool, deadline_s: float, own: Options) -> Declare:
        merged: Options = {**self._shared, **own}
        return operation(
            name, service=self._service, access=access, idempotent=idempotent, deadline_s=deadline_s, **merged
        )


def operation_of(params: type[Params[R]] | Params[R]) -> Operation[R]:
    """Return the operation that a parameter Struct declares.

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
