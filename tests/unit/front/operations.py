"""Operations made for the gateway's tests, one for each thing a call can be, and the service that handles them."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

import msgspec
import trio
from msgspec import Meta

from proto.errors import (
    Internal,
    InvalidParams,
    MaybeExecuted,
    OperationError,
    Overloaded,
    Timeout,
    Unavailable,
)
from proto.operation import Access, Operation, Params, Resource, Role, operation
from proto.ops import Table
from services.runtime.handlers import Context, Environment, Handlers

_op = partial(operation, service="test", access=Access.READ, idempotent=True, deadline_s=30)


class Colour(enum.StrEnum):
    RED = "red"
    ROSE = "rose"
    BLUE = "blue"


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A result with a nested null and bytes."""

    text: str
    nothing: int | None = None
    raw: bytes = b"\x00\xff"
    numbers: dict[str, float | None] = {}


@_op("t_pair", text="text", surfaces=("yaml",))
class PairOp(Params[Pair], frozen=True, kw_only=True):
    """Returns its text in a pair."""

    text: Annotated[str, Meta(min_length=1, max_length=1000, description="Any text")]
    count: Annotated[int, Meta(ge=0, le=10, description="How many numbers")] = 0


@_op("t_string")
class StringOp(Params[str], frozen=True, kw_only=True):
    """Returns a bare string."""

    colour: Annotated[Colour, Meta(description="A colour")] = Colour.RED


@_op("t_list", access=Access.WRITE, idempotent=False)
class ListOp(Params[list[int]], frozen=True, kw_only=True):
    """Returns a list."""


@_op("t_nothing", access=Access.DESTRUCTIVE)
class NothingOp(Params[None], frozen=True, kw_only=True):
    """Returns null."""


@_op("t_dict")
class DictOp(Params[dict[str, Any]], frozen=True, kw_only=True):
    """Returns an object without a fixed form."""


class How(enum.StrEnum):
    INVALID = "invalid"
    UNAVAILABLE = "unavailable"
    OVERLOADED = "overloaded"
    TIMEOUT = "timeout"
    MAYBE = "maybe"
    OPERATION = "operation"
    INTERNAL = "internal"
    DEFECT = "defect"


def fail(how: How) -> None:
    errors: dict[How, Exception] = {
        How.INVALID: InvalidParams("`how` is not to the handler's liking", field="how"),
        How.UNAVAILABLE: Unavailable("service test is starting", retry_after_ms=2500),
        How.OVERLOADED: Overloaded("the queue of service test is full", retry_after_ms=100),
        How.TIMEOUT: Timeout("no answer within 1 s"),
        How.MAYBE: MaybeExecuted("service test died with the call in flight"),
        How.OPERATION: OperationError("no such file: x", code=-32002, data={"path": "x"}),
        How.INTERNAL: Internal("a defect in service test"),
        How.DEFECT: RuntimeError("secret detail"),
    }
    raise errors[how]


@_op("t_fail")
class FailOp(Params[str], frozen=True, kw_only=True):
    """Fails as requested."""

    how: How


@_op("t_fail_coded", codes={-32002: "not found"})
class FailCodedOp(Params[str], frozen=True, kw_only=True):
    """Fails as requested, with codes of its own."""

    how: How


@_op("t_progress")
class ProgressOp(Params[str], frozen=True, kw_only=True):
    """Reports progress and logs, then answers."""

    steps: int = 3


@_op("t_wait")
class WaitOp(Params[str], frozen=True, kw_only=True):
    """Waits until it is cancelled, or for the given number of seconds."""

    seconds: float = 3600.0


@_op("t_inner", role=Role.INTERNAL)
class InnerOp(Params[str], frozen=True, kw_only=True):
    """Callable by services only."""


@_op("t_operator", callers=("operator",))
class OperatorOp(Params[str], frozen=True, kw_only=True):
    """Callable by operators only."""


@_op("t_page", role=Role.RESOURCE, resource=Resource(uri="t://page/{number}", name="Page", mime_type="text/plain"))
class PageOp(Params[str], frozen=True, kw_only=True):
    """A page by number."""

    number: int


@_op(
    "t_paged",
    role=Role.RESOURCE,
    resource=Resource(uri="t://list", name="List", mime_type="text/plain", query=("offset", "limit")),
)
class PagedOp(Params[str], frozen=True, kw_only=True):
    """A list, page by page."""

    offset: int = 0
    limit: int = 10


@_op("t_asks", asks=True)
class AsksOp(Params[str], frozen=True, kw_only=True):
    """Asks the user twice."""


@_op("t_asks_undeclared")
class AsksUndeclaredOp(Params[str], frozen=True, kw_only=True):
    """Asks the user and does not say so."""


OPERATIONS: list[Operation[Any]] = [
    value.__dict__["__operation__"]
    for value in list(vars().values())
    if isinstance(value, type) and "__operation__" in value.__dict__
]

TABLE = Table(OPERATIONS)


@asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    handlers = Handlers()

    @handlers.handle(PairOp)
    async def pair(params: PairOp, ctx: Context) -> Pair:
        return Pair(text=params.text, numbers={str(n): n / 2 if n else None for n in range(params.count)})

    @handlers.handle(StringOp)
    async def string(params: StringOp, ctx: Context) -> str:
        return f"{params.colour} é"

    @handlers.handle(ListOp)
    async def a_list(params: ListOp, ctx: Context) -> list[int]:
        return [1, 2, 2**60]

    @handlers.handle(NothingOp)
    async def nothing(params: NothingOp, ctx: Context) -> None:
        return None

    @handlers.handle(DictOp)
    async def a_dict(params: DictOp, ctx: Context) -> dict[str, Any]:
        return {"a": None, "b": [None, {"c": None}], "": 1.5}

    @handlers.handle(FailOp)
    async def fails(params: FailOp, ctx: Context) -> str:
        fail(params.how)
        raise AssertionError

    @handlers.handle(FailCodedOp)
    async def fails_coded(params: FailCodedOp, ctx: Context) -> str:
        fail(params.how)
        raise AssertionError

    @handlers.handle(ProgressOp)
    async def progress(params: ProgressOp, ctx: Context) -> str:
        for step in range(params.steps):
            ctx.progress(step, params.steps, f"step {step}")
            ctx.log("info", f"line {step}")
            ctx.log("debug", "too much detail")
            await trio.sleep(0.06)
        return "done"

    @handlers.handle(WaitOp)
    async def wait(params: WaitOp, ctx: Context) -> str:
        await trio.sleep(params.seconds)
        return "waited"

    @handlers.handle(PageOp)
    async def page(params: PageOp, ctx: Context) -> str:
        return f"page {params.number}"

    @handlers.handle(AsksOp)
    async def asks(params: AsksOp, ctx: Context) -> str:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        first = await ctx.ask_client("elicitation/create", {"message": "Name?", "requestedSchema": schema})
        second = await ctx.ask_client("elicitation/create", {"message": "Surname?", "requestedSchema": schema})
        return f"{first['content']['name']} {second['content']['name']}"

    @handlers.handle(AsksUndeclaredOp)
    async def asks_undeclared(params: AsksUndeclaredOp, ctx: Context) -> str:
        await ctx.ask_client("elicitation/create", {"message": "Name?", "requestedSchema": {}})
        return "answered"

    yield handlers
